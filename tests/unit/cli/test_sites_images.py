"""Tests of `repro images` where compute nodes are offline and this machine imports. tests/slurm has import jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.stand_in_site import REPRO, Site
from tests.unit.cli.calling import Caller, everything_in
from tests.unit.launch.enroot import DIGEST, FILE, OTHER_DIGEST, StandIn
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PROFILE = """\
about: a cluster with containers
scheduler: slurm
hardware: {{nodes: 2, gpus_per_node: 8}}
slurm: {{time_limit: "0:10:00"}}
site: {{staging_folder: {staging}, offline_nodes: {offline}}}
container:
  runtime: pyxis
  images:
    pretrain: registry.example/team/torch:1
    kept: {kept}
    blank: <the image of the other program>
"""
FOUND = ("--cluster", "site")


def write(site: Site, offline: str = "true") -> Path:
    """The profile `site`; returns the staging folder."""
    staging, kept = site.folder / "images", site.folder / "kept.sqsh"
    kept.write_text("12345")
    text = PROFILE.format(staging=json.dumps(str(staging)), kept=json.dumps(str(kept)), offline=offline)
    (site.folder / "clusters" / "site.yaml").write_text(text)
    return staging


@pytest.fixture
def enroot(site: Site, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn.make(site.folder / "bin", DIGEST)
    monkeypatch.setenv("PATH", f"{made.folder}:{os.environ['PATH']}")
    return made


def test_images_are_listed_with_their_location_in_the_profile_and_the_next_command(repro: Caller) -> None:
    staging = write(repro.site)
    done = repro("images", "list", *FOUND)
    assert done.returncode == 0
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["IMAGE", "THERE", "BYTES"],
        ["pretrain", "no", "-"],
        ["kept", "yes", "5"],
        ["blank", "no", "-"],
    ]
    assert f"{staging}/team+torch+1.sqsh" in done.stdout and "clusters/site.yaml:9:5" in done.stdout
    assert done.stderr.splitlines() == [
        "next: repro images import --cluster site   # import the images of the registry"
    ]


def test_the_same_rows_as_json(repro: Caller) -> None:
    staging = write(repro.site)
    rows = json.loads(repro("images", "list", *FOUND, "--json").stdout)["images"]
    assert rows[0] == {
        "image": "pretrain",
        "value": "registry.example/team/torch:1",
        "source": f"{staging}/team+torch+1.sqsh",
        "there": "no",
        "digest": None,
        "digest_of": None,
        "imported": None,
        "user": None,
        "bytes": None,
        "location": "clusters/site.yaml:9:5",
    }
    assert [row["there"] for row in rows] == ["no", "yes", "no"] and rows[2]["source"] is None


def test_a_cluster_without_images_is_one_line(repro: Caller) -> None:
    done = repro("images", "list", "--cluster", "here")
    assert (done.returncode, done.stdout, done.complaints) == (0, "", ["here defines no images"])
    assert json.loads(repro("images", "list", "--cluster", "here", "--json").stdout)["images"] == []


@pytest.mark.parametrize("words", ["images list", "images import", "images", "images fetch"])
def test_a_command_that_lacks_something_is_exit_2(repro: Caller, words: str) -> None:
    done = repro(*words.split())
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_all_problems_are_printed_at_once_and_nothing_is_written(repro: Caller) -> None:
    write(repro.site)
    before = everything_in(repro.site.folder)
    done = repro("images", "import", *FOUND, "kept", "pretrian", "blank")
    assert done.returncode == 2 and done.stdout == ""
    assert done.complaints == [
        f"repro: clusters/site.yaml:10:5 kept is already a file, {repro.site.folder}/kept.sqsh: nothing to import",
        'repro: pretrian: site has no such image. Did you mean "pretrain"?',
        "repro: clusters/site.yaml:11:5 container.images.blank: not filled in, <the image of the other "
        "program>. Hint: set it in clusters/site.local.yaml",
    ]
    assert repro("images", "import", "--cluster", "sit").complaints == [
        'repro: sit: no such cluster. Did you mean "site"?'
    ]
    assert everything_in(repro.site.folder) == before


def test_a_machine_without_sbatch_is_exit_3_and_leaves_nothing(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    write(repro.site, offline="false")
    monkeypatch.setenv("PATH", "/nowhere")
    before = everything_in(repro.site.folder)
    done = repro("images", "import", *FOUND)
    assert done.returncode == 3 and "sbatch is not on this machine" in done.stderr
    assert everything_in(repro.site.folder) == before


def test_this_machine_imports_if_the_nodes_are_offline_and_prints_so(repro: Caller, enroot: StandIn) -> None:
    staging = write(repro.site)
    done = repro("images", "import", *FOUND)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"pretrain  here  {staging}/team+torch+1.sqsh\n"
    assert done.complaints == [
        "compute nodes of site reach no registry: this machine imports",
        "pretrain: imported",
    ]
    assert sorted(path.name for path in staging.iterdir()) == ["team+torch+1.sqsh", FILE, f"{FILE}.json"]
    listed = repro("images", "list", *FOUND)
    assert f"manifest:{DIGEST[7:19]}" in listed.stdout.splitlines()[1]
    assert listed.stderr.splitlines()[-1].startswith("next: repro clusters check site ")
    again = repro("images", "import", *FOUND)
    assert (again.returncode, again.stdout) == (0, "")
    assert again.complaints == ["pretrain: imported already; --again imports it again"]
    enroot.tell(digest=OTHER_DIGEST)
    assert repro("images", "import", *FOUND, "--again", "pretrain").returncode == 0
    assert len(enroot.imports) == 2 and OTHER_DIGEST[7:19] in str((staging / "team+torch+1.sqsh").readlink())


def test_an_import_that_fails_here_is_exit_1_and_leaves_the_staging_folder_clean(
    repro: Caller, enroot: StandIn
) -> None:
    staging = write(repro.site)
    enroot.tell(behave="fail")
    done = repro("images", "import", *FOUND)
    assert done.returncode == 1 and "pretrain: ended with exit code 3" in done.complaints
    assert done.stderr.splitlines()[-1].startswith("next: repro images import --cluster site")
    assert list(staging.iterdir()) == []


def test_an_interrupted_import_leaves_no_half_of_an_image(site: Site, enroot: StandIn) -> None:
    staging = write(site)
    enroot.tell(behave="hang")
    command = [REPRO, "images", "import", *FOUND]
    process = subprocess.Popen(
        command, cwd=site.folder, env=site.environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    sleeper = enroot.folder / "sleeper"
    wait_until(lambda: sleeper.exists() and sleeper.read_text().strip())
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=600)
    assert process.returncode != 0 and list(staging.iterdir()) == []
