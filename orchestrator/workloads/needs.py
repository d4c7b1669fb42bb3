"""Code and data that a program needs: where they are public, and the fields of a profile with their paths."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pydantic import ValidationInfo, field_validator

from orchestrator.config.model import Strict, Text, required

GITHUB = "https://github.com"

GPT2_TOKENS = 50257
"""Entries of GPT-2's vocabulary, which --vocab-file and --merge-file name."""

LLAMA_TOKENS = 32000
"""Entries of Llama's vocabulary. Programs with NullTokenizer are given at least as many."""


@dataclass(frozen=True, slots=True)
class Repository:
    """Git repository whose checkout a field of the profile names.

    `name` is OWNER/NAME on GitHub. `commit` is a full hash; a branch or tag where the paper names no commit. `code:` in
    a paper.yaml replaces both of a `checkout`; they are None if only a paper has them. `subfolder`: the field names
    this folder of the checkout.
    """

    field: str = "checkout"
    name: str | None = None
    commit: str | None = None
    subfolder: str = ""


@dataclass(frozen=True, slots=True)
class PublicFile:
    """File with a public address. `name` is its usual name, `sha256` its checksum in hexadecimal digits."""

    field: str
    name: str
    url: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TokenData:
    """Data set of tokens, PREFIX.bin and PREFIX.idx; the field of the profile names PREFIX.

    Tokens are below `vocabulary`. `published` describes the data of the paper.
    """

    vocabulary: int
    published: str
    field: str = "data_path"


Need = Repository | PublicFile | TokenData

# OpenAI's addresses. Size and checksum were computed from copies of both files, and tiktoken publishes the same
# checksums for these addresses (tiktoken_ext/openai_public.py, `gpt2`).
_OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main"

VOCABULARY = PublicFile(
    field="vocab_file",
    name="gpt2-vocab.json",
    url=f"{_OPENAI}/encoder.json",
    sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    bytes=1_042_301,
)
MERGES = PublicFile(
    field="merge_file",
    name="gpt2-merges.txt",
    url=f"{_OPENAI}/vocab.bpe",
    sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    bytes=456_318,
)
GPT2_FILES = (VOCABULARY, MERGES)


class WorkloadSite(Strict):
    """Fields of a profile's `workloads: NAME:`. Texts are paths; `python` can be a name in PATH."""

    @field_validator("*")
    @classmethod
    def _absolute(cls, value: object, info: ValidationInfo) -> object:
        is_relative = isinstance(value, str) and not value.startswith(("/", "<"))
        if is_relative and (info.field_name != "python" or "/" in str(value)):
            raise ValueError("must be an absolute path, because a job runs this program in its own folder")
        return value


class CheckoutSite(WorkloadSite):
    """Path of a checkout of Megatron-LM, as jobs see it."""

    checkout: Text = required(
        "Folder of the checkout, at the commit that the paper or the workload names.", "/shared/Megatron-LM"
    )


class MegatronSite(CheckoutSite):
    """A checkout of Megatron-LM and the training data."""

    data_path: Text = required(
        "Tokenised data: the path of the .bin and .idx files, without the ending.", "/shared/data/gpt2_text_document"
    )


class VocabularySite(MegatronSite):
    """A checkout of Megatron-LM, the training data and the two files of GPT-2's vocabulary."""

    vocab_file: Text = required("The file gpt2-vocab.json.", "/shared/data/gpt2-vocab.json")
    merge_file: Text = required("The file gpt2-merges.txt.", "/shared/data/gpt2-merges.txt")


def fetch_command(workload: str, cluster: str) -> str:
    """Return the command that fetches what a workload needs to the paths of a profile."""
    return f"repro workloads fetch {workload} --cluster {shlex.quote(cluster)}"


def directory_hint(workload: str, cluster: str) -> str:
    """Return the hint for paths that a profile lacks."""
    return f"{fetch_command(workload, cluster)} --directory /SHARED/FOLDER fetches what is needed, and prints the paths"
