"""Tests of the arguments of Alpa's benchmark script against its published suite."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.errors import ReproError
from orchestrator.megatron.programs.megatron_2021 import SET_BY_SCRIPT, BenchmarkSite, import_root
from tests.cases import expand
from tests.unit.catalog.entries import find_case, shipped
from tests.unit.megatron.programs.places import arguments_of

# gpt_megatron_best_suite of osdi22_artifact/megatron/benchmark_gpt.py, alpa-projects/alpa at e0ae8bf849, as it is
# printed into the command line: by GPUs, with the models of benchmark/alpa/suite_paper_manual_gpt.py.
FIXED = "True, True, 'uniform_layer_gpipe', None)"
BEST = {
    1: f"('gpt', 128, 1024, 1024, 24, 16, 51200, 1, 1, 1, 1, 1, 8, False, {FIXED}",
    4: f"('gpt', 1024, 1024, 2048, 24, 32, 51200, 2, 1, 1, 1, 2, 128, False, {FIXED}",
    8: f"('gpt', 1024, 1024, 2560, 32, 32, 51200, 1, 1, 1, 1, 8, 128, False, {FIXED}",
    16: f"('gpt', 1024, 1024, 4096, 32, 32, 51200, 1, 2, 1, 2, 8, 256, False, {FIXED}",
    32: f"('gpt', 1024, 1024, 5120, 48, 40, 51200, 1, 4, 1, 4, 8, 256, False, {FIXED}",
}


# The flags that benchmark_gpt_one_case.py appends.
SCRIPT = """
--micro-batch-size N --tensor-model-parallel-size N --pipeline-model-parallel-size N --global-batch-size N
--num-layers N --hidden-size N --num-attention-heads N --seq-length N --max-position-embeddings N --optimizer adam
--train-iters 100 --lr 0.00015 --bert-no-binary-head --DDP-impl local --fp16 --loss-scale 8 --checkpoint-activations
"""


@pytest.mark.parametrize("gpus", BEST)
def test_best_layouts_have_the_published_arguments(gpus: int) -> None:
    assert arguments_of("megatron-alpa", find_case("alpa-gpt", f"gpus={gpus}")) == [BEST[gpus], "megatron_results_e2e"]


def test_script_computes_the_layout_of_each_case_from_its_tuple() -> None:
    for case in expand(shipped("alpa-search")):
        given = ast.literal_eval(arguments_of("megatron-alpa", case)[-2])  # the script itself uses eval
        batch, data, tensor, pipeline, microbatches = (given[i] for i in (1, 7, 8, 11, 12))
        assert data * tensor * pipeline == case.layout.gpus
        assert batch == case.layout.global_batch_size
        assert batch / data / microbatches == case.layout.micro_batch_size


def test_arguments_of_a_case_come_before_the_last_two() -> None:
    case = replace(find_case("alpa-gpt", "gpus=1"), arguments=("--seed", "7"))
    assert arguments_of("megatron-alpa", case) == ["--seed", "7", BEST[1], "megatron_results_e2e"]


def test_tuple_without_recomputation() -> None:
    case = find_case("alpa-gpt", "gpus=1")
    plain = replace(case, training=replace(case.training, recompute="none"))
    assert ast.literal_eval(arguments_of("megatron-alpa", plain)[0])[14] is False


@pytest.mark.parametrize(
    ("part", "change", "reason"),
    [
        ("model", {"family": "llama"}, "models other than dense GPT with a feed-forward layer of 4 x hidden"),
        ("model", {"ffn": 100}, "models other than dense GPT with a feed-forward layer of 4 x hidden"),
        ("training", {"recompute": "selective"}, "recomputation selective (only none, full)"),
        ("training", {"offload": 0.5}, "offloading"),
        ("training", {"loss_scale": 8192}, "arithmetic other than fp16 with a loss scale of 8"),
        ("training", {"dtype": "bf16"}, "arithmetic other than fp16 with a loss scale of 8"),
        ("training", {"dropout": 0.0}, "dropout other than 0.1"),
        ("training", {"ddp": "torch"}, "DDP torch"),
        ("training", {"attention": "flash"}, "flash attention"),
        ("training", {"scatter_gather": False}, "disabling scatter/gather"),
        ("training", {"evaluation_iterations": 5}, "evaluation"),
        *(
            (
                *("training", {"iterations": iterations, "warmup_iterations": warm_up}),
                f"{iterations} iterations with {warm_up} of warm-up (only 3 with 1, because its script sets them)",
            )
            for iterations, warm_up in ((5, 2), (3, 2), (4, 1))
        ),
        ("training", {"distributed_optimizer": True}, "the distributed optimizer"),
        ("layout", {"virtual_stages": 2}, "virtual stages"),
        ("layout", {"context_parallel": 2}, "context parallelism"),
        ("layout", {"tensor_parallel": 2, "sequence_parallel": True}, "sequence parallelism"),
    ],
)
def test_settings_that_the_script_lacks_are_refused(part: str, change: dict[str, Any], reason: str) -> None:
    case = find_case("alpa-gpt", "gpus=4")
    changed = replace(case, **{part: replace(getattr(case, part), **change)})
    with pytest.raises(ReproError) as caught:
        arguments_of("megatron-alpa", changed)
    assert str(caught.value) == f"gpus=4: megatron-alpa does not support {reason}"


def test_arguments_that_the_script_would_overwrite_are_refused() -> None:
    case = find_case("alpa-gpt", "gpus=4")
    for given in (["--train-iters", "5"], ["--lr=0.1"], ["--seed", "7", "--fp16"]):
        with pytest.raises(
            ReproError, match=r"does not support the argument --[a-z0-9-]+ \(its script sets it"
        ) as caught:
            arguments_of("megatron-alpa", replace(case, arguments=tuple(given)))
        assert str(caught.value).startswith("gpus=4: ") and str(caught.value).endswith("; leave it out)")
    assert set(SET_BY_SCRIPT) == {word for word in SCRIPT.split() if word.startswith("--")}


@pytest.mark.parametrize("checkout", ["megatron", "~/megatron", "$HOME/megatron"])
def test_folders_of_a_site_are_absolute_because_jobs_run_in_their_own_folder(checkout: str) -> None:
    with pytest.raises(ValidationError, match="must be an absolute path, because a job runs this program in its own"):
        BenchmarkSite(checkout=checkout, benchmark="/alpa/osdi22_artifact/megatron")
    with pytest.raises(ValidationError, match="must be an absolute path"):
        BenchmarkSite(checkout="/megatron", benchmark=f"{checkout}/osdi22_artifact/megatron")


def test_script_imports_from_its_own_checkout() -> None:
    assert import_root("/code/alpa/osdi22_artifact/megatron") == "/code/alpa"
