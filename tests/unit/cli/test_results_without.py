"""`--without`: a verified attempt that is known to be bad is left out of every result, with the reason."""

from __future__ import annotations

import csv
import io
import json
from datetime import timedelta

import pytest
import sqlalchemy as sa

from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Job, RunJob
from tests.recorded_jobs import START, new_ledger, record_results
from tests.unit.catalog.entries import figure_13
from tests.unit.cli.calling import Caller
from tests.unit.cli.test_results_bundle import content
from tests.unit.cli.test_results_kept import CANCELLED, GOOD, again

pytestmark = pytest.mark.slow

CASE = "pp=1,tp=4,gbs=4"


@pytest.fixture
def ledger(repro: Caller) -> Ledger:
    """Return a ledger with six verified jobs, one of which was verified again with twice the rate."""
    ledger = new_ledger(repro.site.folder)
    record_results(ledger, figure_13(), "cpu", GOOD)
    record_results(ledger, figure_13(), "cpu", {CASE: 2 * GOOD[CASE]}, at=START + timedelta(days=1))
    return ledger


def job_of(ledger: Ledger, case: str = CASE) -> str:
    query = sa.select(RunJob.job_id).where(RunJob.case_name == case).limit(1)
    with ledger.reading() as session:
        return session.scalars(query).one()


def row_of(repro: Caller, *words: str) -> dict[str, str]:
    done = repro("collect", "figure-13", *words)
    return next(row for row in csv.DictReader(io.StringIO(done.stdout)) if row["case"] == CASE)


def test_the_next_best_attempt_is_the_result_and_the_export_has_the_reason(repro: Caller, ledger: Ledger) -> None:
    job = job_of(ledger)
    assert (row_of(repro)["attempt"], row_of(repro)["newer"]) == ("2", "")
    without = ("--without", f"{job[:6]}:2=a slow node")
    row = row_of(repro, *without)
    assert row["attempt"] == "1" and float(row["tflops_per_gpu"]) == GOOD[CASE]
    assert row["newer"] == f"attempt 2 of {job}: left out (a slow node)"
    for command in ("collect", "claims", "compare"):
        done = repro(command, "figure-13", *without)
        assert done.returncode == 0, done.stderr
        assert f"note: left out: {CASE}: attempt 2 of job {job} (verified): a slow node\n" in done.stderr
    assert repro("report", "-o", "report", *without).returncode == 0
    assert "left out (a slow node)" in (repro.site.folder / "report" / "index.html").read_text()
    assert repro("plot", "figure-13", *without).returncode in (0, 2)  # 2: matplotlib is not installed
    last = row_of(repro, *without, "--without", f"{job}:1=another slow node")
    assert (last["job"], last["state"]) == ("", "") and last["newer"].count("left out") == 2


def test_a_verified_attempt_that_is_left_out_leaves_a_cancelled_one(repro: Caller, ledger: Ledger) -> None:
    again(ledger, CANCELLED, [CASE], at=START + timedelta(days=2))
    job = job_of(ledger)
    without = ("--without", f"{job}:1=bad", "--without", f"{job}:2=bad")
    assert row_of(repro, *without)["failure"] == "cancelled"
    assert repro("claims", "figure-13", *without).returncode == 1
    assert repro("claims", "figure-13", "--without", f"{job}:2=bad").returncode == 0


def test_two_runs_are_compared_without_an_attempt(repro: Caller, ledger: Ledger) -> None:
    with ledger.reading() as session:
        runs = session.scalars(sa.text("select id from runs order by id")).all()
    assert repro("compare", "figure-13", *runs, "--where", "pp=1,gbs=4").returncode == 0
    left_out = repro("compare", "figure-13", *runs, "--where", "pp=1,gbs=4", "--without", f"{job_of(ledger)}:2=bad")
    assert left_out.returncode == 2 or "the same attempt" in left_out.stdout, left_out.stderr


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{job}:3=bad", "{job}:3: job {job} has 2 attempts"),
        ("{job}:1", "{job}:1: no reason"),
        ("{job}:1= ", "{job}:1: no reason"),
        ("{job}=bad", "{job}: not JOB:NUMBER"),
        ("nosuch:1=bad", "nosuch:1: no such job"),
    ],
)
def test_an_unknown_attempt_or_a_missing_reason_is_a_user_error(
    repro: Caller, ledger: Ledger, value: str, problem: str
) -> None:
    job = job_of(ledger)
    for command in ("collect", "claims", "compare", "plot", "bundle"):
        done = repro(command, "figure-13", "--without", value.format(job=job))
        assert done.returncode == 2
        assert done.stderr.startswith(f"repro: --without {problem.format(job=job)}. Hint: "), done.stderr
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.fault(
    section="Safety",
    fault="Slow or failed repeats are left out of the results before a bundle is written",
    promise="The bundle has their logs if they exist, names them with the reason, and verifies. `bundle verify` prints "
    "them.",
)
@pytest.mark.parametrize("has_log", [True, False])
def test_a_bundle_has_the_attempts_that_were_left_out_and_gives_the_same_numbers(repro: Caller, has_log: bool) -> None:
    assert repro.site.submit("--wait", "--repeat", "2").returncode == 0
    ledger = new_ledger(repro.site.folder)
    with ledger.reading() as session:
        query = sa.select(Attempt.job_id, Attempt.folder).join(Job).where(Job.repeat == 2).limit(1)
        job, folder = session.execute(query).one()
        case = session.scalars(sa.select(RunJob.case_name).where(RunJob.job_id == job).limit(1)).one()
    if not has_log:
        (repro.site.folder / folder / "log.txt").unlink()
        assert repro("bundle", "figure-13", "-o", "figure.tar.zst").returncode == 1
    without = ("--without", f"{job}:1=a slow node")
    written = repro("bundle", "figure-13", "-o", "figure.tar.zst", *without)
    name = f"left out: {case} #2: attempt 1 of job {job} (verified): a slow node"
    assert written.returncode == 0 and f"note: {name}\n" in written.stderr, written.stderr
    verified = repro("bundle", "verify", "figure.tar.zst")
    assert verified.returncode == 0 and f"note: {name}\n" in verified.stdout, verified.stdout
    files = content(repro.site.folder / "figure.tar.zst")
    assert json.loads(files["bundle.json"])["left_out"] == [{"job": job, "attempt": 1, "reason": "a slow node"}]
    assert f"    {name.removeprefix('left out: ')}\n" in files["README.txt"].decode()
    assert any(job in path and path.endswith("/log.txt") for path in files) is has_log
    rows = {row["case"]: row for row in json.loads(files["results/results.json"])["cases"]}
    assert (rows[case]["repeats"], rows[case]["newer"]) == (1, f"attempt 1 of {job}: left out (a slow node)")
    assert json.loads(repro("collect", "figure-13", "--json", *without).stdout)["cases"][0].keys() == rows[case].keys()
