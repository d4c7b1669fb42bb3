"""Every layout trains the same model as one process: losses and gradient norms over three iterations, fp32, CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.training.launching import (
    SMALL_MODEL,
    Step,
    plain_environments,
    read_record,
    run_forked,
)

TOLERANCE = 1e-5  # relative; another order of sums changes 1e-7

# Name -> flags that are added to the small model's. Names with "+untied" are compared with the untied reference, names
# that start with "llama" with the Llama of one process.
LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --ffn-hidden-size 88"
    " --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights "
)
OURS = "--recompute-norm --recompute-activation-func "
HALF, ALL = "--offload-activation-ratio 0.5 ", "--offload-activation-ratio 1 "
DROPOUT = "--hidden-dropout 0.1 --attention-dropout 0.1 "
ONE_PROCESS = {
    "reference": "",
    "reference+untied": "--untie-embeddings-and-output-weights",
    "recompute_full": "--recompute-granularity full",
    "recompute_two": "--recompute-granularity full --recompute-num-layers 2",
    "recompute_block": "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
    "recompute_selective": "--recompute-granularity selective",
    "unfused_attention": "--attention-backend unfused",
    "micro_batch_4": "--micro-batch-size 4",
    "dropout": DROPOUT,
    "dropout_full": DROPOUT + "--recompute-granularity full",
    "dropout_two": DROPOUT + "--recompute-granularity full --recompute-num-layers 2",
    "dropout_block": DROPOUT + "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
    "dropout_selective": DROPOUT + "--recompute-granularity selective",
    "bf16": "--bf16",
    "learning": "--lr 1e-2 --train-iters 20",
    "diverging": "--lr 1e30",
    "ours": OURS,
    "offload_all": ALL,
    "dropout_ours": DROPOUT + OURS + HALF,
    "llama": LLAMA,
    "llama_ours": LLAMA + OURS,
    "llama_ours_half": LLAMA + OURS + HALF,
    "llama_full": LLAMA + "--recompute-granularity full",
    "llama_selected": LLAMA + "--recompute-granularity selective --recompute-modules core_attn layernorm",
    "llama_mlp": LLAMA + "--recompute-granularity selective --recompute-modules mlp",
    "llama_micro_batch_4": LLAMA + "--micro-batch-size 4",
    "llama_bf16": LLAMA + "--bf16",
    "llama_bf16_ours": LLAMA + "--bf16 " + OURS + HALF,
}
SAME_MODEL = (
    *("recompute_selective", "unfused_attention", "micro_batch_4"),
    *("llama_selected", "llama_mlp", "llama_micro_batch_4"),
)
# Collectives in each layer take most of the time, so these microbatches are larger. There are still two or more.
MBS2, MBS4 = "--micro-batch-size 2 ", "--micro-batch-size 4 "
TP2, TP4 = "--tensor-model-parallel-size 2 " + MBS2, "--tensor-model-parallel-size 4 " + MBS4
CP2, CP4 = "--context-parallel-size 2 " + MBS2, "--context-parallel-size 4 " + MBS4
PP2, PP4 = "--pipeline-model-parallel-size 2 ", "--pipeline-model-parallel-size 4 "
SP, VPP2 = "--sequence-parallel ", "--num-virtual-stages-per-pipeline-rank 2 "
SHARDED = "--use-distributed-optimizer "
OVERLAP = SHARDED + "--overlap-grad-reduce --overlap-param-gather "
FULL, SELECTIVE = "--recompute-granularity full ", "--recompute-granularity selective "
TWO, BLOCK = FULL + "--recompute-num-layers 2 ", FULL + "--recompute-method block --recompute-num-layers 2 "
FOUR_PROCESSES = {
    "dp4": "",
    "dp4_sharded_overlap": OVERLAP,
    "tp2_dp2": TP2,
    "tp4_sp": TP4 + SP,
    "tp2_sp_dp2": TP2 + SP,
    "tp2_sp_dp2_full": TP2 + SP + FULL,
    "tp2_sp_dp2_block": TP2 + SP + BLOCK,
    "tp2_sp_dp2_selective": TP2 + SP + SELECTIVE,
    "pp2_dp2": PP2,
    "pp2_dp2+untied": PP2 + "--untie-embeddings-and-output-weights",
    "pp4_full": PP4 + FULL,
    "pp2_vpp2_dp2": PP2 + VPP2,
    "pp2_vpp2_dp2_sharded_overlap": PP2 + VPP2 + OVERLAP,
    "tp2_pp2": TP2 + PP2,
    "tp2_sp_pp2_vpp2_full": TP2 + SP + PP2 + VPP2 + FULL,
    "cp4": CP4,
    "cp2_dp2_sharded": CP2 + SHARDED,
    "cp2_tp2_sp": CP2 + TP2 + SP + MBS4,
    "cp2_pp2_vpp2_selective": CP2 + PP2 + VPP2 + SELECTIVE,
    "llama_tp2_dp2": LLAMA + TP2,
    "llama_tp2_sp_dp2": LLAMA + TP2 + SP,
    "llama_tp2_sp_dp2_ours": LLAMA + TP2 + SP + OURS,
    "llama_pp2_dp2": LLAMA + PP2,
    "llama_pp4": LLAMA + PP4,
    "llama_pp4_ours_half": LLAMA + PP4 + OURS + HALF,
    "llama_pp2_vpp2_dp2": LLAMA + PP2 + VPP2,
    "llama_pp2_vpp2_dp2_half": LLAMA + PP2 + VPP2 + HALF,
    "llama_pp2_vpp2_dp2_ours_all": LLAMA + PP2 + VPP2 + OURS + ALL,
    "llama_cp2_dp2": LLAMA + CP2,
    "llama_cp2_tp2_sp": LLAMA + CP2 + TP2 + SP + MBS4,
    "llama_cp4_ours_half": LLAMA + CP4 + OURS + HALF,
    "llama_cp2_pp2_vpp2_selective": LLAMA + CP2 + PP2 + VPP2 + SELECTIVE,
}
# Recomputation or offloading, and the same run without.
EXACTLY = {
    "recompute_full": "reference",
    "recompute_two": "reference",
    "recompute_block": "reference",
    "dropout_full": "dropout",
    "dropout_two": "dropout",
    "dropout_block": "dropout",
    "llama_full": "llama",
    "tp2_sp_dp2_full": "tp2_sp_dp2",
    "tp2_sp_dp2_block": "tp2_sp_dp2",
    "dropout_tp2_sp_dp2_two": "dropout_tp2_sp_dp2",
    "ours": "reference",
    "offload_all": "reference",
    "dropout_ours": "dropout",
    "llama_ours": "llama",
    "llama_ours_half": "llama",
    "llama_bf16_ours": "llama_bf16",
    "llama_tp2_sp_dp2_ours": "llama_tp2_sp_dp2",
    "llama_pp4_ours_half": "llama_pp4",
    "llama_pp2_vpp2_dp2_half": "llama_pp2_vpp2_dp2",
    "llama_pp2_vpp2_dp2_ours_all": "llama_pp2_vpp2_dp2",
}
DROPPING = {
    "dropout_tp2_sp_dp2": DROPOUT + TP2 + SP,
    "dropout_tp2_sp_dp2_two": DROPOUT + TP2 + SP + TWO,
}
# Pipelines with recorded passes, and the same runs without graphs. On a CPU recording is simulated.
GRAPHED = {
    "graphs_pp2_dp2": (PP2, "pp2_dp2"),
    "graphs_pp2_dp2+untied": (PP2 + "--untie-embeddings-and-output-weights", "pp2_dp2+untied"),
    "graphs_pp4_full": (PP4 + FULL, "pp4_full"),
    "graphs_pp2_vpp2_dp2": (PP2 + VPP2, "pp2_vpp2_dp2"),
    "graphs_tp2_pp2": (TP2 + PP2, "tp2_pp2"),
    "graphs_tp2_sp_pp2_vpp2_full": (TP2 + SP + PP2 + VPP2 + FULL, "tp2_sp_pp2_vpp2_full"),
    "graphs_cp2_pp2_vpp2_selective": (CP2 + PP2 + VPP2 + SELECTIVE, "cp2_pp2_vpp2_selective"),
    "graphs_llama_pp4": (LLAMA + PP4, "llama_pp4"),
    "graphs_llama_pp2_vpp2_dp2": (LLAMA + PP2 + VPP2, "llama_pp2_vpp2_dp2"),
}
FAULTY = {
    "batched_interleaved": PP2 + VPP2,
    "two_loss_outputs": CP2,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Step]]:
    """Return all runs by name: one process for the first, one group of four for the rest."""
    folder = tmp_path_factory.mktemp("agreement")
    _train(ONE_PROCESS, 1, folder)
    of_four = FOUR_PROCESSES | DROPPING | FAULTY | {name: flags for name, (flags, _) in GRAPHED.items()}
    _train(of_four, 4, folder)
    return {name: read_record(folder / f"{name}.jsonl") for name in (*ONE_PROCESS, *of_four)}


def _train(runs: dict[str, str], world_size: int, folder: Path) -> None:
    """Train all runs in one group of processes. Each leaves a record of its name in the folder."""
    plan = folder / f"runs_of_{world_size}.json"
    entries = {
        name: {
            "flags": [*SMALL_MODEL, *flags.split()],
            "fault": name if name in FAULTY else None,
            "graphs": name in GRAPHED,
        }
        for name, flags in runs.items()
    }
    plan.write_text(json.dumps(entries))
    command = ["-m", "tests.training.worker", str(plan), str(folder)]
    for rank, finished in enumerate(run_forked([command] * world_size, plain_environments(world_size))):
        assert finished.exit_code == 0, f"rank {rank}: {finished.stderr}"


def _differences(steps: list[Step], reference: list[Step]) -> list[float]:
    """Return the relative differences of every loss and gradient norm."""
    pairs = [
        pair
        for step, expected in zip(steps, reference, strict=True)
        for pair in ((step.loss, expected.loss), (step.grad_norm, expected.grad_norm))
    ]
    return [abs(value - expected) / abs(expected) for value, expected in pairs]


@pytest.mark.parametrize("name", [*FOUR_PROCESSES, *SAME_MODEL])
def test_each_layout_trains_the_same_model_as_one_process(name: str, records: dict[str, list[Step]]) -> None:
    assert max(_differences(records[name], records[_reference_of(name)])) < TOLERANCE


def _reference_of(name: str) -> str:
    if name.startswith("llama"):
        return "llama"
    return "reference+untied" if name.endswith("+untied") else "reference"


@pytest.mark.parametrize("name", EXACTLY)
def test_recomputation_and_offloading_change_no_digit(name: str, records: dict[str, list[Step]]) -> None:
    assert _numbers(records[name]) == _numbers(records[EXACTLY[name]])


@pytest.mark.parametrize("name", GRAPHED)
def test_recorded_passes_train_the_same_model_as_eager_passes(name: str, records: dict[str, list[Step]]) -> None:
    assert max(_differences(records[name], records[GRAPHED[name][1]])) < TOLERANCE


def _numbers(steps: list[Step]) -> list[tuple[float, float]]:
    return [(step.loss, step.grad_norm) for step in steps]


@pytest.mark.parametrize("fault", FAULTY)
def test_settings_with_wrong_gradients_fail_the_comparison(fault: str, records: dict[str, list[Step]]) -> None:
    assert max(_differences(records[fault], records["reference"])) > 100 * TOLERANCE


def test_selective_recomputation_repeats_the_dropout_of_the_forward_pass(records: dict[str, list[Step]]) -> None:
    assert max(_differences(records["dropout_selective"], records["dropout"])) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "without"),
    [("dropout", "reference"), ("dropout_tp2_sp_dp2", "reference"), ("dropout_tp2_sp_dp2", "dropout")],
)
def test_dropout_changes_losses_and_differs_between_ranks(
    name: str, without: str, records: dict[str, list[Step]]
) -> None:
    assert max(_differences(records[name], records[without])) > 100 * TOLERANCE


def test_training_lowers_the_loss(records: dict[str, list[Step]]) -> None:
    losses = [step.loss for step in records["learning"]]
    assert losses[-1] < losses[0] - 0.2


def test_bf16_losses_are_close_to_fp32_and_not_equal(records: dict[str, list[Step]]) -> None:
    differences = _differences(records["bf16"], records["reference"])
    assert 0 < max(differences) < 0.05


def test_a_diverging_run_counts_nan_iterations_and_continues(records: dict[str, list[Step]]) -> None:
    first, *later = records["diverging"]
    assert math.isfinite(first.loss) and first.nan == 0
    assert len(later) == 2 and all(step.nan == 1 for step in later)
