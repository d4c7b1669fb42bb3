"""Tests of `repro clusters`: output, exit codes, and read-only commands that change nothing. Slurm is a fake."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import Problem, Unreachable
from orchestrator.slurm.site import Site as SlurmSite
from tests.unit.catalog.entries import CHECKOUT
from tests.unit.cli.calling import Caller, everything_in
from tests.unit.clusters.test_check import PROFILE, SITE

OVERLAY = """\
slurm:
  partition: gpu
  account: <your account>
"""


@pytest.fixture
def mine(repro: Caller) -> Path:
    """A profile `mine`, of a Slurm site, in the folder that the commands are called in."""
    file = repro.site.folder / "clusters" / "mine.yaml"
    file.write_text(PROFILE)
    return file


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no programs").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "no programs"))


def with_site(monkeypatch: pytest.MonkeyPatch, site: SlurmSite | Unreachable) -> None:
    def answer(_: str) -> SlurmSite:
        if isinstance(site, Unreachable):
            raise site
        return site

    monkeypatch.setattr("orchestrator.slurm.site.read_site", answer)


def rows(text: str, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)[name]
    return found


# ---- list and show -------------------------------------------------------------------------------------------


def test_list_has_shipped_and_own_profiles_with_their_open_values(repro: Caller, mine: Path) -> None:
    mine.with_name("mine.local.yaml").write_text(OVERLAY)
    done = repro("clusters", "list")
    assert done.returncode == 0 and done.complaints == []
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert {"here", "local", "mine", "selene"} <= set(names) and names == sorted(names)
    assert not [name for name in names if name.endswith(".local")]
    table = {row["cluster"]: row for row in rows(repro("clusters", "list", "--json").stdout, "clusters")}
    assert (table["mine"]["nodes"], table["mine"]["scheduler"]) == (4, "slurm")
    assert table["mine"]["open"] == ["slurm.account"]
    assert table["selene"]["container"] == "pyxis" and table["selene"]["open"]


def test_a_profile_that_cannot_be_read_is_named_below_those_that_can(repro: Caller, mine: Path) -> None:
    mine.write_text("about: x\nscheduler: slrm\n")
    done = repro("clusters", "list")
    assert done.returncode == 2 and "here" in done.stdout and "mine" not in done.stdout
    assert done.complaints[0].startswith("repro: clusters/mine.yaml:2:1 scheduler: ")


def test_show_prints_all_layers_as_yaml_and_names_open_values(repro: Caller, mine: Path) -> None:
    mine.with_name("mine.local.yaml").write_text(OVERLAY)
    before = everything_in(repro.site.folder)
    done = repro("clusters", "show", "mine")
    assert done.returncode == 0
    assert "  partition: gpu\n" in done.stdout and "  gres_type: a100\n" in done.stdout
    assert done.complaints == [
        "mine: clusters/mine.yaml, then clusters/mine.local.yaml",
        "open: slurm.account: <your account>",
        "set open values in clusters/mine.local.yaml",
    ]
    assert rows(repro("clusters", "show", "mine", "--json").stdout, "profiles")[0]["slurm"]["partition"] == "gpu"
    assert everything_in(repro.site.folder) == before


def test_show_resolved_has_the_line_of_every_value(repro: Caller, mine: Path) -> None:
    mine.with_name("mine.local.yaml").write_text(OVERLAY)
    found = rows(repro("clusters", "show", "mine", "--resolved", "--json").stdout, "fields")
    places = {row["field"]: row["location"] for row in found}
    texts = {name: (mine.parent / name).read_text().splitlines() for name in ("mine.yaml", "mine.local.yaml")}
    assert len(found) == 14
    for row in found:
        file, line, column = row["location"].rsplit(":", 2)
        written = texts[Path(file).name][int(line) - 1][int(column) - 1 :]
        assert written.startswith(f"{row['field'].rpartition('.')[2]}: {row['value']}"), row
    assert places["slurm.partition"] == "clusters/mine.local.yaml:2:3"
    assert places["slurm.time_limit"] == "clusters/mine.yaml:13:3"
    shown = repro("clusters", "show", "mine", "--resolved").stdout.splitlines()
    assert shown[0].split() == ["FIELD", "VALUE", "FROM"] and len(shown) == 15
    (line,) = [line for line in shown if line.startswith("slurm.partition ")]
    assert line.split() == ["slurm.partition", "gpu", "clusters/mine.local.yaml:2:3"]


# ---- check ---------------------------------------------------------------------------------------------------


def test_a_right_profile_is_a_table_and_exit_code_0(repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_site(monkeypatch, SITE)
    before = everything_in(mine.parents[1])
    done = repro("clusters", "check", "mine")
    assert done.returncode == 0 and done.complaints == ["mine: 9 checks passed"]
    table = done.stdout.splitlines()
    assert table[0].split() == ["RESULT", "PLACE", "CHECK", "FOUND"] and len(table) == 10
    assert all(line.startswith("ok      login") for line in table[1:])
    other = repro("clusters", "check", "mine", "--set", "slurm.partition=gpuu")
    assert other.returncode == 2 and "--set slurm.partition=gpuu" in other.stderr, other.stderr
    assert everything_in(mine.parents[1]) == before


def test_faults_are_lines_on_stderr_the_table_is_on_stdout_and_the_exit_code_is_2(
    repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_site(monkeypatch, SITE)
    mine.with_name("mine.local.yaml").write_text(OVERLAY)
    done = repro("clusters", "check", "mine")
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            "repro: clusters/mine.local.yaml:3:3 slurm.account: <your account>. "
            "Hint: set it in clusters/mine.local.yaml",
            'repro: clusters/mine.local.yaml:2:3 slurm.partition: gpu: no such partition. Did you mean "gpus"?',
        ],
    )
    faults = [line for line in done.stdout.splitlines() if line.startswith(("wrong", "open"))]
    assert len(faults) == 2, "the table lists faults too"
    found = repro("clusters", "check", "mine", "--json")
    assert found.returncode == 2 and found.stderr == done.stderr
    (fault,) = [row for row in rows(found.stdout, "checks") if row["result"] == "wrong"]
    assert fault == {
        "result": "wrong",
        "place": "login",
        "check": "slurm.partition",
        "found": "gpu: no such partition",
        "location": "clusters/mine.local.yaml:2:3",
        "hint": 'did you mean "gpus"?',
    }


def test_later_and_unknown_findings_are_not_faults(repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = replace(SITE, associations=None, qos=None, complaints=("sacctmgr: Connection refused",))
    with_site(monkeypatch, away)
    mine.with_name("mine.local.yaml").write_text("programs: {megatron-2026: {checkout: <where>}}\n")
    done = repro("clusters", "check", "mine")
    assert done.returncode == 0 and done.complaints[0] == "note: sacctmgr: Connection refused"
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"ok", "unknown", "later"}
    results = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    counts = {result: results.count(result) for result in ("ok", "later", "unknown")}
    summary = "mine: {ok} checks passed, {later} later, {unknown} unknown".format(**counts)
    assert done.complaints[-1] == summary


def test_paths_that_only_nodes_see_are_left_to_the_job_that_is_suggested(
    repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_site(monkeypatch, SITE)
    mine.with_name("mine.local.yaml").write_text(
        "site: {login_sees_paths: false}\nprograms: {megatron-2026: {checkout: /on/nodes/only}}\n"
    )
    done = repro("clusters", "check", "mine")
    assert done.returncode == 0 and "not checked  compute  programs.megatron-2026.checkout" in done.stdout
    assert done.stderr.splitlines() == [
        "mine: 9 checks passed",
        "next: repro clusters check mine --job   # also the 1 path of compute nodes",
    ]


def test_no_probe_job_is_submitted_while_there_are_faults(
    repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_site(monkeypatch, replace(SITE, mpi_kinds=("pmi2",)))
    done = repro("clusters", "check", "mine", "--job")
    assert done.returncode == 2 and done.stderr.splitlines()[0] == "no job was started: correct the faults first"
    assert not (mine.parents[1] / "runs").exists()


@pytest.mark.parametrize(
    "words", ["check mine", "check mine --job --json", "check mine --experiment figure-13", "new it"]
)
@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_there_is_one_line_exit_code_3_and_nothing_is_written(
    repro: Caller, mine: Path, words: str
) -> None:
    before = everything_in(mine.parents[1])
    done = repro("clusters", *words.split())
    assert done.returncode == 3 and (json.loads(done.stdout)["checks"] == [] if "--json" in words else not done.stdout)
    assert done.stderr.startswith("repro: scontrol: there is no such command") and len(done.stderr.splitlines()) == 1
    assert everything_in(mine.parents[1]) == before


def test_a_slurm_that_does_not_answer_is_exit_code_3(
    repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_site(monkeypatch, Unreachable(Problem("scontrol: no answer within 60 s", hint="try again")))
    done = repro("clusters", "check", str(mine))
    assert (done.returncode, done.stderr) == (3, "repro: scontrol: no answer within 60 s. Hint: try again\n")


@pytest.mark.usefixtures("no_slurm")
def test_this_machine_is_checked_without_slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.megatron.exact.absent_packages", lambda: ())
    done = repro("clusters", "check", "local")
    assert done.returncode == 0 and done.complaints == ["local: 2 checks passed"]
    assert "next: repro submit figure-13 --cluster local --dry-run" in done.stderr
    monkeypatch.setattr("orchestrator.megatron.exact.absent_packages", lambda: ("torch",))
    done = repro("clusters", "check", "local")
    assert done.returncode == 2 and done.stderr.startswith("repro: training: no torch. Hint: pip install ")


# ---- new and schema ------------------------------------------------------------------------------------------


def test_new_writes_a_profile_that_the_other_commands_read_and_never_over_another(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_site(monkeypatch, replace(SITE, complaints=("scontrol show reservation: denied",)))
    done = repro("clusters", "new", "ours", "--partition", "gpus")
    file = repro.site.folder / "clusters" / "ours.yaml"
    assert done.returncode == 0 and done.stdout == f"{file}\n"
    assert done.complaints == ["note: scontrol show reservation: denied"] and file.exists()
    assert repro("clusters", "check", "ours").returncode == 0
    text = file.read_text()
    again = repro("clusters", "new", "ours")
    assert (again.returncode, again.stdout) == (2, "") and "a cluster ours exists already" in again.stderr
    assert file.read_text() == text


def test_the_schema_is_the_file_that_shipped_profiles_name(repro: Caller) -> None:
    done = repro("clusters", "schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (CHECKOUT / "clusters" / "schema.json").read_text()


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("show hre", 'repro: hre: no such cluster. Did you mean "here"?'),
        ("show ./none.yaml", "repro: none.yaml: no such file"),
        ("check hre", 'repro: hre: no such cluster. Did you mean "here"?'),
        ("check here --job", "repro: here has no Slurm. Hint: leave --job and --experiment out"),
        ("check here --experiment figure-13", "repro: here has no Slurm. Hint: leave --job and --experiment out"),
        ("check mine --scale cpu", "repro: --scale needs --experiment. Hint: add --experiment"),
        ("check mine --experiment figure-31", "repro: figure-31: no such experiment. Did you mean"),
        ("check mine --experiment figure-13 --scale cpi", 'repro: cpi: no such scale. Did you mean "cpu"?'),
        ("new mine", "repro: clusters/mine.yaml: a cluster mine exists already. Hint: use another name"),
        ("new selene", "repro: "),
        ("new ../up", "repro: '../up': not a valid cluster name. Hint: use letters"),
        ("new .hidden", "repro: '.hidden': not a valid cluster name"),
        ("new a.local", "repro: 'a.local': not a valid cluster name"),
        ("new it --partition nosuch", "repro: nosuch: no such partition. Hint: there are: gpus, debug"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_changes_nothing(
    repro: Caller, mine: Path, monkeypatch: pytest.MonkeyPatch, words: str, line: str
) -> None:
    with_site(monkeypatch, SITE)
    before = everything_in(mine.parents[1])
    done = repro("clusters", *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1, done.stderr
    assert everything_in(mine.parents[1]) == before


def test_a_folder_that_cannot_be_written_is_one_line(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    with_site(monkeypatch, SITE)
    monkeypatch.setattr(Path, "write_text", _refuse)
    done = repro("clusters", "new", "ours")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "Permission denied" in done.stderr


def _refuse(path: Path, *_: object, **__: object) -> int:
    raise PermissionError(13, os.strerror(13), str(path))
