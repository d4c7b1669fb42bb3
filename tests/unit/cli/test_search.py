"""Tests of `repro search`. Jobs run a stand-in whose time grows with the number of pipeline stages."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator import api
from tests.forked_repro import ForkedRepro
from tests.loopback_messages import message_server
from tests.slurm.host import end_processes, processes_with
from tests.stand_in_site import Site
from tests.unit.cli.calling import Caller
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

MODEL = "layers=8,hidden=64,heads=4,seq=64,vocab=512"
SMALL = ("search", MODEL, "--gpus", "4", "--gbs", "16", "--cluster", "here", "--cpu", "--where", "dp=1,cp=1,vp=1,mbs=1")
SHORT = ("--iterations", "8", "--short", "6")


def document(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


def started(site: Site) -> list[str]:
    """Return the case of each rank that the stand-in has started."""
    file = site.folder / "started"
    return [line.split()[2] for line in file.read_text().splitlines()] if file.exists() else []


def test_a_search_measures_finds_the_fastest_layout_and_goes_on_without_measuring_again(
    repro: Caller, site: Site
) -> None:
    done = repro(*SMALL, *SHORT, "--finalists", "1", "--json")
    assert done.returncode == 0, done.stderr
    answer = document(done.stdout)
    (winner,) = answer["winners"]
    assert winner["case"] == "pp=1,tp=4"
    (summary,) = answer["searches"]
    assert summary["stopped"] == "no other candidate can be faster within its uncertainty"
    assert (summary["candidates"], summary["measured"], summary["jobs"]) == (3, 2, 3)
    assert "--tensor-model-parallel-size" in winner["arguments"]["pretrain"]
    states = {row["case"]: (row["state"], row["iterations"]) for row in answer["candidates"]}
    assert states["pp=1,tp=4"] == ("measured", 8), "the fastest case runs at full length"
    assert states["pp=2,tp=2"] == ("measured", 6)
    runs = started(site)
    again = repro(*SMALL, *SHORT, "--finalists", "1")
    assert again.returncode == 0 and started(site) == runs, "a second start measures nothing again"
    assert "fastest: pp=1,tp=4" in again.stderr
    file = site.folder / "experiments" / "searches" / "8x64-4-gpus-batch-16.yaml"
    assert "\nfigure: search\n" in file.read_text()
    status = repro("status", "8x64-4-gpus-batch-16", "--json")
    assert {job["verdict"] for job in document(status.stdout)["jobs"]} == {"verified"}


def kill_search(site: Site, *options: str, jobs: int) -> None:
    """Start the search, and kill it once it has started this many jobs and all but a gated one have ended."""
    ended = site.folder / "ended"
    with Path(os.devnull).open("w") as nowhere:
        words = (*SMALL, *SHORT, "--finalists", "1", *options)
        search = ForkedRepro(words, site.folder, site.environment, nowhere.fileno(), nowhere.fileno())
    wait_until(lambda: len(started(site)) == jobs)
    wait_until(lambda: jobs == 1 or (ended.exists() and len(ended.read_text().splitlines()) == jobs - 1))
    os.kill(search.pid, signal.SIGKILL)
    assert search.wait() == -signal.SIGKILL


def test_after_a_kill_the_same_search_waits_for_an_open_job_that_it_would_not_start_any_more(
    repro: Caller, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.behave("gated", "pp4-gbs16")
    kill_search(site, "--max-parallel", "3", jobs=3)
    go = site.folder / "go"

    def wait(*given: Any, **options: Any) -> object:
        go.touch()
        return api.wait(*given, **options)

    monkeypatch.setattr("orchestrator.megatron.search.api.wait", wait)
    again = repro(*SMALL, *SHORT, "--finalists", "1", "--json")
    go.touch()  # also if the search did not wait
    assert again.returncode == 0, again.stderr
    assert "waiting for 1 open job of this search: pp=4,tp=1" in again.stderr
    (summary,) = document(again.stdout)["searches"]
    assert (summary["measured"], summary["jobs"]) == (3, 4)
    assert Counter(started(site)) == {"pp=1,tp=4,gbs=16": 2, "pp=2,tp=2,gbs=16": 1, "pp=4,tp=1,gbs=16": 1}


def test_a_job_that_ended_with_the_machine_of_its_search_runs_again(repro: Caller, site: Site) -> None:
    site.behave("gated", "pp1-gbs16")
    kill_search(site, jobs=1)
    left = list(processes_with({"REPRO_HOME": str(site.folder)}))
    for pid in left:  # all at once: no shell may see that its child was killed
        with contextlib.suppress(ProcessLookupError):  # a probe of the job's node may end at any time
            os.kill(pid, signal.SIGSTOP)
    end_processes(left)
    (site.folder / "go").touch()
    again = repro(*SMALL, *SHORT, "--finalists", "1", "--json")
    assert again.returncode == 0, again.stderr
    assert document(again.stdout)["winners"][0]["case"] == "pp=1,tp=4"
    assert Counter(started(site)) == {"pp=1,tp=4,gbs=16": 3, "pp=2,tp=2,gbs=16": 1}


def test_a_search_sends_one_message_with_the_fastest_layout(repro: Caller) -> None:
    with message_server() as server:
        search = (*SMALL, "--iterations", "5", "--short", "5", "--where", "pp=1,dp=1,cp=1,vp=1,mbs=1")
        done = repro(*search, "--notify", server.url)
        assert done.returncode == 0 and "message sent to json://***\n" in done.stderr
        (message,) = server.messages
        assert message["title"].startswith("search 8x64-4-gpus-batch-16 on here: fastest: pp=1,tp=4, ")


def test_a_dry_run_shows_candidates_and_writes_nothing(repro: Caller, site: Site) -> None:
    before = sorted(site.folder.rglob("*"))
    done = repro("search", "gpt-1.3b", "--gpus", "8", "--gbs", "64", "--cluster", "selene", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    rows = document(done.stdout)["candidates"]
    times = [row["predicted_ms"] for row in rows if row["predicted_ms"] is not None]
    shown = [float(f"{time:.4g}") for time in times]  # equal ones are in the order of their time on the GPU
    assert len(times) > 50 and shown == sorted(shown)
    assert {row["state"] for row in rows} == {"not run"}
    reasons = Counter(row["why"] for row in rows if row["why"])
    assert reasons == {row["reason"]: row["cases"] for row in document(done.stdout)["reasons"]}
    assert sorted(site.folder.rglob("*")) == before


def test_a_simulated_search_measures_published_cases_until_none_can_win(repro: Caller) -> None:
    done = repro("search", "figure-13", "--where", "gbs=128", "--simulate")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "found: pp=8,tp=8,gbs=128, the fastest case"
    rows = document(repro("search", "figure-13", "--where", "gbs=128", "--simulate", "--json").stdout)["simulated"]
    assert rows[0]["case"] == "pp=8,tp=8,gbs=128" and len(rows) < 5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("gpt-39b", "--gpus", "2", "--gbs", "64"),
            "optimizer states (234.6 GB). Hint: 16 GPUs are enough",
        ),
        (("gpt-6.7b",), "needs --gpus and --gbs"),
        (("no-such-model", "--gpus", "2", "--gbs", "64"), "no-such-model: no such model"),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--budget", "3apples"), "--budget 3apples: not a budget"),
        (
            ("gpt-6.7b", "--gpus", "16", "--gbs", "7", "--where", "dp=2"),
            "no layout of 6.7b on 16 GPUs with 7 sequences",
        ),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--where", "tp=3"), "has tp=3. Hint: there are tp: 1, 2, 4, 8"),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--program", "nothing"), "nothing: no such program"),
        (("figure-13",), "figure-13: its cases differ in gbs, so their times do not compare"),
        (("figure-13", "--where", "gbs=7"), "gbs=7"),
        (("figure-13", "--where", "gbs=32", "--gpus", "4"), "leave --gpus out; --where selects cases"),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--where", "gpus=8"), "a search does not vary gpus"),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--set", "training.iterations=9"), "use --iterations and --short"),
        (("gpt-6.7b", "--gpus", "16", "--gbs", "64", "--set", "nonsense=1"), "nonsense: no such field"),
    ],
)
def test_a_search_that_cannot_run_is_refused_with_the_reason(
    repro: Caller, site: Site, words: tuple[str, ...], reason: str
) -> None:
    done = repro("search", *words, "--cluster", "selene")
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (site.folder / "experiments").exists()


def test_without_a_cluster_the_hint_names_the_options(repro: Caller, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = repro("search", "gpt-6.7b", "--gpus", "16", "--gbs", "64")
    assert (done.returncode, "add --cluster NAME, or --simulate" in done.stderr) == (2, True)


def test_another_search_of_the_same_name_is_not_overwritten(repro: Caller, site: Site) -> None:
    folder = site.folder / "experiments" / "searches"
    folder.mkdir(parents=True)
    file = folder / "8x64-4-gpus-batch-16.yaml"
    file.write_text("figure: search\n")
    (folder / "paper.yaml").write_text("title: a\nvenue: b\n")
    done = repro(*SMALL, *SHORT)
    assert (done.returncode, file.read_text()) == (2, "figure: search\n")
    assert "another search has this name" in done.stderr


def test_report_bundle_picture_and_simulation_have_the_candidates_that_ran(repro: Caller, site: Site) -> None:
    assert repro(*SMALL, *SHORT, "--finalists", "1").returncode == 0
    rows = document(repro("collect", "8x64-4-gpus-batch-16", "--json").stdout)["cases"]
    assert {row["case"] for row in rows} == {"pp=1,tp=4", "pp=2,tp=2"}
    assert repro("report", "8x64-4-gpus-batch-16", "-o", "report").returncode == 0
    page = (site.folder / "report" / "index.html").read_text()
    assert "All 2 cases are verified." in page and "2 of 3 candidates had a job" in page
    assert repro("bundle", "8x64-4-gpus-batch-16", "-o", "search.tar.zst").returncode == 0
    assert repro("bundle", "verify", "search.tar.zst").returncode == 0
    simulated = repro("search", "8x64-4-gpus-batch-16", "--simulate", "--cluster", "here", "--json")
    assert [row["over_fastest"] > 0 for row in document(simulated.stdout)["simulated"]] == [False, True]
    done = repro("plot", "8x64-4-gpus-batch-16", "-o", "search.svg")
    assert done.returncode == 0, done.stderr
    text = (site.folder / "search.svg").read_text()
    assert "fastest so far" in text and "Process-hours on CPU cores" in text
