"""Whole scripts, compared exactly: what a person reads, and what is submitted, changes only on purpose.

`pytest tests/unit/render --update-golden` writes them anew: golden/PROFILE/WORKLOAD.sh for each shipped profile and
workload, golden/refusals.txt for those that a site cannot run, and the scripts that are neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.launch.batches import warm_ups
from orchestrator.launch.images import render_import
from orchestrator.launch.render import (
    Script,
    explain_job,
    render_array,
    render_job,
    render_queue,
)
from orchestrator.launch.run_options import CanaryJob, FollowedJob, Gate
from orchestrator.planning.plan import Plan
from tests.unit.clusters.sites import SELENE_FILLED, cluster_of, selene, shipped_names
from tests.unit.render.matrix import CHOSEN, VARIED, job_folder, plan_or_refusals, site, without_folders
from tests.unit.render.plans import H200S, LOCAL, RUN, TEMPLATES, kwai, local, plain_slurm, plans

GOLDEN = Path(__file__).resolve().parent / "golden"
MATRIX = [(profile, workload) for profile in shipped_names() for workload in CHOSEN]

STAGED = SELENE_FILLED.replace(
    "container:\n  images:\n", "container:\n  images:\n    pretrain: registry.example#a/torch:1\n"
)


def compare(file: Path, text: str, update: bool) -> None:
    text = without_folders(text)
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"no {file.name}: pytest tests/unit/render --update-golden writes it"
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("profile", "workload"), [*MATRIX, *((name, said[2]) for name, said in VARIED.items())])
def test_the_script_of_a_site_is_to_the_letter_the_one_that_was_looked_at(
    profile: str, workload: str, update_golden: bool
) -> None:
    file, plan = GOLDEN / profile / f"{workload}.sh", plan_or_refusals(profile, workload)
    if isinstance(plan, Plan):
        compare(file, render_job(plan, site(profile), job_folder(plan), TEMPLATES), update_golden)
    elif update_golden:
        file.unlink(missing_ok=True)
    else:
        assert not file.exists(), f"{file.name} is there, and is refused: {plan}"


def test_what_a_site_cannot_run_is_refused_in_one_line_that_says_why(update_golden: bool) -> None:
    refused = [(one, found) for one in MATRIX if not isinstance(found := plan_or_refusals(*one), Plan)]
    lines = [(f"{profile} {workload}", reasons) for (profile, workload), reasons in refused]
    assert all(len(reasons) == 1 and "\n" not in reasons[0] for _, reasons in lines), lines
    width = max(len(name) for name, _ in lines)
    compare(GOLDEN / "refusals.txt", "".join(f"{name:<{width}}  {why[0]}\n" for name, why in lines), update_golden)


@cache
def _plans(make: Callable[[Path], Cluster], scale: str, experiment: str = "figure-13") -> tuple[Cluster, list[Plan]]:
    with TemporaryDirectory() as folder:
        cluster = make(Path(folder))
    return cluster, plans(cluster, scale, experiment)


def _without_containers() -> str:
    cluster, found = _plans(plain_slurm, "quad")
    return render_job(found[2], cluster, RUN / "pp2-tp2-gbs32", TEMPLATES)


def _kwai() -> str:
    cluster, found = _plans(kwai, "paper", "atc-table-8")
    return render_job(found[1], cluster, RUN / "ours", TEMPLATES)


def _local() -> str:
    cluster, found = _plans(local, "cpu")
    return render_job(found[0], cluster, RUN / "pp1-tp4-gbs4", TEMPLATES)


def _sampled() -> str:
    with TemporaryDirectory() as folder:
        cluster = selene(Path(folder), SELENE_FILLED + "sample_gpus_every_s: 5\n")
    return render_job(plans(cluster, "paper")[0], cluster, RUN / "pp2-tp32-gbs32", TEMPLATES)


def _sampled_local() -> str:
    with TemporaryDirectory() as folder:
        cluster = local(Path(folder), LOCAL + "sample_gpus_every_s: 1\n", H200S)
    return render_job(plans(cluster, "quad")[0], cluster, RUN / "pp1-tp4-gbs32", TEMPLATES)


def _array() -> str:
    plan = plan_or_refusals("selene", "megatron-2021")
    assert isinstance(plan, Plan)
    return render_array([plan] * 2, site("selene"), _scripts("a", "b"), RUN / "submissions", TEMPLATES, at_once=4)


def _scripts(*names: str) -> list[Script]:
    return [Script(RUN / name / "job.sh", RUN / name) for name in names]


GATE = Gate(RUN, stop_after=2, canary=CanaryJob("pp=1 'quoted'", RUN / "a b", 20, 8, 2, 4, 1))


def _gated_array() -> str:
    plan = plan_or_refusals("selene", "megatron-2021")
    assert isinstance(plan, Plan)
    return render_array([plan], site("selene"), _scripts("a"), RUN / "submissions", TEMPLATES, at_once=1, gate=GATE)


def _queue() -> str:
    repeat = Script(RUN / "b c" / "job.sh", RUN / "b c-2")
    return render_queue([*_scripts("a", "b c"), repeat], Path("/runs/.lock"), TEMPLATES)


def _gated_queue() -> str:
    before = [FollowedJob(str(RUN / "before this"), 4321)]
    return render_queue(_scripts("a"), Path("/runs/.lock"), TEMPLATES, gate=GATE, follows=before)


def _warm_up() -> str:
    plan = plan_or_refusals("selene", "megatron-2021")
    assert isinstance(plan, Plan)
    ((warm_up, _),) = warm_ups([plan, plan], site("selene"))
    return render_job(warm_up, site("selene"), RUN / "warm-up", TEMPLATES)


def _import_with_enroot() -> str:
    with TemporaryDirectory() as folder:
        cluster = selene(Path(folder), STAGED + "site: {staging_folder: /scratch/images}\n")
    return render_import(cluster, "pretrain", RUN / "import", TEMPLATES)


def _import_with_apptainer() -> str:
    text = (
        "about: a site with Apptainer\nscheduler: slurm\nhardware: {nodes: 4, gpus_per_node: 4}\n"
        "slurm: {time_limit: 1:00:00}\nsetup: [module load apptainer]\n"
        "site: {architecture: aarch64, staging_folder: /scratch/my images}\n"
        "container: {runtime: apptainer, images: {pretrain: registry.example/a/torch:1}}\n"
    )
    with TemporaryDirectory() as folder:
        cluster = cluster_of(Path(folder), text)
    return render_import(cluster, "pretrain", RUN / "import", TEMPLATES)


OTHERS: Mapping[str, Callable[[], str]] = {
    "slurm_without_containers": _without_containers,
    "kwai": _kwai,
    "local": _local,
    "sampled": _sampled,
    "sampled_local": _sampled_local,
    "array": _array,
    "gated_array": _gated_array,
    "queue": _queue,
    "gated_queue": _gated_queue,
    "warm_up": _warm_up,
    "import_with_enroot": _import_with_enroot,
    "import_with_apptainer": _import_with_apptainer,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_script_of_another_kind_is_to_the_letter_the_one_that_was_looked_at(name: str, update_golden: bool) -> None:
    compare(GOLDEN / f"{name}.sh", OTHERS[name](), update_golden)


def test_the_explained_script_is_to_the_letter_the_one_that_was_looked_at(update_golden: bool) -> None:
    plan = plan_or_refusals("selene", "megatron-2021")
    assert isinstance(plan, Plan)
    lines = explain_job(plan, site("selene"), job_folder(plan), TEMPLATES)
    origins = [without_folders(", ".join(line.origins)) for line in lines]
    width = max(map(len, origins))
    text = "".join(f"{o:<{width}}  {line.text}".rstrip() + "\n" for o, line in zip(origins, lines, strict=True))
    compare(GOLDEN / "selene" / "megatron-2021.explained.txt", text, update_golden)


def test_the_golden_folder_has_a_script_for_each_that_is_not_refused_and_no_other() -> None:
    expected = {f"{p}/{w}.sh" for p, w in MATRIX if isinstance(plan_or_refusals(p, w), Plan)}
    expected |= {f"{name}/{workload}.sh" for name, (_, _, workload) in VARIED.items()}
    expected |= {f"{name}.sh" for name in OTHERS} | {"refusals.txt", "selene/megatron-2021.explained.txt"}
    found = {str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*") if file.is_file()}
    assert found == expected
