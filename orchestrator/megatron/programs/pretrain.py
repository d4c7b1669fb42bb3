"""The program `orchestrator.pretrain`: its arguments, a subset of today's Megatron-LM's, and the copy that jobs import.

Jobs do not import from the environment in which `repro` is installed: its other packages, such as numpy, would replace
those of the image. The copy also keeps a queued job on the code with which it was submitted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from orchestrator.config.model import Text, optional
from orchestrator.files import keep_files
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts
from orchestrator.megatron.predictions import PlannedProgram
from orchestrator.megatron.programs.base import ONE_NODE, TimeFacts
from orchestrator.megatron.programs.flags import flag_arguments, script_flags
from orchestrator.paths import Folders
from orchestrator.pretrain.arguments import microbatch_slots
from orchestrator.pretrain.environment import source_files, version_of
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.record import JobContext, ProgramSite

PRETRAIN = "pretrain"

_INIT = b'"""The part of repro that jobs import."""\n'

USABLE_SHARE_PRETRAIN = 0.975
"""Usable share of memory: the allocator of this program has few gaps. On an H200 of 150 GB (10^9 bytes) a job used
146.07 and later 146.23, and a job that needs 153.4 ran out of memory (experiments/results/h200, over-the-edge). The
memory that NCCL uses over many nodes is unconfirmed."""


class PretrainSite(ProgramSite):
    """Path of a Python with torch and megatron-core, as jobs see it."""

    python: Text | None = optional(
        "Python with torch and megatron-core. Without it jobs use `python` of the image, or else the Python that runs "
        "`repro`.",
        "/opt/venv/bin/python",
    )


_SCRIPT = (
    "--tensor-model-parallel-size --pipeline-model-parallel-size --micro-batch-size --global-batch-size "
    "--num-layers --hidden-size --num-attention-heads --seq-length --vocab-size --train-iters --log-interval "
    "--hidden-dropout --attention-dropout --num-virtual-stages-per-pipeline-rank --context-parallel-size "
    "--sequence-parallel --swiglu --normalization --disable-bias-linear --untie-embeddings-and-output-weights "
    "--make-vocab-size-divisible-by --position-embedding-type --ffn-hidden-size --group-query-attention "
    "--num-query-groups --recompute-norm --recompute-activation-func --recompute-granularity "
    "--offload-activation-ratio --bf16 --fp16 --loss-scale --use-distributed-optimizer"
)


def arguments(case: TrainingCase, _site: PretrainSite) -> list[str]:
    """Return the arguments of a job."""
    return [*model_arguments(case), *flag_arguments({"--attention-backend": case.training.attention})]


def model_arguments(case: TrainingCase) -> list[str]:
    """Return the arguments of a case without its choice of attention; defaults of the program are left out."""
    layout, training = case.layout, case.training
    values = {
        **dict.fromkeys(("--hidden-dropout", "--attention-dropout"), training.dropout),
        **dict.fromkeys(("--recompute-norm", "--recompute-activation-func"), training.recompute == "ours"),
        "--num-virtual-stages-per-pipeline-rank": layout.virtual_stages if layout.virtual_stages > 1 else None,
        "--make-vocab-size-divisible-by": 128 if case.model.family == "llama" else None,
        "--offload-activation-ratio": training.offload or None,
        "--use-distributed-optimizer": training.distributed_optimizer is not False,  # sharded unless a case disables it
    }
    return flag_arguments(script_flags(_SCRIPT, case, values))


def _unsupported(case: TrainingCase, _site: PretrainSite | None) -> Iterator[str]:
    if case.model.experts:
        yield "experts"
    if case.layout.context_parallel > 1 and case.training.cp_comm != "p2p":
        yield f"{case.training.cp_comm} for context parallelism"


@cache
def code_version() -> str:
    """Return the name of this version of the program; part of a job's identity. Jobs print it at their start."""
    return version_of(_sources())


def program_folder(folders: Folders) -> Path:
    """Return the folder for PYTHONPATH of a job; `copy_program` creates it."""
    return folders.program(code_version())


def copy_program(folders: Folders) -> None:
    """Copy the program to its folder unless it exists; readable for user and group only, and complete or not at all.

    ReproError if the copy cannot be written, or if the folder has other contents.
    """
    package = {f"orchestrator/pretrain/{name}": content for name, content in _sources().items()}
    keep_files(program_folder(folders), {"orchestrator/__init__.py": _INIT, **package})


@cache
def _sources() -> Mapping[str, bytes]:
    """Return the contents of each source file by name; read once, so the copy matches `code_version`."""
    return source_files()


def _program(job: JobContext[PretrainSite], arguments: Sequence[str]) -> BoundProgram:
    package = str(program_folder(job.folders))
    python = job.site.python or ("python" if job.image.name else sys.executable)
    return BoundProgram(
        name=job.case.program,
        command=(python, "-u", "-m", "orchestrator.pretrain"),
        arguments=tuple(arguments),
        python=python,
        code=code_version(),
        image=job.image.name,
        image_path=job.image.path,
        image_digest=job.image.digest,
        python_path=package,
        mounts=(package,),
        environment=(("PYTHONSAFEPATH", "1"),),  # Python 3.11 and newer: nothing is imported from the working folder
        site_values=((python, job.field("python")),) if job.site.python else (),
        launcher="orchestrator.pretrain.launch",
    )


PROGRAM = PlannedProgram(
    name=PRETRAIN,
    about="the training program of this project, on megatron-core",
    site=PretrainSite,
    dialect="pretrain",
    memory=MemoryFacts(
        "flash",
        shards_optimizer=True,
        logit_bytes=2,
        keeps_gathered_keys=True,
        microbatch_slots=microbatch_slots,
    ),
    arguments=arguments,
    unsupported=_unsupported,
    program=_program,
    memory_measured=True,
    usable_share=USABLE_SHARE_PRETRAIN,
    tokens=lambda model, _: model.vocab if model.family == "llama" else None,  # it pads no other vocabulary
    exact_parameters=True,
    is_own=True,
    runs_on_cpu=True,
    write_files=copy_program,
    probe_folder=program_folder,
    exact_note=None,
    time=TimeFacts(
        records_graph=True,  # pretrain/graph.py
        skips_last_product=True,  # pretrain/activations.py
        keeps_keys=True,  # pretrain/layers.py
        sums_shared_embedding=True,
        overlaps_backward_communication=True,  # megatron-core's LinearWithGradAccumulationAndAsyncCommunication
        starts_step_by_host=True,
        # megatron-core's rotation in torch operations (rope_utils.py), in 16 bits: half negated 2, joined 4, both
        # multiplied 8, added 6, copied 4; backward multiplied 8, half negated 2, joined 4, added 6, zeros 2 and added 6
        rotary_bytes=(24, 28),
        # pretrain/layers.py: written 2, read for sums 2, read and overwritten by their gradient 4, read by both
        # products 4; the maximum of a split vocabulary is found in a pass of its own.
        logit_bytes=12,
        sharded_logit_bytes=2,
        accumulated_bytes=8,  # pretrain/rank.py: the product reads and writes the fp32 sum
        optimizer_bytes=42,  # no loss scale: the norm 4, Adam's 16 and 12, the 16-bit copy 6, the gradient zeroed 4
        # Importing torch and Megatron-Core, NCCL's connections, compiling: measured with megatron-core 0.16.1 on H200,
        # torch 2.11; assumed on other GPUs.
        start_up_s=25.0,
        # Measured on one, two and four GPUs of an H200 node, in bf16 and without dropout. Not measured, or only without
        # graphs on a slow host: pipelines of four stages at 2,048 tokens a microbatch, their virtual stages, context
        # parallelism over more than two, several nodes, dropout. One and four H100 were measured. H800 is H100 with
        # less NVLink.
        fitted_on={"H200": "GH100", "H100": "pretrain H100", "H800": "pretrain H100"},
        sites={"H200": (ONE_NODE,), "H100": (ONE_NODE,)},
        is_of_family=False,
    ),
)
