"""Experiments of Alpa: cases, model shapes and reference results of its artifact."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.claims import PeakClaim
from orchestrator.catalog.experiment import scale_names
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.model import ModelShape, flops_per_iteration, tflops_per_gpu
from orchestrator.megatron.programs.megatron_2021 import ITERATIONS, WARM_UP
from orchestrator.megatron.rules import Dialect, RuleContext, broken_rules
from tests.cases import expand
from tests.unit.catalog.entries import shipped

# suite_paper_manual_gpt.py at e0ae8bf849: layers, hidden, heads; billions of parameters by its own formula.
MODELS = {
    "125M": (12, 768, 12, 0.124409),
    "350M": (24, 1024, 16, 0.354740),
    "760M": (24, 1536, 16, 0.758577),
    "1.3B": (24, 2048, 32, 1.313409),
    "2.6B": (32, 2560, 32, 2.648607),
    "6.7B": (32, 4096, 32, 6.653659),
    "15B": (48, 5120, 40, 15.364393),
    "39B": (48, 8192, 64, 39.078513),
    "76B": (60, 10240, 80, 76.028570),
}
# The best case for each number of GPUs: model, batch, dp, tmp, pp, number of microbatches; TFLOP/s per GPU of
# results_e2e_ref.tsv; seconds per step, PFLOP/s of all and whether the layout is known, all of them derived.
BEST = {
    1: ("350M", 128, 1, 1, 1, 8, 47.53, 8.640, 0.04753, True),
    4: ("1.3B", 1024, 2, 1, 2, 128, 55.89, 52.054, 0.22356, True),
    8: ("2.6B", 1024, 1, 1, 8, 128, 50.44, 57.848, 0.40352, True),
    16: ("6.7B", 1024, 1, 2, 8, 256, 56.59, 63.631, 0.90544, True),
    32: ("15B", 1024, 1, 4, 8, 256, 58.24, 71.115, 1.86368, True),
    64: ("39B", 1024, 1, 4, 16, 1024, 57.84, 90.134, 3.70176, False),
}
# The manual search's lists: rows, those in groups for Alpa only, the sum of their line numbers and of their numbers of
# microbatches.
LISTS = {
    (1, "125M"): (7, 0, 665, 11),
    (1, "350M"): (7, 0, 728, 18),
    (2, "350M"): (20, 6, 2530, 314),
    (2, "760M"): (21, 12, 3386, 586),
    (4, "760M"): (40, 5, 8322, 738),
    (4, "1.3B"): (33, 9, 8921, 1136),
    (8, "1.3B"): (60, 6, 20757, 966),
    (8, "2.6B"): (49, 5, 21171, 1482),
    (16, "2.6B"): (80, 18, 42824, 2218),
    (16, "6.7B"): (38, 8, 24188, 2735),
    (32, "6.7B"): (52, 0, 37067, 2652),
    (32, "15B"): (27, 0, 20663, 2547),
    (64, "39B"): (2, 0, 1681, 1536),
}
# Lines whose comment says OOM: 760M with tmp 4 and with pp 4 at microbatches of 32.
OUT_OF_MEMORY = {192, 193, 194, 196, 202, 203, 204, 206, 208, 210}
# Line of a comment that limits the data-parallel size of Megatron-LM: the rows that it excludes.
EXCLUDED = {
    142: {146, 147},
    178: {187},
    244: {245, 302},
    392: {397, 424},
    470: {473, 476, 477, 480},
    506: {508, 509, 510},
    596: {599, 610, 613, 616, 617},
    669: {768, 770, 774, 777, 780, 783},
    731: {818, 821, 824},
}
ALPA_ONLY = "listed for Alpa only"
DIALECTS: dict[str, Dialect] = {"megatron-alpa": "2021", "pretrain": "pretrain"}


def alpa_parameters(model: ModelShape) -> float:
    """Return the parameters of a GPT as Alpa's benchmark counts them: no positions, and a bias of the output layer."""
    layer = 12 * model.hidden**2 + 11 * model.hidden
    return model.layers * layer + model.vocab * (model.hidden + 1)


def line_of(case: TrainingCase) -> int:
    return int(str(case.value("case")).removeprefix("L"))


def test_the_models_have_the_artifacts_shapes_and_numbers_of_parameters() -> None:
    models = shipped("alpa-gpt").paper.models
    assert list(models) == list(MODELS)
    for name, (layers, hidden, heads, billions) in MODELS.items():
        fields: dict[str, Any] = {**models[name]}
        assert fields == {"layers": layers, "hidden": hidden, "heads": heads, "seq": 1024, "vocab": 51200}
        assert alpa_parameters(ModelShape(**fields)) / 1e9 == pytest.approx(billions, abs=1e-6)


def test_the_best_cases_are_the_artifacts() -> None:
    cases = expand(shipped("alpa-gpt"))
    assert [case.layout.gpus for case in cases] == list(BEST)
    for case, (model, gbs, dp, tp, pp, microbatches, *_) in zip(cases, BEST.values(), strict=True):
        layout = case.layout
        assert (case.value("model"), layout.global_batch_size, layout.data_parallel) == (model, gbs, dp)
        assert (layout.tensor_parallel, layout.pipeline_parallel, layout.microbatches) == (tp, pp, microbatches)
        assert layout.virtual_stages == 1
    unknown = [case for case in cases if case.note and "unconfirmed" in case.note]
    assert [case.layout.gpus for case in unknown] == [64]


@pytest.mark.parametrize("name", ["alpa-gpt", "alpa-search"])
def test_cases_are_trained_as_the_benchmark_trains(name: str) -> None:
    for case in expand(shipped(name)):
        training = case.training
        assert (training.dtype, training.loss_scale, training.recompute, training.ddp) == ("fp16", 8, "full", "local")
        assert (case.program, case.gpu_memory_gb) == ("megatron-alpa", 16)
        assert (training.iterations, training.warmup_iterations) == (ITERATIONS, WARM_UP)


def test_published_throughput_is_the_reference_files_and_recomputation_counts_in_it() -> None:
    for case, (*_, rate, seconds, pflops, confirmed) in zip(expand(shipped("alpa-gpt")), BEST.values(), strict=True):
        points = {point.metric: point for point in case.published}
        assert {metric: (point.how, point.value, point.confirmed) for metric, point in points.items()} == {
            "tflops_per_gpu": ("printed", rate, confirmed),
            "aggregate_pflops": ("derived", pflops, confirmed),
        }
        assert pflops == pytest.approx(rate * case.layout.gpus / 1e3)
        flops = flops_per_iteration(case.model, case.layout.global_batch_size, recompute_all=True)
        assert tflops_per_gpu(flops, seconds * 1e3, case.layout.gpus) == pytest.approx(rate, rel=1e-3)


def test_the_search_has_every_candidate_of_the_suite_once_in_its_order() -> None:
    cases = expand(shipped("alpa-search"))
    assert len(cases) == 436
    lines = [line_of(case) for case in cases]
    assert len(set(lines)) == len(lines)
    groups: dict[tuple[int, str], list[TrainingCase]] = {}
    for case in cases:
        groups.setdefault((case.layout.gpus, str(case.value("model"))), []).append(case)
    assert list(groups) == list(LISTS)
    for group, (count, alpa_only, sum_of_lines, microbatches) in LISTS.items():
        rows = groups[group]
        assert (len(rows), sum((row.note or "").startswith(ALPA_ONLY) for row in rows)) == (count, alpa_only), group
        assert [line_of(row) for row in rows] == sorted(line_of(row) for row in rows), group
        assert sum(line_of(row) for row in rows) == sum_of_lines, group
        assert sum(row.layout.microbatches for row in rows) == microbatches, group


def test_every_candidate_fills_its_gpus_with_whole_microbatches() -> None:
    for case in expand(shipped("alpa-search")):
        given, layout = case.settings, case.layout
        assert int(case.number("dp") * case.number("tp") * case.number("pp")) == given["gpus"] == layout.gpus
        samples = layout.data_parallel * layout.micro_batch_size
        assert layout.global_batch_size % samples == 0, case.name


def test_the_authors_comments_stay_with_their_rows() -> None:
    cases = {line_of(case): case for case in expand(shipped("alpa-search"))}
    excluded = {line: comment for comment, lines in EXCLUDED.items() for line in lines}
    expected = {line: case.expected for line, case in cases.items() if case.expected is not None}
    assert expected.keys() == OUT_OF_MEMORY | excluded.keys()
    assert {cases[line].value("model") for line in OUT_OF_MEMORY} == {"760M"}
    assert {cases[line].layout.micro_batch_size for line in OUT_OF_MEMORY} == {32}
    for line, comment in excluded.items():
        assert f"comment in line{'s' if comment == 142 else ''} {comment}" in expected[line].source
        assert expected[line].confirmed == (comment == 142)
    marked = {line for line, case in cases.items() if case.note and case.note.startswith(ALPA_ONLY)}
    assert (len(marked), marked & OUT_OF_MEMORY) == (69, set())
    assert {line: case.note for line, case in cases.items() if case.note and line not in marked} == {
        607: 'the suite\'s comment is "cannot run because of bugs"',
        812: 'the suite\'s comment is "buggy"',
    }


def test_the_best_cases_are_candidates_with_claims() -> None:
    entry = shipped("alpa-search")
    candidates = {(case.model, case.layout) for case in expand(entry)}
    best = {case.layout.gpus: case for case in expand(shipped("alpa-gpt"))}
    assert all((case.model, case.layout) in candidates for case in best.values())
    claims = [claim for claim in entry.experiment.claims if isinstance(claim, PeakClaim)]
    assert {claim.where["gpus"] for claim in claims} == {4, 8, 16, 32}
    for claim in claims:
        where = claim.where
        assert where.items() <= best[int(where["gpus"])].settings.items()
        assert claim.at.items() <= best[int(where["gpus"])].settings.items()
        assert len(select(expand(entry), where)) > 1, "a peak among one case says nothing"


@pytest.mark.parametrize("name", ["alpa-gpt", "alpa-search"])
def test_every_case_at_every_scale_can_run_and_has_a_name_to_filter_for(name: str) -> None:
    entry = shipped(name)
    for scale in scale_names(entry.experiment):
        cases = expand(entry, scale)
        for case in cases:
            setting = RuleContext(case.model, case.layout, case.training, DIALECTS[case.program], case.arguments)
            assert [reason for _, reason in broken_rules(setting)] == [], (scale, case.name)
            assert case.training.iterations > case.training.warmup_iterations + 1
        assert select(cases, parse_where(cases[-1].name, MEGATRON.axes)) == [cases[-1]]


def test_smaller_scales_are_the_rows_of_one_node_with_smaller_batches_or_models() -> None:
    entry = shipped("alpa-gpt")
    published = {case.layout.gpus: case for case in expand(entry)}
    for scale, device in (("quad", "gpu"), ("cpu", "cpu")):
        cases = expand(entry, scale)
        assert [(case.layout.gpus, case.device, case.program) for case in cases] == [
            (1, device, "pretrain"),
            (4, device, "pretrain"),
        ]
        for case in cases:
            large = published[case.layout.gpus]
            assert case.layout.data_parallel == large.layout.data_parallel
            assert case.layout.pipeline_parallel == large.layout.pipeline_parallel
            assert case.layout.global_batch_size <= large.layout.global_batch_size
            assert (case.model == large.model) == (scale == "quad")
            assert not case.published


def test_the_machine_is_the_papers_which_has_no_bf16() -> None:
    paper = shipped("alpa-gpt").paper
    assert paper.machine is not None
    machine = paper.machine
    assert (machine.nodes, machine.gpus_per_node, machine.gpu_memory_gb) == (8, 8, 16)
    assert machine.peak_tflops == {"fp16": 125, "fp32": 15.7}
    assert (machine.nvlink_gb_s, machine.network_gb_s) == (150, 25 / 8 / 8)
    assert paper.code["megatron-alpa"].commit == "c28bbd208d16ffea61fa3c545e66b3a9d87f9d84"
