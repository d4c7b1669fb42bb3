"""Experiments of ATC'24: the scripts of the artifact and the tables of its README."""

from __future__ import annotations

import pytest

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.claims import RatioClaim
from orchestrator.catalog.experiment import PublishedPoint, scale_names
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts, estimate_memory, solve_offload
from orchestrator.megatron.model import ModelShape, model_flops_utilization, padded_vocabulary
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.base import USABLE_SHARE
from orchestrator.megatron.rules import Dialect, RuleContext, broken_rules
from tests.cases import expand
from tests.unit.catalog.entries import shipped

# examples/atc24/llama-* at atc24ae-1.0.0: layers, hidden, heads (hidden / 128), feed-forward, key-value groups.
MODELS = {
    "llama-7b": (32, 4096, 32, 11008, None),
    "llama-65b": (80, 8192, 64, 22016, None),
    "llama-175b": (96, 12288, 96, 32768, None),
    "llama2-70b": (80, 8192, 64, 28672, 8),
}
# Scripts 1 to 9 and the README's tables, one job a line: implementation, model, sequence length, GPUs, global batch,
# tp, cp, pp, virtual stages (layers / (pp x PP_l)), dp, microbatches, recomputation, offload; last what is published
# for it: bytes in figure 7, tokens per second in figure 9.
JOBS = {
    "atc-demo": """\
kwai llama-7b 12288 4 16 1 1 4 8 1 16 full 0.0 -
kwai llama-7b 12288 4 16 1 1 4 8 1 16 ours 0.1 -
jan-2024 llama-7b 12288 4 16 1 1 4 8 1 16 full 0.0 -
kwai llama-7b 12288 4 16 1 1 4 8 1 16 none 0.0 oom
""",
    "atc-table-8": """\
kwai llama-175b 8192 256 256 2 2 16 6 4 64 full 0.0 -
kwai llama-175b 8192 256 256 4 1 8 6 8 32 ours 0.63 -
jan-2024 llama-175b 8192 256 256 2 2 16 6 4 64 full 0.0 -
kwai llama-175b 8192 256 256 2 2 16 6 4 64 none 0.0 oom
""",
    "atc-figure-7": """\
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.0 oom
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.1 oom
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.2 oom
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.3 72762730496
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.4 66951784960
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.5 61136119808
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.6 55733856256
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.7 50331592704
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.8 45824813056
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 0.9 39527328256
kwai llama-65b 8192 256 256 2 2 8 5 8 32 none 1.0 34491172352
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.0 65330982400
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.1 62128631296
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.2 58907405824
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.3 55554059776
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.4 52089073152
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.5 48604098048
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.6 45722611200
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.7 42832735744
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.8 38925740032
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 0.9 36144916480
kwai llama-65b 8192 256 256 2 2 8 5 8 32 ours 1.0 32462145024
""",
    "atc-figure-9": """\
kwai llama-175b 4096 256 256 2 2 16 6 4 64 none 0.522 97577
kwai llama-175b 4096 240 240 4 1 12 8 5 48 none 0.276 85924
kwai llama-175b 4096 192 240 2 2 24 4 2 120 none 0.41 76130
kwai llama-175b 4096 160 240 4 1 8 6 5 48 ours 0.334 59169
kwai llama-175b 4096 144 252 4 1 6 8 6 42 ours 0.746 56637
kwai llama-175b 4096 128 256 2 1 16 6 4 64 ours 0.751 54968
kwai llama-175b 4096 120 270 4 1 6 8 5 54 ours 0.851 45761
kwai llama-175b 4096 96 264 4 1 12 4 2 132 ours 0.324 41048
kwai llama-175b 4096 64 272 4 1 8 12 2 136 ours 0.979 27708
kwai llama-175b 4096 48 264 4 1 12 8 1 264 ours 0.999 20685
kwai llama-65b 4096 256 256 2 1 8 5 16 16 none 0.355 233981
kwai llama-65b 4096 240 240 2 1 10 4 12 20 none 0.302 219415
kwai llama-65b 4096 200 250 4 1 5 4 10 25 none 0.0 179819
kwai llama-65b 4096 192 240 4 1 8 5 6 40 none 0.0 180303
kwai llama-65b 4096 160 240 2 1 10 4 8 30 none 0.331 158984
kwai llama-65b 4096 128 256 2 1 8 5 8 32 ours 0.0 132357
kwai llama-65b 4096 120 240 2 1 5 8 12 20 ours 0.383 121488
kwai llama-65b 4096 112 252 4 1 4 5 7 36 none 0.0 99046
kwai llama-65b 4096 96 240 2 1 8 5 6 40 ours 0.035 96758
kwai llama-65b 4096 80 240 2 1 10 4 4 60 ours 0.0 87396
kwai llama-65b 4096 64 256 2 1 8 5 4 64 ours 0.162 71884
kwai llama-65b 4096 56 252 2 1 4 10 7 36 ours 0.945 52219
kwai llama-65b 4096 48 264 2 1 8 5 3 88 ours 0.29 51124
kwai llama-65b 4096 40 260 2 1 5 8 4 65 ours 0.815 45716
kwai llama-65b 4096 32 272 2 1 8 5 2 136 ours 0.544 36740
kwai llama2-70b 8192 256 256 2 4 8 5 4 64 none 0.0 229338
kwai llama2-70b 8192 240 270 2 4 10 4 3 90 none 0.0 217316
kwai llama2-70b 8192 224 252 2 4 4 5 7 36 ours 0.352 192634
kwai llama2-70b 8192 200 250 2 2 5 8 10 25 ours 0.368 182038
kwai llama2-70b 8192 192 264 2 4 8 5 3 88 none 0.0 177032
kwai llama2-70b 8192 160 260 2 4 10 4 2 130 none 0.0 148456
kwai llama2-70b 8192 144 252 2 2 4 10 9 28 ours 0.755 124599
kwai llama2-70b 8192 128 256 2 2 8 5 4 64 ours 0.012 122265
kwai llama2-70b 8192 120 270 2 2 5 8 6 45 ours 0.46 114817
kwai llama2-70b 8192 112 252 2 2 4 10 7 36 ours 0.811 100242
kwai llama2-70b 8192 96 264 2 2 8 5 3 88 ours 0.08 91488
kwai llama2-70b 8192 80 260 2 2 10 4 2 130 ours 0.024 78698
kwai llama2-70b 8192 64 256 2 1 8 5 4 64 ours 0.654 65302
kwai llama2-70b 8192 48 264 2 1 8 5 3 88 ours 0.722 47755
kwai llama2-70b 8192 40 260 2 1 10 4 2 130 ours 0.713 41182
kwai llama2-70b 8192 32 272 2 1 8 5 2 136 ours 0.858 33262
""",
}
# README, "expected performance": tokens per second per GPU and MFU in percent.
THROUGHPUT = {
    ("atc-demo", "baseline"): {"A800": (3016, 47.7), "H800": (6639, 33.1)},
    ("atc-demo", "ours"): {"A800": (3803, 60.1), "H800": (8273, 41.2)},
    ("atc-demo", "origin"): {"A800": (2847, 45.0), "H800": (6138, 30.6)},
    ("atc-table-8", "baseline"): {"H800": (299, 33.4)},
    ("atc-table-8", "ours"): {"H800": (387, 43.2)},
    ("atc-table-8", "origin"): {"H800": (278, 31.0)},
}
PEAK_TFLOPS = {"A800": 312.0, "H800": 989.4}
DIALECTS: dict[str, Dialect] = {"megatron-kwai": "kwai", "megatron-jan-2024": "2024", "pretrain": "pretrain"}
# README, "Artifact Claims": the five of the demo, then those of figure 7, table 8 and figure 9.
CLAIMS = {
    "atc-demo": {"demo claim 1", "demo claim 2", "demo claim 3", "demo claim 4", "demo claim 5"},
    "atc-figure-7": {"claim 1"},
    "atc-table-8": {"claim 2"},
    "atc-figure-9": {"claim 3"},
}


def described(case: TrainingCase) -> str:
    """Return a case as a line of JOBS, without the last column."""
    model, layout, training = case.model, case.layout, case.training
    sizes = (layout.tensor_parallel, layout.context_parallel, layout.pipeline_parallel, layout.virtual_stages)
    values = [case.program.removeprefix("megatron-"), case.value("model"), model.seq, layout.gpus]
    values += [layout.global_batch_size, *sizes, layout.data_parallel, layout.microbatches]
    return " ".join(map(str, [*values, training.recompute, training.offload]))


def outcomes(case: TrainingCase, metric: str) -> str:
    """Return the published result of a case, as in the last column of JOBS."""
    if case.expected is not None:
        assert not case.published
        return case.expected.outcome
    return next((f"{point.value:.0f}" for point in case.published if point.metric == metric), "-")


def rates(name: str, case: str) -> dict[str, dict[str, PublishedPoint]]:
    """Return the published points by GPU and metric."""
    (only,) = select(expand(shipped(name)), {"case": case})
    values: dict[str, dict[str, PublishedPoint]] = {}
    for point in only.published:
        values.setdefault(point.gpu or "", {})[point.metric] = point
    return values


@pytest.mark.parametrize(
    ("name", "count"), [("atc-demo", 4), ("atc-table-8", 4), ("atc-figure-7", 22), ("atc-figure-9", 41)]
)
def test_the_jobs_are_those_of_the_scripts_and_of_the_readmes_tables(name: str, count: int) -> None:
    cases = expand(shipped(name))
    assert [described(case) for case in cases] == [line.rsplit(" ", 1)[0] for line in JOBS[name].splitlines()]
    assert len(cases) == count


@pytest.mark.parametrize("name", JOBS)
def test_the_models_are_those_of_the_scripts_and_trained_as_they_train(name: str) -> None:
    for case in expand(shipped(name)):
        layers, hidden, heads, ffn, groups = MODELS[str(case.value("model"))]
        seq = case.model.seq
        assert case.model == ModelShape(layers, hidden, heads, seq, 32004, ffn=ffn, kv_groups=groups, family="llama")
        training = case.training
        assert (training.dtype, training.dropout, training.distributed_optimizer) == ("bf16", 0.0, True)
        assert training.log_interval == 1 and training.iterations >= 20 > training.warmup_iterations
        assert case.layout.micro_batch_size == 1
        assert case.layout.sequence_parallel == (case.layout.tensor_parallel > 1)


def test_the_vocabulary_is_padded_to_what_the_program_makes_of_one_token_more() -> None:
    for tensor_parallel, rows in ((1, 32128), (2, 32256), (4, 32256)):
        assert padded_vocabulary(32004, tensor_parallel) == padded_vocabulary(32005, tensor_parallel) == rows


@pytest.mark.parametrize(
    ("name", "metric", "numbers", "out_of_memory"),
    [
        ("atc-demo", "none", 0, 1),
        ("atc-table-8", "none", 0, 1),
        ("atc-figure-7", "max_memory_allocated_bytes", 19, 3),
        ("atc-figure-9", "tokens_per_s", 41, 0),
    ],
)
def test_published_bytes_tokens_and_outcomes_are_the_readmes(
    name: str, metric: str, numbers: int, out_of_memory: int
) -> None:
    cases = expand(shipped(name))
    values = [outcomes(case, metric) for case in cases]
    assert values == [line.rsplit(" ", 1)[1] for line in JOBS[name].splitlines()]
    assert (sum(text.isdigit() for text in values), values.count("oom")) == (numbers, out_of_memory)
    points = [point for case in cases for point in case.published]
    assert all(point.how == "printed" and point.confirmed and point.gpu for point in points)


@pytest.mark.parametrize(("name", "case"), THROUGHPUT)
def test_published_throughput_is_the_readmes_and_its_mfu_follows_from_it(name: str, case: str) -> None:
    values = rates(name, case)
    assert {
        gpu: (by["tokens_per_s_per_gpu"].value, by["mfu_percent"].value) for gpu, by in values.items()
    } == THROUGHPUT[name, case]
    (only,) = select(expand(shipped(name)), {"case": case})
    for gpu, (tokens_per_s, mfu_percent) in THROUGHPUT[name, case].items():
        assert model_flops_utilization(only.model, tokens_per_s, PEAK_TFLOPS[gpu]) == pytest.approx(
            mfu_percent, abs=0.05
        )


def test_nine_pairs_of_throughput_and_mfu_are_published() -> None:
    assert sum(len(rates(name, case)) for name, case in THROUGHPUT) == 9


def test_the_abstracts_mfu_is_a_claim_about_cases_that_fit_and_declare_their_unpublished_layouts() -> None:
    entry = shipped("atc-32k")
    cases = {str(case.value("case")): case for case in expand(entry)}
    printed = {
        name: [(point.metric, point.value, point.source) for point in case.published] for name, case in cases.items()
    }
    assert printed == {
        "baseline": [("mfu_percent", 32.3, "abstract")],
        "ours": [("mfu_percent", 42.7, "abstract")],
    }
    ratio, published = (
        [claim for claim in entry.experiment.claims if claim.kind == kind] for kind in ("ratio", "published")
    )
    assert [claim.at_least for claim in ratio if isinstance(claim, RatioClaim)] == [round(42.7 / 32.3, 2)]
    assert len(published) == 1 and [difference.follows for difference in entry.experiment.differences] == ["neither"]
    for case in cases.values():
        setting = RuleContext(case.model, case.layout, case.training, "kwai", case.arguments)
        assert [reason for _, reason in broken_rules(setting)] == [] and case.model.seq == 32768
        assert find_megatron(case.program).estimate_memory(case).total_bytes < USABLE_SHARE * 80e9
    ours = cases["ours"]
    assert 0 <= ours.training.offload - solve_offload(ours.model, ours.layout, ours.training) < 0.01
    script_5 = next(case for case in expand(shipped("atc-table-8")) if case.value("case") == "baseline")
    assert cases["baseline"].layout == script_5.layout


def test_other_rows_of_table_8_are_listed_as_unpublished() -> None:
    (part,) = shipped("atc-table-8").paper.not_run
    assert part.part.startswith("Table 8, rows of Llama-65B") and not part.numbers


def test_the_machine_is_the_papers_and_its_peak_the_one_that_the_mfu_divide_by() -> None:
    paper = shipped("atc-demo").paper
    assert paper.machine is not None
    machine = paper.machine
    assert (machine.nodes, machine.gpus_per_node, machine.gpu, machine.gpu_memory_gb) == (32, 8, "H800", 80)
    assert (machine.peak_tflops, machine.nvlink_gb_s, machine.network_gb_s) == ({"bf16": 989.4}, 200, 12.5)
    assert {name: code.commit[:7] for name, code in paper.code.items()} == {
        "megatron-kwai": "b2646e4",
        "megatron-jan-2024": "eba78b0",
    }
    assert set(paper.images) == set(paper.code)


@pytest.mark.parametrize("name", JOBS)
def test_every_case_at_every_scale_can_run_and_has_a_name_to_filter_for(name: str) -> None:
    entry = shipped(name)
    for scale in scale_names(entry.experiment):
        cases = expand(entry, scale)
        for case in cases:
            setting = RuleContext(case.model, case.layout, case.training, DIALECTS[case.program], case.arguments)
            assert [reason for _, reason in broken_rules(setting)] == [], (scale, case.name)
            assert select(cases, parse_where(case.name, MEGATRON.axes)) == [case]
            assert case.training.iterations > case.training.warmup_iterations + 1


@pytest.mark.parametrize("name", JOBS)
def test_every_claim_of_the_readme_is_in_the_catalogue_with_whose_its_tolerance_is(name: str) -> None:
    claims = shipped(name).experiment.claims
    for wanted in CLAIMS[name]:
        assert any(f"artifact README, {wanted}" in claim.source for claim in claims), wanted
    exact = {claim.id for claim in claims if claim.tolerance_is == "the source's"}
    assert exact == ({"published-memory"} if name == "atc-figure-7" else set())
    assert all(claim.tolerance == 0.0 for claim in claims if claim.id in exact)


@pytest.mark.parametrize(("name", "count"), [("atc-demo", 2), ("atc-table-8", 2)])
def test_the_published_throughput_meets_the_claims_about_its_ratios(name: str, count: int) -> None:
    claims = [claim for claim in shipped(name).experiment.claims if isinstance(claim, RatioClaim) and claim.at_least]
    assert len(claims) == count
    for claim in claims:
        of, over = (THROUGHPUT[name, str(side["case"])] for side in (claim.of, claim.over))
        assert all(of[gpu][0] / over[gpu][0] > (claim.at_least or 0) for gpu in of), claim.id


def test_smaller_demos_keep_the_layout_and_the_methods_that_one_program_can_tell_apart() -> None:
    entry = shipped("atc-demo")
    published = {str(case.value("case")): case for case in expand(entry)}
    quad, cpu = expand(entry, "quad"), expand(entry, "cpu")
    for case in quad + cpu:
        large = published[str(case.value("case"))]
        assert (case.training.recompute, case.training.offload) == (large.training.recompute, large.training.offload)
        assert (case.program, case.layout.gpus, case.layout.pipeline_parallel) == ("pretrain", 4, 4)
        assert case.model.family == "llama" and case.expected is None
    assert {case.model for case in quad} == {published["ours"].model}
    assert {case.layout for case in quad} == {published["ours"].layout}
    assert (
        {str(case.value("case")) for case in quad}
        == {str(case.value("case")) for case in cpu}
        == published.keys() - {"origin"}
    )
    assert {(case.device, case.training.dtype, case.layout.virtual_stages, case.model.layers) for case in cpu} == {
        ("cpu", "fp32", 2, 8)
    }


def test_the_demo_on_two_gpus_is_the_model_with_twice_the_layers_a_stage_and_fits_141_gb_only() -> None:
    entry, facts = shipped("atc-demo"), MemoryFacts(attention="flash", shards_optimizer=True)
    assert scale_names(entry.experiment) == ["paper", "quad", "pair", "cpu"]
    pair, quad = expand(entry, "pair"), expand(entry, "quad")
    assert [case.name for case in pair] == [case.name for case in quad]
    needed = {}
    for case, other in zip(pair, quad, strict=True):
        assert (case.model, case.program, case.expected) == (other.model, "pretrain", None)
        assert (case.training.recompute, case.training.offload) == (other.training.recompute, other.training.offload)
        layout = case.layout
        assert (layout.gpus, layout.pipeline_parallel, layout.virtual_stages, layout.microbatches) == (2, 2, 16, 4)
        needed[str(case.value("case"))] = estimate_memory(case.model, layout, case.training, facts).total_bytes / 1e9
    assert {case.gpu_memory_gb for case in pair} == {139} and {case.gpu_memory_gb for case in quad} == {79}
    assert needed == pytest.approx({"baseline": 67.9, "ours": 97.1, "no-recompute": 114.9}, abs=0.1)


def test_on_four_gpus_the_demo_without_recomputation_needs_more_than_80_gb_and_the_rest_less() -> None:
    facts = MemoryFacts(attention="flash", shards_optimizer=True)
    for case in expand(shipped("atc-demo"), "quad"):
        needed = estimate_memory(case.model, case.layout, case.training, facts).total_bytes
        fits = needed < (case.gpu_memory_gb or 0) * 1e9 * USABLE_SHARE
        assert fits == (case.value("case") != "no-recompute"), case.name


def test_the_smaller_figure_7_keeps_the_ends_of_the_offloaded_share_and_two_layers_a_chunk() -> None:
    cases = expand(shipped("atc-figure-7"), "quad")
    assert {(case.training.recompute, case.training.offload) for case in cases} == {
        (recompute, offload) for recompute in ("none", "ours") for offload in (0.0, 0.5, 1.0)
    }
    layers = {case.model.layers // (case.layout.pipeline_parallel * case.layout.virtual_stages) for case in cases}
    assert (layers, {case.layout.gpus for case in cases}) == ({2}, {4})
