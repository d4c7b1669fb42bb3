"""The two programs of the Megatron tutorials: core_r0.14.0, and the first generation's fork of Megatron-LM.

The scripts are those of vuiseng9/megatron-tutorials at 0b2c030a1d and of vuiseng9/megatron-lm at 6ac43930b5; both
have the same arguments. Two of them are omitted: --train-iters 500000, which a later one overrides, and
--tensorboard-dir, because the log contains everything that is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.catalog.case import Case
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.rules.rule_context import read_flags
from orchestrator.workloads.base import (
    FULL_RECOMPUTATION,
    Flags,
    JobContext,
    Program,
    TimeFacts,
    Workload,
    flag_arguments,
    interleaving,
    megatron_program,
)
from orchestrator.workloads.megatron_2021 import dropout
from orchestrator.workloads.needs import GPT2_TOKENS, MERGES, VOCABULARY, Repository, TokenData
from orchestrator.workloads.site_fields import VocabularySite

_RECOMPUTATION: Mapping[str, Flags] = {"none": {}, "full": FULL_RECOMPUTATION}


USABLE_SHARE_CORE = 0.992
"""Usable share of memory inside one node, fitted to the tables of the Megatron tutorials: the smallest with which every
row that ran fits. Row 228 is predicted to need 79.30e9 bytes of 80 GB and ran. Two rows that ran out of memory, at
79.19e9 and 79.28e9, are therefore predicted to fit."""

MEMORY = MemoryFacts("flash", shards_optimizer=False)
TIME = TimeFacts(overlaps_backward_communication=True)
"""transformer-engine's column-parallel layers overlap their backward communication with products by default."""


def arguments(case: Case, site: VocabularySite) -> list[str]:
    """Return the arguments of the published scripts."""
    return flag_arguments(
        {
            **_model(case),
            **experts(case),
            **_RECOMPUTATION[case.training.recompute],
            **_training(case),
            **_parallel(case),
            "--data-path": site.data_path,
            "--vocab-file": site.vocab_file,
            "--merge-file": site.merge_file,
            "--split": "949,50,1",
            **_logging(case),
        }
    )


def _unsupported(case: Case, _site: VocabularySite | None) -> Iterator[str]:
    model, training = case.model, case.training
    other_width = model.ffn is not None and not model.experts
    if model.family != "gpt" or model.kv_groups is not None or other_width:
        yield "models other than GPT-2's, with or without experts"
    if model.positions != "learned":
        yield "rotary positions"
    if training.recompute not in _RECOMPUTATION:
        yield f"recomputation {training.recompute} (only {', '.join(_RECOMPUTATION)})"
    if training.offload:
        yield "offloading"
    if not training.scatter_gather:
        yield "disabling scatter/gather"
    if training.ddp != "local":
        yield f"DDP {training.ddp}"


def _model(case: Case) -> Flags:
    model = case.model
    return {
        "--num-layers": model.layers,
        "--hidden-size": model.hidden,
        "--num-attention-heads": model.heads,
        "--seq-length": model.seq,
        "--max-position-embeddings": model.seq,
        # flash in the second generation's table of context parallelism, auto in all other scripts
        "--attention-backend": case.training.attention or "auto",
        **dropout(case),
    }


def experts(case: Case) -> Flags:
    """Return the flags of experts. The experiment sets how they are computed (--moe-grouped-gemm and others)."""
    model, layout = case.model, case.layout
    if not model.experts:
        return {}
    return {
        "--num-experts": model.experts,
        "--moe-router-topk": model.experts_per_token,
        "--moe-ffn-hidden-size": model.ffn_hidden,
        "--expert-model-parallel-size": layout.expert_parallel,
        "--expert-tensor-parallel-size": layout.expert_tensor_parallel or layout.tensor_parallel,
    }


def _training(case: Case) -> Flags:
    training = case.training
    return {
        "--micro-batch-size": case.layout.micro_batch_size,
        "--global-batch-size": case.layout.global_batch_size,
        "--weight-decay": "0.1",
        "--adam-beta1": "0.9",
        "--adam-beta2": "0.95",
        "--init-method-std": "0.006",
        "--clip-grad": "1.0",
        f"--{training.dtype}": training.dtype != "fp32",
        "--loss-scale": training.loss_scale if training.dtype == "fp16" else None,
        "--lr": "6.0e-5",
        "--lr-decay-style": "cosine",
        "--min-lr": "6.0e-6",
        "--lr-warmup-fraction": ".001",
        "--lr-decay-iters": 430000,
        # The experiment sets the two overlaps that make it the tutorials' ZeRO-2.
        "--use-distributed-optimizer": training.distributed_optimizer,
    }


def _parallel(case: Case) -> Flags:
    layout = case.layout
    return {
        "--tensor-model-parallel-size": layout.tensor_parallel,
        "--pipeline-model-parallel-size": layout.pipeline_parallel,
        "--context-parallel-size": layout.context_parallel,
        # The fork's scripts omit p2p, the default.
        "--cp-comm-type": case.training.cp_comm if layout.context_parallel > 1 else None,
        "--sequence-parallel": layout.sequence_parallel,
        **interleaving(case),
    }


def _logging(case: Case) -> Flags:
    training = case.training
    return {
        "--train-iters": training.iterations,
        "--log-interval": training.log_interval,
        "--log-throughput": True,
        "--save-interval": 0,
        # The value of most scripts; experiments with another one set it.
        "--eval-interval": None if "--eval-interval" in read_flags(case.arguments) else 50,
        "--eval-iters": training.evaluation_iterations,
    }


def _program(job: JobContext[VocabularySite], arguments: Sequence[str]) -> Program:
    return megatron_program(job, job.site, arguments, data=job.site.data_path)


CORE = Workload(
    name="megatron-core-0.14",
    about="Megatron-LM of the tutorials, core 0.14",
    site=VocabularySite,
    dialect="now",
    memory=MEMORY,
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    usable_share=USABLE_SHARE_CORE,
    time=replace(TIME, stages_cost_host=True, fitted_on={"H100": "H100"}),  # the tutorials
    needs=(
        Repository(),
        VOCABULARY,
        MERGES,
        TokenData(
            GPT2_TOKENS,
            "openwebtext-10k with GPT-2's vocabulary (target prepare-ds-openwebtext-10k of the tutorials' Makefile)",
        ),
    ),
)
TUTORIAL_FORK = replace(
    CORE, name="megatron-tutorial-fork", about="fork of Megatron-LM, first generation of the tutorials"
)
