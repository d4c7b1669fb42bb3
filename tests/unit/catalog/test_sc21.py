"""Tables and figures of SC21: the published scripts, and the smaller scales."""

from __future__ import annotations

import pytest

from orchestrator.catalog.case import select
from orchestrator.catalog.claims import ClosesClaim, GainClaim, PublishedClaim, RatioClaim, TrendClaim
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.config.yaml import read_document
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts, estimate_memory
from orchestrator.megatron.model import flops_per_iteration, training_days
from orchestrator.megatron.programs.base import USABLE_SHARE
from orchestrator.megatron.rules import Dialect, RuleContext, broken_rules
from orchestrator.planning.plan import job_content
from orchestrator.slurm.notation import time_limit_s
from tests.cases import cases_to_run, expand
from tests.unit.catalog.entries import CHECKOUT, shipped

# GPUs of the points of run_table_1.sh and run_figure_11.sh to run_figure_18.sh at 6985e58938. The other values are in
# tests/unit/megatron/programs/sc21_arguments.yaml.
GPUS = {
    "table-1": [32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072],
    "figure-11": [8, 8, 16, 16, 32, 32, 64, 64],
    "figure-12": [96] * 10,
    "figure-13": [64] * 10,
    "figure-14": [64] * 10,
    "figure-15": [64] * 15,
    "figure-16": [64] * 8,
    "figure-17": [128] * 18,
    "figure-18": [96] * 10,
}
RUN = list(GPUS)
NO_SCRIPT = ["table-2", "fused-operators", "training-time"]
ALL = [*RUN, *NO_SCRIPT]
# Those that say something on two GPUs and on one; the others fall to processes on CPU cores.
ON_TWO = [name for name in RUN if name != "figure-18"]
ON_ONE = ["table-1", "figure-16", "figure-17"]
# How many GPUs or processes the largest case of a scale has.
SIZES = {"quad": 4, "pair": 2, "single": 1, "cpu": 4}
SCALES = {"paper": RUN, "quad": RUN, "pair": ON_TWO, "single": ON_ONE, "cpu": RUN}


def cases_of(name: str, scale: str = PAPER) -> list[TrainingCase]:
    return expand(shipped(f"sc21/{name}"), scale)


def point_of(case: TrainingCase) -> str:
    model, layout, training = case.model, case.layout, case.training
    sizes = (model.layers, model.hidden, model.heads)
    groups = (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel, layout.virtual_stages)
    batches = (layout.micro_batch_size, layout.global_batch_size, layout.microbatches, layout.gpus)
    switches = (training.recompute, "on" if training.scatter_gather else "off", training.ddp)
    values = " ".join(map(str, (*sizes, *groups, *batches, *switches)))
    return f"{case.experiment.removeprefix('sc21/')}  {case.name}  {values}"


def test_the_99_points_have_the_gpus_of_the_published_scripts() -> None:
    assert {name: [case.layout.gpus for case in cases_of(name)] for name in RUN} == GPUS
    assert sum(map(len, GPUS.values())) == 99


def test_what_all_scripts_share_is_the_same_in_every_case() -> None:
    for case in (case for name in RUN for case in cases_of(name)):
        training = case.training
        assert (case.model.seq, case.model.vocab) == (2048, 51200)
        assert (training.dtype, training.loss_scale, training.dropout) == ("fp16", 8192, 0.1)
        assert (case.program, case.device, case.time_limit) == ("megatron-2021", "gpu", "0:30:00")
        assert (case.gpu_memory_gb, case.layout.gpus % 8, case.layout.context_parallel) == (80, 0, 1)
        assert not case.layout.sequence_parallel and case.arguments == ()


def test_94_of_the_99_are_different_jobs() -> None:
    jobs: dict[object, list[str]] = {}
    for case in (case for name in RUN for case in cases_of(name)):
        jobs.setdefault((case.model, case.layout, case.training), []).append(f"{case.experiment} {case.name}")
    assert len(jobs) == 94
    assert [names for names in jobs.values() if len(names) > 1] == [
        [f"sc21/figure-12 vp=4,gbs={gbs}", f"sc21/figure-18 scatter_gather=true,gbs={gbs}"]
        for gbs in (12, 24, 36, 48, 60)
    ]


@pytest.mark.parametrize("scale", SCALES)
def test_every_case_keeps_the_rules_of_its_program_and_logs_past_its_warm_up(scale: str) -> None:
    dialect: Dialect = "2021" if scale == PAPER else "pretrain"
    for case in (case for name in SCALES[scale] for case in cases_of(name, scale)):
        training, place = case.training, f"{case.experiment} {case.name}"
        assert case.program == ("megatron-2021" if scale == PAPER else "pretrain")
        setting = RuleContext(case.model, case.layout, training, dialect, case.arguments)
        assert [(place, rule.name, reason) for rule, reason in broken_rules(setting)] == []
        assert training.iterations % training.log_interval == training.warmup_iterations % training.log_interval == 0
        assert training.log_interval <= training.warmup_iterations < training.iterations - training.log_interval, place


def iteration_seconds(case: TrainingCase) -> float | None:
    """Return the time at the rate that was printed or plotted; None if there is no rate."""
    flops = flops_per_iteration(case.model, case.layout.global_batch_size, case.training.recompute == "full")
    for point in case.published:
        if point.metric == "tflops_per_gpu":
            return flops / (case.layout.gpus * point.value * 1e12)
        if point.metric == "sequences_per_s":
            return case.layout.global_batch_size / point.value
    return None


@pytest.mark.parametrize("name", RUN)
def test_every_case_ends_well_inside_the_scripts_30_minutes(name: str) -> None:
    cases = cases_of(name)
    known = [(case, seconds) for case in cases if (seconds := iteration_seconds(case)) is not None]
    # The largest batch takes longest, and is among those that are known.
    assert max(case.layout.global_batch_size for case, _ in known) == max(
        case.layout.global_batch_size for case in cases
    )
    for case, seconds in known:
        evaluations = 2 * case.training.evaluation_iterations  # of the validation and of the test data
        assert seconds * (case.training.iterations + evaluations) < 24 * 60, case.name


def test_table_1_agrees_with_the_papers_own_arithmetic() -> None:
    for case in cases_of("table-1"):
        printed = {point.metric: point.value for point in case.published}
        assert {(point.how, point.confirmed, point.gpu) for point in case.published} == {("printed", True, "A100")}
        assert round(case.model.parameters() / 1e9, 1) == printed["parameters_billion"]
        assert round(100 * printed["tflops_per_gpu"] / 312) == printed["percent_of_peak"]
        aggregate = printed["tflops_per_gpu"] * case.layout.gpus / 1e3
        assert printed["aggregate_pflops"] == pytest.approx(aggregate, rel=0.004)  # the rate is rounded


def test_statements_about_figures_are_those_of_their_sections() -> None:
    claims = {claim.id: claim for name in RUN for claim in shipped(f"sc21/{name}").experiment.claims}
    interleaving = claims["interleaving-gains-ten-percent"]
    assert "10+%" in interleaving.source and "as much as 10%" in interleaving.source
    batches = claims["higher-batch-scales-better"]
    assert isinstance(batches, ClosesClaim) and (batches.over["pp"], batches.stated) == (8, "printed")
    assert "5.3.1" in batches.source
    scatter_gather = claims["scatter-gather-gains-11-percent"]
    assert isinstance(scatter_gather, RatioClaim) and scatter_gather.at_least == 1.11
    largest = max(case.layout.global_batch_size for case in cases_of("figure-18"))
    assert scatter_gather.where == {"gbs": largest}


def test_table_1_has_the_rates_that_the_text_repeats() -> None:
    first, *_, last = cases_of("table-1")
    assert [point.value for point in first.published][1:3] == [137, 44]  # section 5.1: 44 % for the smallest
    assert [point.value for point in last.published] == [1008.0, 163, 52, 502.0]  # abstract: 163 and 502


def test_the_rows_of_ptd_in_table_2_are_jobs_and_the_table_agrees_with_the_text() -> None:
    entry, cases = shipped("sc21/table-2"), expand(shipped("sc21/table-2"))
    assert scale_names(entry.experiment) == [PAPER]
    jobs = cases_to_run(entry)
    assert [point_of(case).partition("  ")[2] for case in jobs] == [
        "case=ptd-175b,gpus=384  96 12288 96 8 12 4 1 1 1536 384 384 full on local",
        "case=ptd-175b,gpus=768  96 12288 96 8 12 8 1 1 1536 192 768 full on local",
        "case=ptd-175b,gpus=1536  96 12288 96 8 12 16 1 1 1536 96 1536 full on local",
        "case=ptd-530b,gpus=560  105 20480 128 8 35 2 1 1 2240 1120 560 full on local",
        "case=ptd-530b,gpus=1120  105 20480 128 8 35 4 1 1 2240 560 1120 full on local",
        "case=ptd-530b,gpus=2240  105 20480 128 8 35 8 1 1 2240 280 2240 full on local",
    ]
    assert {case.name.partition("-")[0] for case in cases if case.reference_only} == {"case=zero3"}
    assert len(cases) == 12 and len(jobs) == 6
    rates = {case.name: case.published[1].value for case in cases}
    assert len(rates) == 12
    # Section 5.2: 6 %, 24 %, and on twice as many GPUs 70 % for both.
    assert rates["case=ptd-175b,gpus=384"] / rates["case=zero3-175b,gpus=384"] == pytest.approx(1.06, abs=0.005)
    assert rates["case=ptd-530b,gpus=560"] / rates["case=zero3-530b,gpus=640"] == pytest.approx(1.24, abs=0.005)
    assert rates["case=ptd-175b,gpus=768"] / rates["case=zero3-175b,gpus=768"] == pytest.approx(1.7, abs=0.01)
    assert rates["case=ptd-530b,gpus=1120"] / rates["case=zero3-530b,gpus=1120"] == pytest.approx(1.7, abs=0.01)
    shares = []
    for case in cases:
        parameters, rate, printed = (point.value for point in case.published)
        shares.append(training_days(parameters * 1e9, 300e9, case.layout.gpus, rate) / printed)
    assert (round(1 - max(shares), 3), round(1 - min(shares), 3)) == (0.014, 0.030)


def test_section_5_8_compares_equal_jobs_with_and_without_the_three_fused_operators() -> None:
    cases = {str(case.value("case")): case for case in cases_of("fused-operators")}
    rates = {name: case.published[0].value for name, case in cases.items()}
    assert rates == {"175b-fused": 135, "175b-unfused": 113, "530b-fused": 148, "530b-unfused": 133}
    assert (round(100 * (135 / 113 - 1)), round(100 * (148 / 133 - 1))) == (19, 11)  # as the section says
    for model in ("175b", "530b"):
        fused, unfused = cases[f"{model}-fused"], cases[f"{model}-unfused"]
        assert (fused.model, fused.layout, fused.training) == (unfused.model, unfused.layout, unfused.training)
        assert fused.arguments == ()
        assert unfused.arguments == ("--no-masked-softmax-fusion", "--no-bias-gelu-fusion", "--no-bias-dropout-fusion")
    claims = shipped("sc21/fused-operators").experiment.claims
    assert [claim.at_least for claim in claims if isinstance(claim, RatioClaim)] == [1.19, 1.11]


def test_equation_4_gives_the_printed_training_days_and_1t_is_the_job_of_table_1() -> None:
    small, large = cases_of("training-time")
    for case in (small, large):
        printed = {point.metric: point.value for point in case.published}
        tokens = 1e9 * case.number("tokens_billion")
        days = training_days(case.model.parameters(), tokens, case.layout.gpus, printed["tflops_per_gpu"])
        assert round(days) == printed["training_days"]
    assert [case.published[0].value for case in (small, large)] == [34, 84]
    assert job_content(large) == job_content(cases_of("table-1")[-1])


@pytest.mark.parametrize("name", NO_SCRIPT)
def test_jobs_without_a_script_end_well_inside_their_time_limit_and_keep_the_rules(name: str) -> None:
    for case in cases_to_run(shipped(f"sc21/{name}")):
        seconds, training = iteration_seconds(case), case.training
        assert seconds is not None and case.time_limit is not None
        limit_s = time_limit_s(case.time_limit)
        assert seconds * (training.iterations + 2 * training.evaluation_iterations) < 0.9 * limit_s, case.name
        setting = RuleContext(case.model, case.layout, training, "2021", case.arguments)
        assert [(case.name, rule.name, reason) for rule, reason in broken_rules(setting)] == []


@pytest.mark.parametrize("name", RUN)
def test_every_plotted_case_has_the_rounded_number_of_the_plot(name: str) -> None:
    experiment = shipped(f"sc21/{name}").experiment
    for point in experiment.published:
        unit, error = (0.1, 0.05) if point.metric == "sequences_per_s" else (1, 0.5)
        assert (point.how, point.confirmed, point.error) == ("traced from the plot", True, error)
        assert point.value == pytest.approx(unit * round(point.value / unit))
    places = [tuple(point.where.items()) for point in experiment.published]
    assert len(set(places)) == len(places)
    drawn = {case.name for case in cases_of(name) if case.expected is None} if name != "table-1" else set()
    assert sorted(case.name for place in places for case in select(cases_of(name), dict(place))) == sorted(drawn)


def test_figures_12_and_18_have_the_same_numbers_for_the_jobs_that_they_share() -> None:
    interleaved = select(cases_of("figure-12"), {"vp": 4})
    scattered = select(cases_of("figure-18"), {"scatter_gather": True})
    numbers = [[case.published[0].value for case in cases] for cases in (interleaved, scattered)]
    assert numbers[0] == numbers[1] and len(numbers[0]) == 5


def test_without_recomputation_memory_may_end_from_batch_16_on() -> None:
    expected = {case.name: case.expected for case in cases_of("figure-17") if case.expected}
    assert list(expected) == [f"recompute=none,gbs={gbs}" for gbs in (16, 32, 64, 128, 256)]
    assert {(outcome.outcome, outcome.confirmed) for outcome in expected.values()} == {("oom", False)}


@pytest.mark.parametrize("name", ALL)
def test_every_claim_has_cases_at_every_scale_that_judges_it(name: str) -> None:
    entry = shipped(f"sc21/{name}")
    claims = entry.experiment.claims
    assert claims and len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.not_judged_because or set(claim.judged_at) == set(scale_names(entry.experiment)), claim.id
        for scale in claim.judged_at:
            there = select(expand(entry, scale), claim.where)
            assert there, (claim.id, scale)
            if isinstance(claim, (ClosesClaim, GainClaim, TrendClaim)):
                assert len({case.value(claim.along) for case in there}) > 1, (claim.id, scale)
            if isinstance(claim, (RatioClaim, ClosesClaim)):
                other = expand(entry.others[claim.experiment], scale) if claim.experiment else there
                assert select(there, claim.of) and select(other, claim.over)
            if isinstance(claim, PublishedClaim):
                assert set(claim.metrics) <= {point.metric for case in there for point in case.published}


@pytest.mark.parametrize("name", RUN)
def test_a_figure_lists_its_scales_largest_first(name: str) -> None:
    wanted = [scale for scale, names in SCALES.items() if name in names]
    assert scale_names(shipped(f"sc21/{name}").experiment) == wanted


@pytest.mark.parametrize(
    ("name", "scale"), [(name, scale) for scale, names in SCALES.items() if scale != PAPER for name in names]
)
def test_a_smaller_figure_fits_80_gb_and_keeps_the_figures_axes(name: str, scale: str) -> None:
    facts = MemoryFacts(attention="flash", shards_optimizer=True)
    cases = cases_of(name, scale)
    assert [axis for axis, _ in cases[0].point] == [axis for axis, _ in cases_of(name)[0].point]
    assert max(case.layout.gpus for case in cases) == SIZES[scale]
    assert len(cases) >= min(SIZES[scale], 3)
    for case in cases:
        assert case.device == ("cpu" if scale == "cpu" else "gpu")
        needed = estimate_memory(case.model, case.layout, case.training, facts).total_bytes
        assert case.gpu_memory_gb and needed < case.gpu_memory_gb * 1e9 * USABLE_SHARE


@pytest.mark.parametrize("scale", ["pair", "single"])
def test_table_1_on_fewer_gpus_is_the_rows_of_four_gpus_that_they_hold(scale: str) -> None:
    def row(case: TrainingCase) -> object:
        return case.name, case.model, case.layout, case.training.recompute, case.training.dtype, case.gpu_memory_gb

    held = [case for case in cases_of("table-1", "quad") if case.layout.gpus <= SIZES[scale]]
    assert [row(case) for case in cases_of("table-1", scale)] == [row(case) for case in held]


@pytest.mark.parametrize("scale", ["quad", "cpu"])
def test_sequence_parallelism_replaces_scatter_gather(scale: str) -> None:
    cases = cases_of("figure-18", scale)
    assert {case.training.scatter_gather for case in cases} == {True, False}
    for case in cases:
        assert case.layout.sequence_parallel == case.training.scatter_gather and case.layout.tensor_parallel == 2


def test_the_papers_machine_is_the_one_that_its_cluster_profile_describes() -> None:
    machine = shipped("sc21/figure-13").paper.machine
    assert machine is not None
    profile = read_document(CHECKOUT / "clusters" / "selene.yaml").value
    assert isinstance(profile, dict) and profile["hardware"] == machine.model_dump(exclude_none=True)
