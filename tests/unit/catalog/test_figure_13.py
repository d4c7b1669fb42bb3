"""Shipped figure 13: the paper's scripts, and the smaller scales."""

from __future__ import annotations

import pytest

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.claims import GainClaim, PeakClaim
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import ModelShape
from orchestrator.megatron.rules import RuleContext, broken_rules
from tests.cases import expand
from tests.unit.catalog.entries import shipped

# run_figure_13.sh at 6985e58938: pipeline- and tensor-parallel size, global batch; data-parallel, microbatch,
# microbatches, GPUs and nodes of 8 are the same arithmetic in every point: 1, 1, the batch, 64 and 8.
POINTS = [
    (2, 32, 32),
    (2, 32, 128),
    (4, 16, 32),
    (4, 16, 128),
    (8, 8, 32),
    (8, 8, 128),
    (16, 4, 32),
    (16, 4, 128),
    (32, 2, 32),
    (32, 2, 128),
]


def test_the_ten_points_are_those_of_the_published_scripts_in_their_order() -> None:
    cases = expand(shipped())
    assert [(c.value("pp"), c.value("tp"), c.value("gbs")) for c in cases] == POINTS
    for case, (pp, tp, gbs) in zip(cases, POINTS, strict=True):
        layout = case.layout
        assert (layout.pipeline_parallel, layout.tensor_parallel, layout.global_batch_size) == (pp, tp, gbs)
        assert (layout.data_parallel, layout.micro_batch_size, layout.microbatches) == (1, 1, gbs)
        assert (layout.gpus, layout.gpus // 8, layout.virtual_stages, layout.context_parallel) == (64, 8, 1, 1)
        assert case.model == ModelShape(layers=32, hidden=20480, heads=128, seq=2048, vocab=51200)
        assert (case.training.dtype, case.training.loss_scale, case.training.recompute) == ("fp16", 8192, "full")
        assert (case.program, case.device, case.time_limit, case.gpu_memory_gb) == (
            "megatron-2021",
            "gpu",
            "0:30:00",
            80,
        )


def test_cases_have_names_to_filter_for_and_names_for_files() -> None:
    case = expand(shipped())[4]
    assert (case.name, case.slug, case.experiment, case.scale) == (
        "pp=8,tp=8,gbs=32",
        "pp8-tp8-gbs32",
        "sc21/figure-13",
        PAPER,
    )
    assert select(expand(shipped()), parse_where(case.name, MEGATRON.axes)) == [case]


@pytest.mark.parametrize("scale", ["paper", "quad", "pair", "cpu"])
def test_every_scale_keeps_the_trade_off_of_pipeline_against_tensor(scale: str) -> None:
    entry = shipped()
    cases = expand(entry, scale)
    gpus = {case.layout.gpus for case in cases}
    assert len(gpus) == 1
    (size,) = gpus
    assert all(case.number("pp") * case.number("tp") == size for case in cases)
    assert len({case.value("pp") for case in cases}) == {64: 5, 4: 3, 2: 2}[size]
    assert len({case.value("gbs") for case in cases}) == 2
    for case in cases:
        assert broken_rules(RuleContext(case.model, case.layout, case.training)) == []
        assert case.training.iterations > case.training.warmup_iterations + case.training.log_interval
    small, large = min_max(cases)
    assert large.layout.global_batch_size == 4 * small.layout.global_batch_size
    assert small.layout.bubble() == pytest.approx(4 * large.layout.bubble())


def min_max(cases: list[TrainingCase]) -> tuple[TrainingCase, TrainingCase]:
    deepest = max(case.value("pp") for case in cases)
    there = sorted((c for c in cases if c.value("pp") == deepest), key=lambda case: case.value("gbs"))
    return there[0], there[-1]


def test_smaller_scales_change_what_they_name_and_keep_the_rest() -> None:
    quad, pair, cpu = (expand(shipped(), scale) for scale in ("quad", "pair", "cpu"))
    assert (len(quad), len(pair), len(cpu)) == (6, 4, 6)
    assert {c.layout.micro_batch_size for c in quad + pair + cpu} == {1}
    assert {c.training.recompute for c in quad + pair + cpu} == {"full"}
    assert {c.device for c in quad + pair} == {"gpu"} and {c.device for c in cpu} == {"cpu"}
    assert {c.training.dtype for c in cpu} == {"fp32"} and {c.training.dtype for c in quad + pair} == {"bf16"}


def test_scales_are_listed_largest_first_and_paper_is_one_of_them() -> None:
    assert scale_names(shipped().experiment) == ["paper", "quad", "pair", "cpu"]


def test_claims_have_their_sources_and_plotted_numbers_are_not_called_printed() -> None:
    experiment = shipped().experiment
    assert all(claim.source for claim in experiment.claims)
    assert [type(claim) for claim in experiment.claims if isinstance(claim, (PeakClaim, GainClaim))] == [
        PeakClaim,
        GainClaim,
    ]
    assert {(point.how, point.error) for point in experiment.published} == {("traced from the plot", 0.5)}
    drawn = [point.where for point in experiment.published]
    assert all(len(select(expand(shipped()), where)) == 1 for where in drawn)


def test_the_note_about_the_factor_of_2_has_the_ratio_of_the_published_points() -> None:
    experiment = shipped().experiment
    (note,) = [note for note in experiment.notes if "factor of up to 2" in note]
    for gbs in (32, 128):
        rates = [point.value for point in experiment.published if point.where["gbs"] == gbs]
        assert f"have {max(rates) / min(rates):.2f} (best over worst)" in note
