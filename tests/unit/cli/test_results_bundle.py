"""Tests of `repro bundle`: names of files, refusals, texts and exit codes. unit/api tests what a bundle contains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.stand_in_site import Site
from tests.unit.api.bundle_files import content, packed
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(finished: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of figure 13."""
    file = tmp_path_factory.mktemp("bundle") / "figure-13.tar.zst"
    done = finished.repro("bundle", "figure-13", "-o", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done.stderr
    assert f"next: repro bundle verify {file}   #" in done.stderr
    return file


def test_verify_prints_each_check_and_a_difference_is_exit_1(looking: Caller, made: Path, tmp_path: Path) -> None:
    done = looking("bundle", "verify", str(made))
    assert done.returncode == 0, done.stdout
    assert re.fullmatch(
        r"files     \d+ of them: no difference\n"
        r"numbers   6 attempts read again: 48 iterations, \d+ metrics: no difference\n"
        r"results   6 cases and \d+ claims judged again: no difference\n"
        r"pages     report\.html and README\.txt rendered again: no difference\n",
        done.stdout,
    )
    files = content(made)
    files["report.html"] = files["report.html"].replace(b"420", b"240")
    forged = looking("bundle", "verify", str(packed(files, tmp_path / "forged.tar.zst", with_sums=True)))
    assert forged.returncode == 1 and "it is consistent" not in forged.stderr
    assert f"{'':<8}  report.html: differs from what the ledger in the bundle gives\n" in forged.stdout
    files["bundle.json"] = re.sub(rb'"code_sha256": "[0-9a-f]+"', b'"code_sha256": "0"', files["bundle.json"])
    other = looking("bundle", "verify", str(packed(files, tmp_path / "other.tar.zst", with_sums=True)))
    assert other.returncode == 0
    assert "consistent with its checksums and logs: numbers and claims follow from the logs" in other.stderr
    assert "note: not checked: report.html and README.txt; read results/" in other.stderr


def test_a_bundle_in_a_new_folder_has_the_name_of_the_figure(looking: Caller, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "handover"
    assert looking("bundle", "nosuch", "-o", f"{folder}/").returncode == 2 and not folder.parent.exists()
    done = looking("bundle", "figure-13", "-o", f"{folder}/")
    assert (done.returncode, done.stdout) == (0, f"{folder}/figure-13-cpu-here.tar.zst\n"), done.stderr
    again = looking("bundle", "figure-13", "-o", str(folder))
    assert (again.returncode, "figure-13-cpu-here.tar.zst: exists already" in again.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify"], "verify needs a file and no option. Hint: repro bundle verify FILE"),
        (["verify", "x", "--force"], "verify needs a file and no option"),
        (["figure-13", "x.tar.zst"], "x.tar.zst: only verify reads a file. Hint: -o names the file to write"),
        (["verify", "nowhere.tar.zst"], "nowhere.tar.zst: No such file or directory"),
        (["verify", "."], ".: Is a directory"),
        (["figure-13", "--scale", "quad"], "figure-13 at quad was never submitted"),
        (
            ["figure-13", "-o", "x.tar.gz"],
            "x.tar.gz: a bundle is a tar file compressed with zstd, and its name ends with .tar.zst. "
            "Hint: -o x.tar.zst",
        ),
        (["figure-13", "-o", "x.tar"], "Hint: -o x.tar.zst"),
        (["figure-13", "-o", "handover.v2"], "Hint: -o handover.v2.tar.zst"),
        (["figure-13", "-o", "no/where.tar.zst"], "no/where.tar.zst: there is no folder no"),
        (["sc21", "-o", "handover"], "handover: no such folder. Hint: several bundles need a folder: -o handover/"),
    ],
)
def test_a_refused_bundle_command_is_one_line(looking: Caller, words: list[str], said: str) -> None:
    done = looking("bundle", *words)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert said in done.stderr
