"""Where a cluster keeps each program that a case can run, and the data it reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrator.documents.model import Strict, Text


class PretrainSite(Strict):
    """Where jobs find a Python with torch and megatron-core; absent: the one that runs `repro`."""

    python: Text | None = None


class MegatronSite(Strict):
    """Where jobs find a checkout of Megatron-LM and its data."""

    checkout: Text
    data_path: Text


class VocabularySite(MegatronSite):
    """The same for scripts that read GPT-2's vocabulary."""

    vocab_file: Text
    merge_file: Text


class WorkloadSites(Strict):
    """One field for each program, by its name. Another Megatron-LM than `pretrain` can run where its site is given."""

    pretrain: PretrainSite = PretrainSite()
    megatron_2021: Annotated[VocabularySite | None, Field(alias="megatron-2021")] = None
    megatron_kwai: Annotated[MegatronSite | None, Field(alias="megatron-kwai")] = None
    megatron_jan_2024: Annotated[MegatronSite | None, Field(alias="megatron-jan-2024")] = None
    megatron_core_0_14: Annotated[VocabularySite | None, Field(alias="megatron-core-0.14")] = None
    megatron_tutorial_fork: Annotated[VocabularySite | None, Field(alias="megatron-tutorial-fork")] = None

    def megatron(self, workload: str) -> MegatronSite | None:
        """The site of this workload's Megatron-LM; None where the profile has none, or no such program is known."""
        for name, field in type(self).model_fields.items():
            if field.alias == workload:
                found: MegatronSite | None = getattr(self, name)
                return found
        return None
