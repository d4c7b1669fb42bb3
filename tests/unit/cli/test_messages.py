"""Messages about figures: one for each end, by the command that waits or by a process after the last job."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.ledger.tables import Metric
from tests.loopback_messages import TOKEN, MessageServer, message_server
from tests.recorded_jobs import SimulatedSlurm
from tests.unit.cli.calling import Caller
from tests.waiting import wait_until

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu", "--where", "gbs=4")
CASES = ("pp=1,tp=4,gbs=4", "pp=2,tp=2,gbs=4", "pp=4,tp=1,gbs=4")
FIRST, SECOND, THIRD = (f"{name}-id" for name in CASES)


@pytest.fixture
def server() -> Iterator[MessageServer]:
    with message_server() as server:
        yield server


@pytest.fixture
def slurm(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> SimulatedSlurm:
    monkeypatch.setattr("orchestrator.launch.supervise.SLURM_WAIT_S", 0.0)
    return SimulatedSlurm.install(repro.site.folder, monkeypatch)


def recorded(repro: Caller) -> list[dict[str, Any]]:
    query = "select address, state, error from notifications order by id"
    rows: list[dict[str, Any]] = json.loads(repro("sql", query, "--json").stdout)["rows"]
    return rows


def test_a_message_has_the_cases_the_claims_and_the_next_command(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer
) -> None:
    slurm.submit(*CASES)
    slurm.on_query = [
        lambda: slurm.end(FIRST),
        lambda: slurm.end(SECOND, "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT", started_at=None),
        lambda: slurm.end(THIRD, "CANCELLED", "failed", failure="cancelled", verdict_reason="cancelled"),
    ]
    with slurm.ledger.writing() as session:
        attempts = [slurm.row(job).attempt_id for job in (FIRST, SECOND)]
        session.add_all(Metric(attempt_id=one, name="gpu_hours", value=0.75, unit="GPU-hours") for one in attempts)
    done = repro("wait", "--notify", server.url)
    assert done.returncode == 1 and "message about figure-13 sent to json://***\n" in done.stderr
    [message] = server.messages
    ends = "1/6 verified, 1 failed, 1 cancelled, 3 without a job"
    assert message["title"].partition("; claims: ")[0] == f"figure-13 cpu local: {ends}"
    lines = message["message"].splitlines()
    assert lines[0].startswith("sc21/figure-13 at scale cpu on local: Pipeline- against tensor-parallel size")
    assert lines[1:3] == [f"cases: {ends}", "  failed: pp=2,tp=2,gbs=4 (timeout): TIMEOUT"]
    assert lines[3] == message["title"].partition("; ")[2] and lines[3].endswith(" not judged")
    assert lines[4].startswith("  not judged: Throughput peaks where ")
    assert lines[-2:] == ["cost: 1.5 GPU-hours", f"next: repro history {SECOND}"] and message["type"] == "failure"


def test_each_end_has_one_message_also_if_several_commands_see_it(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_NOTIFY", server.url)
    slurm.submit(*CASES[:2])
    slurm.on_query = [lambda: slurm.end(FIRST), lambda: slurm.end(SECOND)]
    assert repro("wait").returncode == 0
    assert repro("wait", "figure-13").returncode == 0
    assert len(server.titles) == 1
    again = repro("wait", "figure-13", "--notify", server.url)
    assert "note: the message about figure-13 was sent to json://*** before, " in again.stderr
    assert len(server.titles) == 1
    slurm.submit(CASES[2], token="18")  # one more job: the figure will have another end
    slurm.on_query = [lambda: slurm.end(THIRD)]
    assert repro("wait", "figure-13").returncode == 0
    assert [title.partition(",")[0] for title in server.titles] == [
        "figure-13 cpu local: 2/6 verified",
        "figure-13 cpu local: 3/6 verified",
    ]


def test_a_figure_that_ended_before_the_address_was_configured_has_no_message(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit(*CASES[:1])
    slurm.on_query = [lambda: slurm.end(FIRST)]
    assert repro("wait").returncode == 0
    monkeypatch.setenv("REPRO_NOTIFY", server.url)
    assert repro("wait", "figure-13").returncode == 0 and server.messages == []
    assert repro("wait", "figure-13", "--notify", server.url).returncode == 0 and len(server.messages) == 1


def test_a_wait_that_was_killed_is_made_up_for_by_the_next_one(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_NOTIFY", server.url)
    slurm.submit(*CASES[:1])
    repro.site.variables["REPRO_NOTIFY"] = server.url
    process = repro.site.start("wait", "figure-13")

    def promised() -> bool:
        return '"notify": true' in repro("sql", "select run_options from runs", "--csv").stdout.replace('""', '"')

    wait_until(promised)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    slurm.end(FIRST)
    assert repro("status").returncode == 0 and server.messages == []
    assert repro("wait", "figure-13").returncode == 0
    assert len(server.messages) == 1


@pytest.mark.fault(
    section="Submissions",
    fault="The service of `--notify` does not answer, or refuses the message",
    promise="One line of warning without the URL. The exit code is that of the jobs, and the next command that waits "
    "sends the message.",
)
@pytest.mark.parametrize("status", [None, 500])
def test_a_service_that_is_down_changes_no_exit_code_and_the_next_command_sends_the_message(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    slurm.submit(*CASES[:1])
    slurm.on_query = [lambda: slurm.end(FIRST)]
    server.status = status or 200
    url = server.url if status else f"json://127.0.0.1:9/{TOKEN}"
    monkeypatch.setenv("REPRO_NOTIFY", url)
    done = repro("wait")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert done.returncode == 0 and len(warnings) == 1 and server.messages == []
    assert warnings[0].startswith("warning: no message about figure-13 to json://*** (")
    assert warnings[0].endswith("). Hint: repro wait figure-13 sends it again")
    assert TOKEN not in done.stdout + done.stderr
    [row] = recorded(repro)
    assert row["state"] == "not sent" and row["error"] and TOKEN not in row["error"]
    if status:
        server.status = 200
        assert repro("wait", "figure-13").returncode == 0 and len(server.messages) == 1
        assert recorded(repro) == [{"address": "json://***", "state": "sent", "error": None}]


def test_jobs_that_can_never_start_are_an_end_and_a_timeout_is_none(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer
) -> None:
    slurm.submit(*CASES[:2])
    assert repro("wait", "--timeout", "1s", "--notify", server.url).returncode == 124 and server.messages == []
    slurm.update(SECOND, reason="JobHeldUser")
    slurm.on_query = [lambda: slurm.end(FIRST)]
    assert repro("wait", "--notify", server.url).returncode == 1
    [title] = server.titles
    assert title.startswith("figure-13 cpu local: 1/6 verified, 1 not ended, 4 without a job; claims: ")
    next_command = "next: repro status figure-13 --scale cpu --cluster local"
    assert server.messages[0]["message"].splitlines()[-1] == next_command


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (f"slak://{TOKEN}", '--notify: slak://***: no message service has this scheme. Did you mean "slack"?'),
        (f"https://example.org/{TOKEN}", "--notify: https://*** is no web hook of a known service. Hint: use"),
        ("json://", "--notify: json://*** is not a complete URL of this service. Hint: for example json://host:"),
        (TOKEN, "--notify: not a URL. Hint: for example mailto://user@example.org"),
    ],
)
def test_a_wrong_url_is_an_error_before_anything_is_submitted(repro: Caller, url: str, problem: str) -> None:
    done = repro("submit", *HERE, "--notify", url)
    assert done.returncode == 2 and done.stderr.startswith(f"repro: {problem}"), done.stderr
    assert TOKEN not in done.stderr and not (repro.site.folder / "results.db").exists()


def test_without_apprise_there_is_one_error_with_the_hint_before_anything_is_submitted(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "apprise" else find(name))
    config = repro.site.folder / "config.yaml"
    config.write_text("notify:\n  - mailto://ada@example.org\n")
    monkeypatch.setenv("REPRO_CONFIG", str(config))
    done = repro("submit", *HERE)
    assert done.returncode == 2 and done.stderr == (
        "repro: config.yaml:2:5: messages need Apprise, which is not installed. "
        "Hint: pip install 'repro-orchestrator[notify]', or in a checkout: pip install '.[notify]'\n"
    )
    assert not (repro.site.folder / "results.db").exists()


def test_a_process_sends_the_message_if_nobody_waits_and_the_url_is_in_no_file(
    repro: Caller, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.launch.notify_job.DELAY_S", 0)
    monkeypatch.setattr("orchestrator.launch.notify_job.QUEUE_POLL_S", 0.1)
    done = repro("submit", *HERE, "--notify", server.url)
    assert done.returncode == 0 and " sends the message about figure-13 after its last job\n" in done.stderr
    [folder] = (repro.site.folder / "runs").glob("*/notify")
    wait_until(lambda: "verified" in (folder / "log.txt").read_text())
    wait_until(lambda: server.messages)
    [command] = json.loads(repro("sql", "select command from runs", "--json").stdout)["rows"]
    assert json.loads(command["command"])[-2:] == ["--notify", "json://***"]
    assert repro("wait", "figure-13", "--notify", server.url).returncode == 0
    [title] = server.titles
    assert title.startswith("figure-13 cpu here: 3/6 verified, 3 without a job; claims: ")
    files = [Path(folder, name) for folder, _, names in os.walk(repro.site.folder) for name in names]
    assert [file for file in files if TOKEN.encode() in file.read_bytes()] == []


def test_a_defect_in_a_service_of_apprise_does_not_end_the_command(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(server.url)

    monkeypatch.setattr("apprise.Apprise.notify", fail)
    slurm.submit(*CASES[:1])
    slurm.on_query = [lambda: slurm.end(FIRST)]
    done = repro("wait", "--notify", server.url)
    assert done.returncode == 0 and "to json://*** (Apprise has failed: ValueError). Hint: " in done.stderr
