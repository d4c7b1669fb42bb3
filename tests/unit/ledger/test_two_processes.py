"""Several processes on one ledger at the same moment: one makes it, one submits, both see the same."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from orchestrator.ledger.jobs import job_rows
from orchestrator.ledger.submissions import NewAttempt, record_run
from tests.unit.ledger.making import new_job, new_ledger, new_run

CHECKOUT = Path(__file__).resolve().parents[3]

RACER = """
import json, sys, time
from pathlib import Path
from tests.unit.ledger.making import attempts_under, new_job, new_ledger, new_run
from orchestrator.ledger.submissions import record_run
import dataclasses
folder, name = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
ledger = new_ledger(folder)
def make(missing):
    time.sleep(0.2)  # rendering takes a while: the other process asks meanwhile
    return attempts_under("token-of-" + name)(missing)
run = dataclasses.replace(new_run(), id=name)
recorded = record_run(ledger, run, [new_job(str(n)) for n in range(5)], make)
print(json.dumps([sorted(recorded.to_submit), sorted(recorded.open)]))
"""


def race(folder: Path, names: list[str]) -> list[str]:
    """Start the racers, let them all go at once; what each printed."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(folder), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
        )
        for name in names
    ]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate()[0].strip() for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * len(racers)
    return answers


def test_of_two_first_users_submitting_the_same_jobs_one_makes_the_ledger_and_one_submits(tmp_path: Path) -> None:
    ids = [f"{n}-id" for n in range(5)]
    answers = race(tmp_path, ["one", "two", "three"])
    nothing, everything = "[]", str(ids).replace("'", '"')
    assert Counter(answers) == {f"[{everything}, {nothing}]": 1, f"[{nothing}, {everything}]": 2}
    rows = job_rows(new_ledger(tmp_path))
    assert Counter(row.number for row in rows) == {1: 5}
    assert len({row.token for row in rows}) == 1


def test_a_process_killed_while_it_renders_leaves_nothing_and_no_lock(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    script = RACER.replace("time.sleep(0.2)", "print('rendering', flush=True); time.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    ) as victim:
        assert victim.stdin is not None and victim.stdout is not None
        victim.stdin.write("go\n")
        victim.stdin.flush()
        assert [victim.stdout.readline() for _ in range(2)] == ["ready\n", "rendering\n"]
        victim.kill()
    assert job_rows(ledger) == []

    def make(missing: dict[str, int]) -> dict[str, NewAttempt]:
        return {job: NewAttempt("mine", 0, "/nowhere", "", "") for job in missing}

    assert record_run(ledger, new_run(), [new_job("0")], make).to_submit == {"0-id": 1}
