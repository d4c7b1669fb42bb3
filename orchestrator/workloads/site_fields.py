"""Fields of a profile about a program: the paths of its code and data."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from orchestrator.config.model import Strict, Text


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

    checkout: Text = Field(
        description="Folder of the checkout, at the commit that the paper or the workload names.",
        examples=["/shared/Megatron-LM"],
    )


class MegatronSite(CheckoutSite):
    """A checkout of Megatron-LM and the training data."""

    data_path: Text = Field(
        description="Tokenised data: the path of the .bin and .idx files, without the ending.",
        examples=["/shared/data/gpt2_text_document"],
    )


class VocabularySite(MegatronSite):
    """A checkout of Megatron-LM, the training data and the two files of GPT-2's vocabulary."""

    vocab_file: Text = Field(description="The file gpt2-vocab.json.", examples=["/shared/data/gpt2-vocab.json"])
    merge_file: Text = Field(description="The file gpt2-merges.txt.", examples=["/shared/data/gpt2-merges.txt"])
