"""Rows of the Megatron-LM tutorials: their tables, and the smaller scales."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.catalog.case import parse_where, select
from orchestrator.catalog.claims import OutcomeClaim, PeakClaim, PublishedClaim, RatioClaim, TrendClaim
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.megatron.axes import MEGATRON
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.memory import MemoryFacts, estimate_memory
from orchestrator.megatron.programs.base import USABLE_SHARE
from orchestrator.megatron.rules import Dialect, RuleContext, broken_rules
from tests.cases import expand
from tests.unit.catalog.entries import shipped

FIRST = "tutorial-cp"
# Rows of each table of vuiseng9/megatron-tutorials at 0b2c030a1d, 66 in all; the first generation's one has 8. Two more
# cases are the Makefile's targets of profiled runs.
SECOND = {
    "core-dp": 13,
    "core-tp-weak": 8,
    "core-tp-strong": 8,
    "core-sp": 3,
    "core-cp": 10,
    "core-pp": 8,
    "core-tp-pp": 7,
    "core-ep": 9,
}
ALL = [FIRST, *SECOND]

# Gigabytes and milliseconds as the tables have them, at least one row of each.
PRINTED = {
    ("tutorial-cp", "302"): (56, 370),
    ("tutorial-cp", "312"): (63, 710),
    ("core-dp", "101"): (33.3, 220),
    ("core-dp", "112"): (78.5, 1470),
    ("core-dp", "130"): (79.8, 542),
    ("core-tp-weak", "218"): (46.4, 329),
    ("core-tp-strong", "244"): (30.9, 207),
    ("core-sp", "282"): (62.0, 427),
    ("core-cp", "302"): (69, 475),
    ("core-cp", "348"): (68, 1440),
    ("core-pp", "401"): (57, 2920),
    ("core-pp", "438"): (57, 715),
    ("core-tp-pp", "446"): (56, 665),
    ("core-ep", "502"): (43, 256),
    ("core-ep", "512"): (74, 855),
}

# GPUs; tensor-, pipeline-, context- and data-parallel size; virtual stages; sequence, microbatch, batch, microbatches.
LAYOUTS = {
    ("tutorial-cp", "304"): (4, 1, 1, 4, 1, 1, 4096, 4, 4, 1),
    ("tutorial-cp", "312"): (8, 1, 1, 8, 1, 1, 16384, 4, 4, 1),
    ("core-dp", "112"): (1, 1, 1, 1, 1, 1, 1024, 15, 60, 4),
    ("core-dp", "129"): (8, 1, 1, 1, 8, 1, 1024, 21, 168, 1),
    ("core-tp-weak", "224"): (4, 4, 1, 1, 1, 1, 1024, 20, 20, 1),
    ("core-tp-strong", "238"): (8, 8, 1, 1, 1, 1, 1024, 8, 8, 1),
    ("core-sp", "283"): (8, 8, 1, 1, 1, 1, 2048, 4, 4, 1),
    ("core-cp", "318"): (8, 1, 1, 8, 1, 1, 4096, 8, 8, 1),
    ("core-pp", "438"): (8, 1, 8, 1, 1, 3, 1024, 4, 32, 8),
    ("core-pp", "432"): (8, 1, 8, 1, 1, 1, 1024, 1, 32, 32),
    ("core-tp-pp", "443"): (8, 2, 4, 1, 1, 6, 1024, 8, 32, 4),
    ("core-ep", "511"): (8, 1, 1, 1, 8, 1, 4096, 4, 32, 1),
}


PROFILED = ["profile-282", "profile-283"]


def cases_of(name: str, scale: str = PAPER) -> list[TrainingCase]:
    """Return the rows of a table."""
    return [case for case in expand(shipped(f"tutorials/{name}"), scale) if case.value("case") not in PROFILED]


def row(name: str, number: str) -> TrainingCase:
    (case,) = select(cases_of(name), {"case": number})
    return case


def printed(case: TrainingCase) -> dict[str, float]:
    return {str(point.metric): point.value for point in case.published}


def test_there_are_8_rows_of_the_first_generation_and_66_of_the_second() -> None:
    assert {name: len(cases_of(name)) for name in SECOND} == SECOND
    assert (len(cases_of(FIRST)), sum(SECOND.values())) == (8, 66)
    numbers = [case.value("case") for name in SECOND for case in cases_of(name)]
    assert len(set(numbers)) == 66
    first = ["301", "302", "304", "308", "311", "312", "313", "314"]
    assert [case.value("case") for case in cases_of(FIRST)] == first


def test_the_generations_are_different_programs_and_never_share_a_job() -> None:
    assert {case.program for case in cases_of(FIRST)} == {"megatron-tutorial-fork"}
    assert {case.program for name in SECOND for case in cases_of(name)} == {"megatron-core-0.14"}
    paper = shipped(f"tutorials/{FIRST}").paper
    assert paper.code["megatron-tutorial-fork"].repository != paper.code["megatron-core-0.14"].repository
    first, second = row(FIRST, "302"), row("core-cp", "302")  # one number, two models and batches
    assert (first.value("model"), first.layout.global_batch_size) == ("gpt2-xl", 4)
    assert (second.value("model"), second.layout.global_batch_size) == ("gpt2-1.2B", 8)


def test_labels_are_the_targets_of_the_makefiles_and_find_their_case() -> None:
    cases = [case for name in ALL for case in expand(shipped(f"tutorials/{name}"))]
    labels = [str(case.value("label")) for case in cases]
    assert len(set(labels)) == len(labels) == 76
    for case, label in zip(cases, labels, strict=True):
        assert label.startswith(f"{case.value('case')}-")
        if label.endswith("-oom"):
            assert case.expected is not None and case.expected.outcome == "oom"
    for name, label in (("tutorial-cp", "301-cp1-gpt2xl-gbs4-len4096-oom"), ("core-ep", "502-olmoe-dp8-zero2-ep8")):
        found = select(expand(shipped(f"tutorials/{name}")), parse_where(f"label={label}", MEGATRON.axes))
        assert [case.value("case") for case in found] == [label[:3]]
    script = select(cases, {"label": "124-gpt2xl-dp4-gbs64-zero2"})[0].script
    assert script == "scripts/100_gpt2xl_ddp_gpuX_gbsX.sh 4 64 1"
    assert [case.value("case") for case in cases if case.script is None] == ["442"]  # not in the Makefile


def test_profiled_runs_are_their_rows_with_timers() -> None:
    cases = expand(shipped("tutorials/core-sp"))
    for name in PROFILED:
        (profiled,) = select(cases, {"case": name})
        plain = row("core-sp", name.removeprefix("profile-"))
        assert (profiled.model, profiled.layout, profiled.training) == (plain.model, plain.layout, plain.training)
        assert profiled.arguments == ("--timing-log-level", "2", "--timing-log-option", "minmax")
        assert not profiled.published and plain.arguments == ()


def test_the_script_for_two_nodes_is_listed_as_not_run() -> None:
    (part,) = shipped("tutorials/core-sp").paper.not_run
    assert part.part == "scripts/219_multinode_weak_tp8_gpt2-8.3B.sh" and "500,000 iterations" in part.because


@pytest.mark.parametrize("name", ALL)
def test_every_row_keeps_the_rules_of_megatron_lm(name: str) -> None:
    for case in cases_of(name):
        layout = case.layout
        assert layout.global_batch_size % (layout.micro_batch_size * layout.data_parallel) == 0
        setting = RuleContext(case.model, case.layout, case.training, "now", case.arguments)
        assert [(case.name, rule.name, reason) for rule, reason in broken_rules(setting)] == []


@pytest.mark.parametrize("key", PRINTED)
def test_rows_have_the_tables_numbers(key: tuple[str, str]) -> None:
    case = row(*key)
    memory, time = PRINTED[key]
    memory_gb = None if memory is None else round(memory * 1.048576, 1)  # the table has thousands of MiB
    assert printed(case) == {"gpu_memory_used_gb": memory_gb, "iteration_ms": time}
    assert {(point.how, point.confirmed, point.gpu) for point in case.published} == {("printed", True, "H100")}


@pytest.mark.parametrize("key", LAYOUTS)
def test_rows_have_the_layouts_of_their_commands(key: tuple[str, str]) -> None:
    case = row(*key)
    layout = case.layout
    groups = (layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel, layout.data_parallel)
    batches = (layout.micro_batch_size, layout.global_batch_size, layout.microbatches)
    assert (layout.gpus, *groups, layout.virtual_stages, case.model.seq, *batches) == LAYOUTS[key]


def test_every_row_has_numbers_or_is_declared_to_run_out_of_memory() -> None:
    declared = {(name, case.value("case")) for name in ALL for case in cases_of(name) if case.expected}
    assert declared == {
        ("tutorial-cp", "301"),
        ("tutorial-cp", "314"),
        ("core-dp", "121"),
        ("core-sp", "281"),
        ("core-cp", "301"),
        ("core-ep", "505"),
    }
    for name in ALL:
        for case in cases_of(name):
            assert bool(case.published) != bool(case.expected), case.name
    undecided = row("tutorial-cp", "314").expected
    assert undecided is not None and not undecided.confirmed  # its command has twice the length
    alone = row("tutorial-cp", "301").expected
    assert alone is not None and alone.confirmed


def test_virtual_stages_are_what_the_argument_makes_of_a_stage() -> None:
    """Check the layers per virtual stage in the arguments: 3 of 9 layers, and 3, 6, 9 and 18 of 18."""
    layers = {("core-pp", "438"): 3, **{("core-tp-pp", str(440 + n)): n for n in (3, 6, 9)}, ("core-tp-pp", "458"): 18}
    for key, argument in layers.items():
        case = row(*key)
        assert case.model.layers // case.layout.pipeline_parallel // case.layout.virtual_stages == argument
    assert row("core-pp", "498").layout == row("core-pp", "408").layout
    assert row("core-tp-pp", "458").layout == row("core-tp-pp", "424").layout
    assert "unconfirmed" in str(row("core-tp-pp", "442").note)


def test_models_have_the_sizes_of_their_names() -> None:
    """Check billions of parameters; for GPT-2 XL and the shape of OLMoE, those in their logs."""
    sizes = {"gpt2-1.2B": 1.2, "gpt2-2.5B": 2.5, "gpt2-4.2B": 4.2, "gpt2-8.3B": 8.3, "gpt-22b": 22, "gpt2-xl": 1.56}
    seen = {str(case.value("model")): case for name in SECOND for case in cases_of(name)}
    for name, size in sizes.items():
        assert seen[name].model.parameters() / 1e9 == pytest.approx(size, rel=0.03)
    assert row("core-ep", "500").model.parameters() / 1e9 == pytest.approx(2.27, rel=0.01)
    assert {case.model.vocab for case in seen.values()} == {50304}


def test_experts_and_sharding_reach_the_case() -> None:
    case = row("core-ep", "511")
    layout = case.layout
    assert (case.model.experts, case.model.experts_per_token, case.model.ffn_hidden) == (256, 8, 1024)
    assert (layout.expert_parallel, layout.expert_tensor_parallel, layout.data_parallel) == (4, 2, 8)
    assert "--moe-grouped-gemm" in case.arguments and "--overlap-param-gather" in case.arguments
    for case in cases_of("core-dp") + cases_of("core-ep"):
        assert case.training.distributed_optimizer == ("--overlap-param-gather" in case.arguments)


def test_times_are_means_of_iterations_50_to_100() -> None:
    for training in (case.training for name in ALL for case in cases_of(name)):
        assert (training.iterations, training.warmup_iterations, training.log_interval) == (100, 49, 1)
        assert training.dtype == "bf16"


@pytest.mark.parametrize("name", ALL)
def test_no_table_has_a_claim_that_its_own_numbers_refute(name: str) -> None:
    entry = shipped(f"tutorials/{name}")
    claims = [claim for claim in entry.experiment.claims if PAPER in claim.judged_at]
    assert claims and len({claim.id for claim in claims}) == len(claims)
    for claim in entry.experiment.claims:
        assert claim.not_judged_because or set(claim.judged_at) == set(scale_names(entry.experiment)), claim.id
        for scale in claim.judged_at:
            there = select(expand(entry, scale), claim.where)
            assert there, (claim.id, scale)
            if isinstance(claim, RatioClaim):
                assert select(there, claim.of) and select(there, claim.over), (claim.id, scale)
            if scale == PAPER:
                assert holds(claim, there), claim.id


def holds(claim: Any, there: list[TrainingCase]) -> bool:
    metric = str(claim.metric or "iteration_ms")
    known = [case for case in there if case.published]
    if isinstance(claim, OutcomeClaim):
        return all(case.expected is not None and case.expected.outcome == claim.outcome for case in there)
    if isinstance(claim, PublishedClaim):
        return all(set(claim.metrics) == set(printed(case)) for case in known)
    if isinstance(claim, PeakClaim):
        best = min(known, key=lambda case: printed(case)[metric])
        return all(best.value(axis) == value for axis, value in claim.at.items())
    if isinstance(claim, TrendClaim):
        ordered = sorted(known, key=lambda case: case.number(claim.along))
        values = [printed(case)[metric] for case in ordered]
        return len(values) > 2 and values == sorted(values, reverse=claim.direction == "falls")
    assert isinstance(claim, RatioClaim)
    of, over = (select(known, side)[0] for side in (claim.of, claim.over))
    ratio = printed(of)[metric] / printed(over)[metric]
    enough = claim.at_least is None or ratio >= claim.at_least * (1 - claim.tolerance)
    return enough and (claim.at_most is None or ratio <= claim.at_most * (1 + claim.tolerance))


@pytest.mark.parametrize("scale", ["quad", "cpu"])
def test_smaller_scales_are_rows_that_our_own_program_can_run_on_4_gpus(scale: str) -> None:
    dialect: Dialect = "pretrain"
    for case in cases_of(FIRST, scale):
        layout = case.layout
        assert (case.program, layout.gpus) == ("pretrain", layout.context_parallel)
        assert layout.gpus <= 4
        assert broken_rules(RuleContext(case.model, layout, case.training, dialect)) == []


def test_rows_at_quad_are_those_of_the_table_and_fit_80_gb() -> None:
    facts = MemoryFacts(attention="flash", shards_optimizer=True)
    for case in cases_of(FIRST, "quad"):
        published = row(FIRST, str(case.value("case")))
        assert (case.model, case.layout) == (published.model, published.layout)
        assert estimate_memory(case.model, case.layout, case.training, facts).total_bytes < 75e9


@pytest.mark.parametrize(
    ("scale", "numbers"),
    [("quad", ["300", "301", "302", "304"]), ("pair", ["300", "301", "302"]), ("single", ["300", "301"])],
)
def test_core_cp_on_few_gpus_is_the_tables_rows_and_only_301_needs_more_than_80_gb(
    scale: str, numbers: list[str]
) -> None:
    facts = MemoryFacts(attention="flash", shards_optimizer=False, keeps_gathered_keys=True)
    cases = cases_of("core-cp", scale)
    assert [case.value("case") for case in cases] == numbers
    assert len(scale_names(shipped("tutorials/core-cp").experiment)) == 4
    for case in cases:
        published = row("core-cp", str(case.value("case")))
        assert (case.model, case.layout) == (published.model, published.layout)
        assert case.training.recompute == published.training.recompute
        assert (case.program, case.arguments, case.expected) == ("pretrain", (), None)
        assert broken_rules(RuleContext(case.model, case.layout, case.training, "pretrain")) == []
        needed = estimate_memory(case.model, case.layout, case.training, facts).total_bytes
        assert case.gpu_memory_gb == 79
        assert (needed < 79e9 * USABLE_SHARE) == (case.value("case") != "301")
