"""Tests of `repro adopt`: jobs whose scripts were submitted by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")


@pytest.fixture
def scripts(repro: Caller) -> list[Path]:
    """Return the scripts of two rendered cases."""
    done = repro("render", *HERE, "--where", "gbs=4", "-o", str(repro.site.folder / "jobs"))
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def adopt(repro: Caller, site: Site) -> dict[str, Any]:
    done = repro("adopt", str(site.folder / "jobs"), "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_job_that_was_run_by_hand_is_verified_and_adopted_once(repro: Caller, scripts: list[Path]) -> None:
    assert subprocess.run(["bash", scripts[0]], check=False).returncode == 0
    first = adopt(repro, repro.site)
    (row,) = first["jobs"]
    assert (row["state"], row["verdict"], row["origin"]) == ("COMPLETED", "verified", "by hand")
    assert first["not_submitted"] == [str(script) for script in scripts[1:]]
    again = adopt(repro, repro.site)
    assert (again["jobs"], again["adopted_before"]) == ([], [str(scripts[0])])
    assert json.loads(repro("sql", "select count(*) as n from runs", "--json").stdout)["rows"] == [{"n": 1}]
    rows = json.loads(repro("status", "figure-13", "--json").stdout)["jobs"]
    assert [(one["job"], one["attempt"], one["verdict"]) for one in rows] == [(row["job"], 1, "verified")]
    assert json.loads(repro("history", row["job"], "--json").stdout)["attempts"][0]["origin"] == "by hand"
    submitted = repro("submit", *HERE, "--where", "gbs=4", "--dry-run", "--json")
    assert row["job"] in {planned["job"] for planned in json.loads(submitted.stdout)["plans"]}


def test_an_adopted_result_is_not_submitted_again_and_is_in_a_bundle(repro: Caller, scripts: list[Path]) -> None:
    for script in scripts:
        assert subprocess.run(["bash", script], check=False).returncode == 0
    assert len(adopt(repro, repro.site)["jobs"]) == 3
    done = repro.site.submit("--where", "gbs=4")
    assert "3 done, 0 submitted" in done.stderr, done.stderr
    assert repro("bundle", "figure-13", "-o", "figure.tar.zst").returncode == 0
    verified = repro("bundle", "verify", "figure.tar.zst")
    assert verified.returncode == 0, verified.stdout


def test_a_second_run_of_a_script_is_a_second_attempt(repro: Caller, scripts: list[Path]) -> None:
    for number in (1, 2):
        assert subprocess.run(["bash", scripts[0]], check=False).returncode == 0
        assert [row["attempt"] for row in adopt(repro, repro.site)["jobs"]] == [number]


def test_a_running_job_is_adopted_as_running_and_judged_when_it_has_ended(repro: Caller, scripts: list[Path]) -> None:
    repro.site.behave("gated")
    folder = scripts[0].with_suffix("")
    with subprocess.Popen(["bash", scripts[0]], start_new_session=True) as job:
        try:
            wait_until((folder / "log.txt").exists)
            (row,) = adopt(repro, repro.site)["jobs"]
        finally:
            (repro.site.folder / "go").touch()
        assert job.wait() == 0
    assert (row["state"], row["verdict"]) == ("RUNNING", None)
    assert [one["verdict"] for one in json.loads(repro("status", "--json").stdout)["jobs"]] == ["verified"]


def test_an_edited_script_is_named_and_the_verdict_comes_from_the_log(repro: Caller, scripts: list[Path]) -> None:
    text = scripts[0].read_text()
    scripts[0].write_text(text.replace("--train-iters", "--lr 1 --train-iters", 1))
    assert subprocess.run(["bash", scripts[0]], check=False).returncode == 0
    repro.site.behave("fail")
    subprocess.run(["bash", scripts[1]], check=False)
    scripts[1].unlink()
    rows = {row["origin"]: row["verdict"] for row in adopt(repro, repro.site)["jobs"]}
    assert rows == {"by hand, script edited": "verified", "by hand, script missing": "failed"}
    status = json.loads(repro("status", "--json").stdout)["jobs"]
    assert "by hand, script edited" in {row["why"] for row in status}


def test_a_record_has_no_secret(site: Site, repro: Caller) -> None:
    profile = site.folder / "clusters" / "here.yaml"
    named = "export HF_TOKEN=hf_0123456789abcdefghijklmnopqrstuvwxyz"
    alone = "fetch hf_9876543210zyxwvutsrqponmlkjihgfedcba"
    profile.write_text(profile.read_text() + f"setup: ['{named}', '{alone}']\n")
    assert repro("render", *HERE, "--where", "pp=1", "-o", str(site.folder / "jobs")).returncode == 0
    records = [file.read_text() for file in (site.folder / "jobs").glob("*.repro.json")]
    assert len(records) == 2 and not any("hf_0123" in text or "hf_9876" in text for text in records)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 3}, "a record of format 3, and this repro reads format 2"),
        ({"job": {}}, "not a record of `repro render` (job.id: Field required)"),
        ({"script": "../other.sh"}, "a record of another script, ../other.sh"),
        (None, "not a record of `repro render` ("),
    ],
)
def test_a_record_that_cannot_be_used_is_refused_and_nothing_is_adopted(
    repro: Caller, scripts: list[Path], change: dict[str, object] | None, says: str
) -> None:
    assert subprocess.run(["bash", scripts[1]], check=False).returncode == 0
    record = scripts[0].with_suffix(".repro.json")
    stored = json.loads(record.read_text())
    record.write_text("{" if change is None else json.dumps({**stored, **change}))
    done = repro("adopt", str(repro.site.folder / "jobs"))
    assert done.returncode == 2 and f"{record}: {says}" in done.stderr, done.stderr
    assert not (repro.site.folder / "results.db").exists()


def test_a_folder_without_records_and_a_missing_folder_are_refused(repro: Caller, site: Site) -> None:
    (site.folder / "empty").mkdir()
    for name, says in (("empty", "no records of rendered scripts"), ("nowhere", "no such folder")):
        done = repro("adopt", str(site.folder / name))
        assert done.returncode == 2 and says in done.stderr


def test_a_ledger_that_cannot_be_written_is_refused(repro: Caller, scripts: list[Path]) -> None:
    assert subprocess.run(["bash", scripts[0]], check=False).returncode == 0
    done = repro("adopt", str(repro.site.folder / "jobs"), "--database", str(repro.site.folder / "nowhere" / "x.db"))
    assert done.returncode == 2 and "no such folder for the ledger" in done.stderr
