"""Jobs of programs that an experiment describes: their size, command, files, image and identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import ReproError
from orchestrator.job_spec import Resources, Value
from orchestrator.launch.preflight import require_ready
from orchestrator.launch.submit import copy_programs
from orchestrator.paths import Folders
from orchestrator.planning.batch_plan import ChosenCases, plan_batch
from orchestrator.planning.batch_report import batch_report
from orchestrator.planning.plan import Plan, check_case, plan_cases
from orchestrator.planning.target import Target, cases_at
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.render.described import ALL_REDUCE, CONTAINERS, HPL, MESSAGES, SERVED, TOY, WIDTH
from tests.unit.render.described import described_entry as entry_of
from tests.unit.render.described import described_plans as plans_of
from tests.unit.render.plans import local

Settings = Mapping[str, Sequence[Value] | Value]


def refusals(folder: Path, text: str, settings: Settings, profile: str = PLAIN) -> list[str]:
    """Return the refusals of the only case."""
    entry = entry_of(folder, text, settings)
    (case,) = expand(entry)
    return list(check_case(case, Target.of_cluster(cluster_of(folder, profile))).refusals)


@pytest.mark.parametrize(
    ("processes", "settings", "expected"),
    [
        ("one", {"gpus": 8}, (1, 1, 8)),
        ("one per node", {"gpus": 16}, (2, 1, 8)),
        ("one per GPU", {"gpus": 16}, (2, 8, 8)),
        ("one per GPU", {"gpus": 4, "nodes": 2}, (2, 2, 2)),
        ("12", {"nodes": 3}, (3, 4, 0)),
        ("one", {"n": 1}, (1, 1, 0)),
        ("one", {"processes": 6, "nodes": 2}, (2, 3, 0)),
    ],
)
def test_job_has_the_processes_of_its_program(
    processes: str, settings: Settings, expected: tuple[int, int, int], tmp_path: Path
) -> None:
    text = TOY.replace('"{width}", --steps, "{steps}"', "x").replace("  output", f"  processes: {processes}\n  output")
    text = text.replace("  verified: iterations == steps\n", "")
    entry = entry_of(tmp_path, text, {"n": 1, **settings})
    checked = check_case(expand(entry)[0], Target.of_cluster(cluster_of(tmp_path)))
    assert checked.resources == Resources(*expected, time_limit="1:00:00") and not checked.refusals


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        (ALL_REDUCE, {**MESSAGES, "gpus": 64}, "needs 8 nodes, site has 4"),
        (ALL_REDUCE, {**MESSAGES, "gpus": 16, "nodes": 1}, "needs 16 GPUs on a node, the nodes of site have 8"),
        (ALL_REDUCE, {**MESSAGES, "gpus": 4, "nodes": 3}, "4 GPUs cannot be divided among 3 nodes"),
        (ALL_REDUCE, {"from": 8, "to": 64}, "processes: one per GPU, and the case has no GPU; set gpus"),
        (HPL, {"n": 1, "nodes": 3}, "4 processes cannot be divided among 3 nodes"),
        (
            TOY,
            {**WIDTH, "gpus": 16},
            "processes: one is on one node, and the case needs 2; processes: one per node starts one on each",
        ),
    ],
)
def test_job_that_does_not_fit_is_refused(text: str, settings: Settings, reason: str, tmp_path: Path) -> None:
    assert refusals(tmp_path, text, settings) == [reason]


def test_command_has_the_values_of_the_case_and_of_its_job(tmp_path: Path) -> None:
    text = ALL_REDUCE.replace('"1", -c', '"1", "{gpus}/{nodes}/{processes}", -c')
    (plan,) = plans_of(tmp_path, cluster_of(tmp_path), text, MESSAGES)
    words = " ".join(plan.program.per_rank())
    assert words == "all_reduce_perf -b 8 -e 17179869184 -f 2 -g 1 16/2/16 -c 1"
    assert plan.program.launcher is None and dict(plan.program.environment) == {"NCCL_DEBUG": "WARN"}


def test_files_beside_the_experiment_are_copied_and_are_part_of_the_identity(tmp_path: Path) -> None:
    def plan() -> Plan:
        return plan_cases(entry, expand(entry), cluster, Folders(tmp_path, tmp_path))[0]

    cluster, entry = local(tmp_path), entry_of(tmp_path, TOY, WIDTH)
    before = plan()
    copy_programs([before.program], Folders(tmp_path, tmp_path))
    assert (Path(str(before.program.copies)) / "train_toy.py").read_text().startswith("import sys")
    (entry.file.parent / "train_toy.py").write_text("print(1)\n")
    assert plan().identity != before.identity and plan().program.copies != before.program.copies


@pytest.mark.parametrize(
    ("text", "settings", "change", "problem"),
    [
        (
            TOY,
            WIDTH,
            ("train_toy.py", "train_tiy.py"),
            '2:22 train_tiy.py: no such .*Did you mean "train_toy.py"',
        ),
        (TOY, WIDTH, ("train_toy.py", "a/b.py"), "2:22 a/b.py: no such file in .*absolute path on the nodes"),
        (HPL, {"n": 1}, ("HPL.dat.in", "HPL.in"), '7:25 HPL.in: no such file in .*Did you mean "HPL.dat.in"'),
        (SERVED, {"port": 1}, ("monitor.sh", "moni.sh"), '6:20 moni.sh: no such file in .*Did you mean "monitor.sh"'),
    ],
)
def test_missing_file_is_named_with_its_place(
    text: str, settings: Settings, change: tuple[str, str], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ReproError, match=f"figure-1.yaml:{problem}"):
        plans_of(tmp_path, local(tmp_path), text.replace(*change), settings)


def test_axis_of_a_template_must_exist(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, HPL, {"n": 1})
    (entry.file.parent / "HPL.dat.in").write_text("{m}\n")
    with pytest.raises(ReproError, match=r"7:25 \{m\} in the template: no such axis. Hint: there are: gpus, n, nodes"):
        plan_cases(entry, expand(entry), local(tmp_path), Folders(tmp_path, tmp_path))


@pytest.mark.parametrize(
    ("profile", "image"),
    [
        ("", "nvidia/pytorch:25.12-py3"),
        ("  images: {nccl-tests: /images/nccl.sqsh}\n", "/images/nccl.sqsh"),
        ("programs: {nccl-tests: {image: /mine.sqsh}}\n", "/mine.sqsh"),
    ],
)
def test_image_is_that_of_the_profile_else_that_of_the_program(profile: str, image: str, tmp_path: Path) -> None:
    text = CONTAINERS.format(runtime="pyxis").partition("programs:")[0].replace("mounts: [/data]}", "mounts: [/data]}")
    if profile.startswith("  images"):
        text = text.replace("mounts: [/data]", f"mounts: [/data], {profile.strip()}")
        profile = ""
    (plan,) = plans_of(tmp_path, cluster_of(tmp_path, text + profile), ALL_REDUCE, MESSAGES)
    assert plan.program.image_path == image


def test_program_without_an_image_is_refused_where_jobs_have_one(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, CONTAINERS.format(runtime="pyxis"))
    with pytest.raises(
        ReproError, match="no container image for train_toy.py. Hint: add container: images.* or image: to"
    ):
        plans_of(tmp_path, cluster, TOY, WIDTH)


def entry_and_cluster(folder: Path) -> tuple[Entry, Cluster]:
    return entry_of(folder, ALL_REDUCE, {**MESSAGES, "gpus": [8, 16]}), cluster_of(folder)


def test_identity_has_no_time_limit_and_no_names(tmp_path: Path) -> None:
    entry, cluster = entry_and_cluster(tmp_path)
    folders, cases = Folders(tmp_path, tmp_path), expand(entry)
    ids = [plan.identity for plan in plan_cases(entry, cases, cluster, folders)]
    longer = [replace(case, time_limit="0:10:00", settings={**case.settings, "label": "x"}) for case in cases]
    assert [plan.identity for plan in plan_cases(entry, longer, cluster, folders)] == ids and len(set(ids)) == 2


def test_cases_that_run_the_same_command_are_refused(tmp_path: Path) -> None:
    hint = "name the axis in the command"
    with pytest.raises(ReproError, match=f"train_toy.py would run .* and .* identically. Hint: {hint}"):
        plans_of(tmp_path, local(tmp_path), TOY, {**WIDTH, "seed": [1, 2]})


def test_plan_without_a_prediction_counts_gpu_hours_of_the_limit_or_of_a_measured_run(tmp_path: Path) -> None:
    entry, cluster = entry_and_cluster(tmp_path)
    chosen = ChosenCases(entry, tuple(expand(entry)), Target.of_cluster(cluster))
    batch = plan_batch([chosen])
    report = batch_report([chosen], batch, [])
    assert report.notes == ["no prediction for nccl-tests; GPU-hours are those of the time limit"]
    assert [row.gpu_hours for row in report.rows.values()] == [8, 16]
    assert {(row.memory_gb, row.iteration_s, row.bubble, row.job_min) for row in report.rows.values()} == {(None,) * 4}
    measured = batch_report([chosen], batch.with_measured({batch.planned[0].label: 360.0}), [])
    assert measured.totals.gpu_hours == 16.8
    past = "the last measured run for 1 of 2 jobs and of the time limit"
    assert measured.notes == [f"no prediction for nccl-tests; GPU-hours are those of {past}"]


@pytest.mark.parametrize("budget", [{"time_budget": "10m"}, {"cost_budget": "5USD"}])
def test_budget_of_iterations_is_refused_without_a_prediction(budget: dict[str, str], tmp_path: Path) -> None:
    entry = entry_of(tmp_path, ALL_REDUCE, MESSAGES)
    cluster = cluster_of(tmp_path, PLAIN + "price_per_gpu_hour: {value: 1, currency: USD}\n")
    chosen = ChosenCases(entry, tuple(expand(entry)), Target.of_cluster(cluster))
    with pytest.raises(ReproError, match="budget: figure-1: the time of nccl-tests is not predicted"):
        plan_batch([chosen], budget.get("time_budget"), budget.get("cost_budget"))


def test_another_program_cannot_replace_a_described_one(tmp_path: Path) -> None:
    entry, cluster = entry_and_cluster(tmp_path)
    with pytest.raises(ReproError, match="--program pretrain: figure-1 describes its program, nccl-tests"):
        cases_at(entry, cluster, None, "pretrain")


@pytest.mark.fault(
    section="Local queue",
    fault="A local job of a described program has several processes, and the machine has no mpirun",
    promise="Refused before it is submitted, with a launcher to use.",
)
def test_local_processes_need_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = local(tmp_path)
    plans = plans_of(tmp_path, cluster, HPL, {"n": 1})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ReproError, match="hpl needs 4 processes, and mpirun is not on this machine. Hint: install it"):
        require_ready(plans, cluster, Folders(tmp_path, tmp_path))
