"""The files of a run: repeats of a case share a script, which takes the folder of its log and records."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.clusters.resolve import Cluster
from orchestrator.files import read_record
from orchestrator.launch.run_options import RunPlan
from orchestrator.launch.submit import FailedNodes, batches_of, scripts_of, write_scripts
from orchestrator.ledger.runs import NewAttempt
from orchestrator.planning.plan import Plan, repeated
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

RUN = "20260101-000000-beef"


def written(site: Site, plans: Sequence[Plan], cluster: Cluster) -> list[NewAttempt]:
    run_plan = RunPlan(at_once=4)
    batches = list(batches_of(plans, {}, run_plan, cluster, 1000, FailedNodes(cluster)))
    made = write_scripts(RUN, batches, run_plan, cluster, site.folders)
    return [made[plan.identity] for plan in plans]


def scripts_below(site: Site) -> list[Path]:
    return sorted(site.folders.run(RUN).rglob("job.sh"))


@pytest.fixture
def three(site: Site) -> list[Plan]:
    """A case three times."""
    return list(repeated(site.plans("pp=1,gbs=4"), 3))


def test_repeats_of_a_case_share_one_script_and_have_a_folder_each(site: Site, three: list[Plan]) -> None:
    attempts = written(site, three, site.cluster())
    (script,) = scripts_below(site)
    run = site.folders.run(RUN)
    assert script == run / "pp1-tp4-gbs4" / "job.sh"
    assert [Path(one.folder) for one in attempts] == [
        run / "pp1-tp4-gbs4",
        run / "pp1-tp4-gbs4.repeat-2",
        run / "pp1-tp4-gbs4.repeat-3",
    ]
    assert [one.file.parent == one.folder for one in scripts_of(RUN, three, site.folders)] == [True, False, False]
    # What is kept of each is that script's digest, and of the first its text.
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert [(one.script, one.script_sha256) for one in attempts] == [
        (script.read_text(), digest),
        ("", digest),
        ("", digest),
    ]


def test_a_queue_names_the_script_and_the_folder_of_each_job(site: Site, three: list[Plan]) -> None:
    attempts = written(site, three, site.cluster())
    (queue,) = {one.file for one in attempts}
    pairs = re.findall(r"^  '(.*)/job\.sh' '?(.*?)'?$", Path(queue).read_text(), re.MULTILINE)
    assert pairs == [(attempts[0].folder, one.folder) for one in attempts]
    assert [one.array_index for one in attempts] == [0, 1, 2]


def test_on_slurm_a_repeat_alone_goes_as_an_array_as_sbatch_gives_a_script_no_folder(
    site: Site, three: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    Slurm.on_path(site.folder.parent / "bin", monkeypatch)
    (site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    there = site.cluster("there")
    (first,) = written(site, three[:1], there)
    assert (first.file, first.array_index) == (str(scripts_below(site)[0]), None)
    (second,) = written(site, three[1:2], there)
    assert second.file.endswith(".array.sh") and second.array_index == 0
    assert f"{first.folder}/job.sh" in Path(second.file).read_text() and second.folder in Path(second.file).read_text()


def test_a_script_leaves_its_log_and_records_in_the_folder_that_it_is_given(site: Site, three: list[Plan]) -> None:
    first, second, _ = (Path(one.folder) for one in written(site, three, site.cluster()))
    script = first / "job.sh"
    for words, folder in (([], first), ([str(second)], second)):
        done = subprocess.run(["bash", str(script), *words], env=dict(os.environ), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        end = read_record(folder / "end")
        assert end is not None and end.exit_code == 0
        assert (folder / "log.txt").read_text().count("elapsed time per iteration") == 8
    names = sorted(path.name for path in second.iterdir() if not path.name.startswith("fingerprint."))
    assert names == ["claimed", "end", "log.txt", "start"]
    # A second copy of one is kept from starting by that one's folder alone.
    (second / "end").unlink()
    (second / "claimed").write_text("77\n")
    assert subprocess.run(["bash", str(script), str(second)], capture_output=True, check=False).returncode == 95
