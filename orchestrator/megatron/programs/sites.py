"""Fields of a profile for programs of the Megatron family, and the public files of GPT-2's vocabulary."""

from __future__ import annotations

from orchestrator.config.model import Text, required
from orchestrator.programs.needs import ProgramSite, PublicFile

GPT2_TOKENS = 50257
"""Entries of GPT-2's vocabulary, which --vocab-file and --merge-file name."""

LLAMA_TOKENS = 32000
"""Entries of Llama's vocabulary. Programs with NullTokenizer are given at least as many."""


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


class CheckoutSite(ProgramSite):
    """Path of a checkout of Megatron-LM, as jobs see it."""

    checkout: Text = required(
        "Folder of the checkout, at the commit that the paper or the program names.", "/shared/Megatron-LM"
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
