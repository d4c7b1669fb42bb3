"""Where a cluster keeps each program that a case can run, and the data it reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from orchestrator.config.model import Strict, Text


class PretrainSite(Strict):
    """Where jobs find a Python with torch and megatron-core; absent: the one that runs `repro`."""

    python: Text | None = None


class CheckoutSite(Strict):
    """Where jobs find a checkout of Megatron-LM."""

    checkout: Text


class MegatronSite(CheckoutSite):
    """The same, and the data that it trains on."""

    data_path: Text


class VocabularySite(MegatronSite):
    """The same for scripts that read GPT-2's vocabulary."""

    vocab_file: Text
    merge_file: Text


class TodaySite(CheckoutSite):
    """Today's Megatron-LM makes its data up, unless it is told where there are some.

    `transformer_engine: false` where jobs find neither transformer-engine nor apex: layers and attention are then
    Megatron-LM's own.
    """

    data_path: Text | None = None
    vocab_file: Text | None = None
    merge_file: Text | None = None
    transformer_engine: bool = True

    @model_validator(mode="after")
    def _data_are_complete(self) -> TodaySite:
        missing = [name for name in ("data_path", "vocab_file", "merge_file") if getattr(self, name) is None]
        if 0 < len(missing) < 3:
            raise ValueError(f"data need all of data_path, vocab_file and merge_file: no {' and no '.join(missing)}")
        return self


def _benchmark(value: str) -> str:
    if not value.startswith("<") and not value.endswith("/osdi22_artifact/megatron"):
        raise ValueError("must be the folder .../osdi22_artifact/megatron in a checkout of alpa-projects/alpa")
    return value


class BenchmarkSite(CheckoutSite):
    """Alpa's fork of Megatron-LM, and the folder of the scripts that time it; they import from their own checkout."""

    benchmark: Annotated[Text, AfterValidator(_benchmark)]


class WorkloadSites(Strict):
    """One field for each program, by its name. Another Megatron-LM than `pretrain` can run where its site is given."""

    pretrain: PretrainSite = PretrainSite()
    megatron_2021: Annotated[VocabularySite | None, Field(alias="megatron-2021")] = None
    megatron_alpa: Annotated[BenchmarkSite | None, Field(alias="megatron-alpa")] = None
    megatron_kwai: Annotated[MegatronSite | None, Field(alias="megatron-kwai")] = None
    megatron_jan_2024: Annotated[MegatronSite | None, Field(alias="megatron-jan-2024")] = None
    megatron_core_0_14: Annotated[VocabularySite | None, Field(alias="megatron-core-0.14")] = None
    megatron_tutorial_fork: Annotated[VocabularySite | None, Field(alias="megatron-tutorial-fork")] = None
    megatron_2026: Annotated[TodaySite | None, Field(alias="megatron-2026")] = None

    def megatron(self, workload: str) -> CheckoutSite | None:
        """The site of this workload's Megatron-LM; None where the profile has none, or no such program is known."""
        for name, field in type(self).model_fields.items():
            if field.alias == workload:
                found: CheckoutSite | None = getattr(self, name)
                return found
        return None
