"""Several processes on one ledger at the same moment: one makes it, one submits, both see the same."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Run
from tests.forked_repro import ForkedProgram
from tests.recorded_jobs import ledger_at, record_jobs

pytestmark = pytest.mark.slow

RACER = """
import dataclasses, json, sys, time
import sqlalchemy as sa
from tests.forked_repro import ForkedProgram
from tests.recorded_jobs import ledger_at, new_attempts, new_job, new_run, record_run, unless_verified
url, name = sa.make_url(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
ledger = ledger_at(url)
def make(missing):
    time.sleep(0.2)  # rendering takes a while: the other process asks meanwhile
    return new_attempts()(missing)
run = dataclasses.replace(new_run(), id=name)
recorded = record_run(ledger, run, [new_job(str(n)) for n in range(5)], unless_verified, make)
print(json.dumps([sorted(recorded.to_submit), sorted(recorded.under_way)]))
"""


def start(url: sa.URL, name: str, script: str = RACER) -> ForkedProgram:
    """Start a racer. Return when it has loaded everything and waits for a line."""
    racer = ForkedProgram(script, [url.render_as_string(hide_password=False), name])
    assert racer.output.readline() == "ready\n", racer.end()
    return racer


def race(url: sa.URL, names: list[str]) -> list[str]:
    """Start the racers, let all continue at once, and return the output of each."""
    racers = [start(url, name) for name in names]
    for racer in racers:
        racer.write_line("go")
    ended = [racer.end() for racer in racers]
    assert [code for code, _ in ended] == [0] * len(racers), ended
    return [output.strip() for _, output in ended]


@pytest.mark.fault(
    section="Ledger",
    fault="Three processes use a new ledger at the same time",
    promise="One creates it, one submits.",
)
def test_of_two_first_users_submitting_the_same_jobs_one_makes_the_ledger_and_one_submits(
    database_url: sa.URL,
) -> None:
    ids = [f"{n}-id" for n in range(5)]
    answers = race(database_url, ["one", "two", "three"])
    nothing, everything = "[]", str(ids).replace("'", '"')
    assert Counter(answers) == {f"[{everything}, {nothing}]": 1, f"[{nothing}, {everything}]": 2}
    ledger = ledger_at(database_url)
    assert Counter(row.number for row in job_rows(ledger)) == {1: 5}
    with ledger.reading() as session:
        assert set(session.scalars(sa.select(Run.id))) == {"one", "two", "three"}
    ledger.engine.dispose()


@pytest.mark.fault(
    section="Ledger",
    fault="SIGKILL while the scripts are rendered",
    promise="Nothing is written, and no lock remains.",
)
def test_a_process_killed_while_it_renders_leaves_nothing_and_no_lock(ledger: Ledger) -> None:
    script = RACER.replace("time.sleep(0.2)", "print('rendering', flush=True); time.sleep(60)")
    victim = start(ledger.url, "one", script)
    victim.write_line("go")
    assert victim.output.readline() == "rendering\n"
    victim.kill()
    victim.end()
    assert job_rows(ledger) == []
    assert record_jobs(ledger, "0").to_submit == {"0-id": 1}
