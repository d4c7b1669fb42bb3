"""`--notify`: one message of the command that waits, when all jobs have ended."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from orchestrator.errors import Problem, Unreachable
from tests.loopback_messages import TOKEN, MessageServer, message_server
from tests.recorded_jobs import SimulatedSlurm
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

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


def test_the_message_of_wait_has_the_verdicts_and_the_reasons_of_failures(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer
) -> None:
    slurm.submit(*CASES)
    slurm.on_query = [
        lambda: slurm.end(FIRST),
        lambda: slurm.end(SECOND, "TIMEOUT", "failed", failure="timeout", verdict_reason="TIMEOUT", started_at=None),
        lambda: slurm.end(THIRD, "CANCELLED", "failed", failure="cancelled", verdict_reason="cancelled"),
    ]
    done = repro("wait", "--notify", server.url)
    assert done.returncode == 1 and done.stderr.count("message sent to json://***\n") == 1
    [sent] = server.messages
    assert sent["title"] == "figure-13 cpu local: 1/3 verified, 2 failed (1 timeout, 1 cancelled)"
    lines = [sent["title"], "failed: pp=2,tp=2,gbs=4 (timeout): TIMEOUT"]
    assert sent["message"].splitlines() == [*lines, "failed: pp=4,tp=1,gbs=4 (cancelled): cancelled"]
    assert sent["type"] == "failure"


def test_a_command_that_waits_sends_one_message_to_each_configured_address(
    repro: Caller, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_NOTIFY", f"{server.url} {server.url}")
    assert repro("submit", *HERE).returncode == 0 and server.messages == []
    done = repro("submit", *HERE, "--wait", "--notify", server.url)
    assert done.returncode == 0 and len(server.messages) == 1
    assert server.titles[0].startswith("figure-13 cpu here: 3/6 verified; claims of the paper: ")
    assert repro("wait", "figure-13").returncode == 0 and len(server.messages) == 3
    assert server.titles[-1] == "figure-13 cpu here: 3/3 verified" and server.messages[-1]["type"] == "success"
    assert TOKEN not in repro("sql", "select command from runs").stdout


def test_an_error_while_the_command_waits_has_a_message_and_a_timeout_has_none(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.submit(*CASES[:1])
    assert repro("wait", "--timeout", "1s", "--notify", server.url).returncode == 124 and server.messages == []

    def fail(*_: object) -> None:
        raise Unreachable(Problem("squeue does not answer"))

    monkeypatch.setattr("orchestrator.api.runs.update", fail)
    assert repro("wait", "--notify", server.url).returncode == 3
    assert server.titles == ["repro wait ended with an error: squeue does not answer"]


@pytest.mark.parametrize("command", [("submit", *HERE), ("retry", "figure-13")])
def test_notify_of_a_command_that_does_not_wait_is_a_user_error(repro: Caller, command: tuple[str, ...]) -> None:
    done = repro(*command, "--notify", f"json://127.0.0.1/{TOKEN}")
    assert done.returncode == 2 and done.stderr == (
        "repro: --notify: only a command that waits sends a message. "
        "Hint: add --wait, or set slurm.mail_type in the profile: Slurm sends mail\n"
    )
    assert not (repro.site.folder / "results.db").exists()


@pytest.mark.fault(
    section="Submissions",
    fault="The service of `--notify` does not answer, or refuses the message",
    promise="One line of warning without the URL. The exit code is that of the jobs.",
)
@pytest.mark.parametrize("status", [None, 500])
def test_a_service_that_is_down_changes_no_exit_code(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, status: int | None
) -> None:
    slurm.submit(*CASES[:1])
    slurm.on_query = [lambda: slurm.end(FIRST)]
    server.status = status or 200
    done = repro("wait", "--notify", server.url if status else f"json://127.0.0.1:9/{TOKEN}")
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert done.returncode == 0 and len(warnings) == 1 and server.messages == []
    assert warnings[0].startswith("warning: no message to json://*** (") and len(warnings[0]) > 60
    assert TOKEN not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (f"slak://{TOKEN}", "slak://***"),
        (f"https://example.org/{TOKEN}", "https://***"),
        ("json://", "json://***"),
        (TOKEN, "***"),
    ],
)
def test_a_wrong_url_is_an_error_before_anything_is_submitted(repro: Caller, url: str, name: str) -> None:
    done = repro("submit", *HERE, "--wait", "--notify", url)
    problem = f"--notify: {name} is not the URL of a message service. Hint: Apprise has the URL of each service: "
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
    done = repro("submit", *HERE, "--wait")
    assert done.returncode == 2 and done.stderr == (
        "repro: config.yaml:2:5: messages need Apprise, which is not installed. "
        "Hint: pip install 'repro-orchestrator[notify]', or in a checkout: pip install '.[notify]'\n"
    )
    assert not (repro.site.folder / "results.db").exists()


def test_a_defect_in_a_service_of_apprise_does_not_end_the_command(
    repro: Caller, slurm: SimulatedSlurm, server: MessageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError(server.url)

    monkeypatch.setattr("apprise.Apprise.notify", fail)
    slurm.submit(*CASES[:1])
    slurm.on_query = [lambda: slurm.end(FIRST)]
    done = repro("wait", "--notify", server.url)
    assert done.returncode == 0 and "no message to json://*** (Apprise has failed: ValueError)\n" in done.stderr
