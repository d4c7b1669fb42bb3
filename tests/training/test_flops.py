"""Products of `pretrain` as torch counts them, compared with the formula."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from orchestrator.megatron.model import ModelShape, Recompute, computed_flops_per_iteration
from orchestrator.megatron.programs import find_megatron
from tests.training.launching import SMALL_MODEL, run_forked

MODELS = {
    "gpt": (ModelShape(4, 32, 4, 16, 64), ""),
    "llama": (
        ModelShape(4, 32, 4, 16, 64, ffn=80, kv_groups=2, family="llama"),
        "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
        " --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --ffn-hidden-size 80",
    ),
}
FLAGS: dict[Recompute, str] = {
    "none": "",
    "full": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "selective": "--recompute-granularity selective",
    "ours": "--recompute-norm --recompute-activation-func",
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Return the FLOPs of an iteration by model and recomputation.

    Unfused attention computes all scores; torch counts them.
    """
    runs = {
        f"{model} {recompute}": [*SMALL_MODEL, "--attention-backend", "unfused", *f"{shape} {flags}".split()]
        for model, (_, shape) in MODELS.items()
        for recompute, flags in FLAGS.items()
    }
    file = tmp_path_factory.mktemp("flops") / "runs.json"
    file.write_text(json.dumps(runs))
    (done,) = run_forked([["-m", "tests.training.counting_flops", str(file)]], [{}])
    assert done.exit_code == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("recompute", get_args(Recompute))
def test_products_of_an_iteration_equal_the_formula(counted: dict[str, int], model: str, recompute: Recompute) -> None:
    skips = find_megatron("pretrain").time.skips_last_product
    expected = computed_flops_per_iteration(
        MODELS[model][0], 8, recompute, causal_attention=False, skips_last_product=skips
    )
    assert counted[f"{model} {recompute}"] == expected
