"""Attempts and runs that count for a figure: what runs or fails later hides no result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.ledger.tables import Attempt
from tests.recorded_jobs import CRASHED, Outcome
from tests.unit.api.bundle_files import content
from tests.unit.api.project import Project, counts, problems
from tests.unit.api.test_figures import claims, record, verdicts

pytestmark = pytest.mark.slow

GOOD = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 4 + 4.0 / pp for pp in (1, 2, 4) for gbs in (4, 16)}
"""Rates of figure 13 at scale cpu."""
CASE = "pp=1,tp=4,gbs=4"


def ended(failure: str, state: str) -> dict[str, Any]:
    return {"state": state, "phase": "ended", "verdict": "failed", "failure": failure, "verdict_reason": failure}


CANCELLED = ended("cancelled", "CANCELLED")
REFUSED = ended("refused", "NEVER_SUBMITTED")
WAITING = {"state": "PENDING", "phase": "waiting", "verdict": None}
RUNNING: dict[str, Any] = {"state": "RUNNING", "phase": "running", "verdict": None}


@pytest.fixture
def verified(project: Project) -> Project:
    """A project whose figure 13 has come out at scale cpu."""
    record(project, GOOD)
    return project


def cases(project: Project, **selection: Any) -> dict[str, dict[str, Any]]:
    """Return the rows of figure 13 by case."""
    rows = api.collect("figure-13", session=project.session, **selection).rows
    return {str(row["case"]): row for row in rows}


def failed_everywhere(project: Project, **selection: Any) -> list[bool]:
    """Return whether the figure fails for claims, a comparison and a wait."""
    compared = api.compare("figure-13", session=project.session, **selection)
    waited = api.wait("figure-13", session=project.session, **{k: v for k, v in selection.items() if k == "cluster"})
    return [claims(project, "figure-13", **selection).failed, compared.failed, bool(waited.failed)]


# ---- the attempts that count ---------------------------------------------------------------------------------


@pytest.mark.fault(
    section="Faults of jobs",
    fault="Verified cases are run again, and the new attempts are cancelled",
    promise="The verified attempts stay the results of every command. The exit codes are 0.",
)
def test_a_cancelled_rerun_leaves_the_verified_attempts_as_results(verified: Project) -> None:
    before = verdicts(claims(verified, "figure-13"))
    record(verified, dict.fromkeys(GOOD, CANCELLED), 1)
    newer = "attempt 2: failed (cancelled)"
    assert failed_everywhere(verified) == [False] * 3 and verdicts(claims(verified, "figure-13")) == before
    assert any("6 cases of figure-13 with a later attempt than the result: " in text for text in verified.messages)
    rows = cases(verified).values()
    assert {(row["verdict"], row["attempt"], row["newer"]) for row in rows} == {("verified", 1, newer)}
    status = api.status("figure-13", session=verified.session)
    assert {(job.attempt, job.verdict, job.newer) for job in status.jobs} == {(1, "verified", newer)}
    assert [count.text() for count in status.tallies] == ["6/6 verified"]
    with api.query("select verdict, attempt from v_results", session=verified.session) as answer:
        assert [tuple(row) for row in answer.rows] == [("verified", 1)] * 6


def test_a_rerun_that_runs_is_shown_beside_the_result_and_one_that_failed_is_a_failure(
    verified: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.api.jobs.anything_to_refresh", lambda _: False)
        record(verified, {CASE: RUNNING}, 1)
        status = api.status("figure-13", session=verified.session)
        assert [job.newer for job in status.jobs if job.newer] == ["attempt 2: RUNNING 0/8"]
        assert [count.text() for count in status.tallies] == ["6/6 verified, 1 running"]
        assert not claims(verified, "figure-13").failed
    with verified.ledger.writing() as session:
        session.execute(sa.delete(Attempt).where(Attempt.phase == "running"))
    record(verified, dict.fromkeys(GOOD, CRASHED), 2)
    assert claims(verified, "figure-13").failed and {row["verdict"] for row in cases(verified).values()} == {"verified"}
    assert len(verified.jobs(failed=True)) == 6


def test_attempt_selects_another_attempt_and_an_unknown_one_is_refused(verified: Project) -> None:
    record(verified, dict.fromkeys(GOOD, CANCELLED), 1)
    judged = claims(verified, "figure-13", attempt=2)
    assert judged.failed and set(verdicts(judged).values()) == {"not judged"}
    assert {row["verdict"] for row in cases(verified, attempt=2).values()} == {"failed"}
    assert api.compare("figure-13", attempt=2, session=verified.session).failed
    with pytest.raises(ReproError, match="^figure-13 at scale cpu: no verified case"):
        api.plot("figure-13", attempt=2, session=verified.session)
    for function in (api.compare, api.plot, api.collect):
        with pytest.raises(ReproError, match="^--attempt 7: no job of figure-13 has such an attempt. Hint: 1 to 2; "):
            function("figure-13", attempt=7, session=verified.session)


def test_cancelled_repeats_fail_nothing_and_cancelled_jobs_without_a_result_do(verified: Project) -> None:
    for repeat in range(2, 5):
        record(verified, dict.fromkeys(GOOD, CANCELLED), repeat, repeat=repeat)
    assert failed_everywhere(verified) == [False] * 3
    record(verified, dict.fromkeys(GOOD, CANCELLED), 5, cluster="eos")
    assert failed_everywhere(verified, cluster="eos") == [True] * 3


def add_attempts(project: Project, outcome: dict[str, Any]) -> None:
    """Add an attempt with this outcome to each job of the ledger, as `submit --rerun` and `cancel` do."""
    columns = [column.key for column in sa.inspect(Attempt).columns if column.key != "id"]
    with project.ledger.writing() as session:
        for attempt in session.scalars(sa.select(Attempt)).all():
            values = {name: getattr(attempt, name) for name in columns}
            other = {"number": attempt.number + 1, "token": "", "folder": f"{attempt.folder}-2"}
            other |= {"file": None, "iteration": None, "execution": None}
            session.add(Attempt(**{**values, **outcome, **other}))


@pytest.mark.parametrize("outcome", [CANCELLED, REFUSED], ids=["cancelled", "refused"])
def test_a_rerun_that_did_not_run_hides_no_result(project: Project, outcome: dict[str, Any]) -> None:
    project.run()
    add_attempts(project, outcome)
    assert api.status(session=project.session).tallies[0].text().startswith("6/6 verified")
    assert failed_everywhere(project)[:2] == [outcome is REFUSED] * 2, "a refusal is reported as a failure"
    assert {(row["attempt"], row["verdict"]) for row in cases(project).values()} == {(1, "verified")}
    page = api.report("report", session=project.session).file.read_text()
    assert "All 6 cases are verified" in page
    (figure,) = api.outcomes("figure-13", session=project.session)
    bundle = api.bundle(figure, Path("figure.tar.zst"), session=project.session)
    assert bundle.contents.verified == 6 and api.verify_bundle(bundle.file).holds
    if outcome is CANCELLED:
        submission = project.submit(canary=True)
        assert (counts(submission), submission.canary) == ({"done": 6}, None)


# ---- attempts that are left out ------------------------------------------------------------------------------


@pytest.fixture
def twice(verified: Project) -> tuple[Project, str]:
    """The project, and a job that was verified again with twice the rate."""
    record(verified, {CASE: 2 * GOOD[CASE]}, 1)
    return verified, next(row.job_id for row in verified.rows() if row.case_name == CASE)


def test_the_next_best_attempt_is_the_result_and_its_row_has_the_reason(twice: tuple[Project, str]) -> None:
    project, job = twice
    assert (cases(project)[CASE]["attempt"], cases(project)[CASE]["newer"]) == (2, None)
    without = [f"{job[:6]}:2=a slow node"]
    row = cases(project, without=without)[CASE]
    assert (row["attempt"], row["tflops_per_gpu"]) == (1, GOOD[CASE])
    assert row["newer"] == f"attempt 2 of {job}: left out (a slow node)"
    project.messages.clear()
    for failed in (
        claims(project, "figure-13", without=without).failed,
        failed_everywhere(project, without=without)[1],
    ):
        assert not failed
    left_out = f"note: left out: {CASE}: attempt 2 of job {job} (verified): a slow node"
    assert project.messages.count(left_out) == 3
    assert "left out (a slow node)" in api.report("r", without=without, session=project.session).file.read_text()
    last = cases(project, without=[*without, f"{job}:1=another slow node"])[CASE]
    assert (last["job"], last["state"]) == (None, None) and str(last["newer"]).count("left out") == 2
    record(project, {CASE: CANCELLED}, 2)
    both = [f"{job}:1=bad", f"{job}:2=bad"]
    assert cases(project, without=both)[CASE]["failure"] == "cancelled"
    assert claims(project, "figure-13", without=both).failed
    assert not claims(project, "figure-13", without=both[1:]).failed


def test_an_unknown_attempt_or_a_missing_reason_is_refused(twice: tuple[Project, str]) -> None:
    project, job = twice
    functions: Sequence[Any] = (api.collect, api.claims, api.compare, api.plot, api.outcomes)
    for value, problem in (
        (f"{job}:3=bad", f"{job}:3: job {job} has 2 attempts"),
        (f"{job}:1", f"{job}:1: no reason"),
        (f"{job}:1= ", f"{job}:1: no reason"),
        (f"{job}=bad", f"{job}: not JOB:NUMBER"),
        ("nosuch:1=bad", "nosuch:1: no such job"),
    ):
        for function in functions:
            with pytest.raises(ReproError) as caught:
                function("figure-13", without=[value], session=project.session)
            (line,) = problems(caught)
            assert line.startswith(f"--without {problem}. Hint: ")


@pytest.mark.fault(
    section="Safety",
    fault="Slow or failed repeats are left out of the results before a bundle is written",
    promise="The bundle has their logs if they exist, names them with the reason, and verifies. `bundle verify` prints "
    "them.",
)
@pytest.mark.parametrize("has_log", [True, False])
def test_a_bundle_has_the_attempts_that_were_left_out_and_gives_the_same_numbers(
    project: Project, has_log: bool
) -> None:
    def bundled(without: Sequence[str] = ()) -> api.Bundle:
        (figure,) = api.outcomes("figure-13", without=without, session=project.session)
        return api.bundle(figure, Path("figure.tar.zst"), session=project.session)

    project.run(repeat=2)
    row = next(row for row in project.rows() if row.repeat == 2)
    if not has_log:
        (Path(row.folder) / "log.txt").unlink()
        with pytest.raises(api.UnprovenBundle):
            bundled()
    file = bundled([f"{row.job_id}:1=a slow node"]).file
    name = f"{row.case_name} #2: attempt 1 of job {row.job_id} (verified): a slow node"
    verified = api.verify_bundle(file)
    assert verified.holds and f"left out: {name}" in [note for check in verified.checks for note in check.notes]
    files = content(file)
    assert json.loads(files["bundle.json"])["left_out"] == [{"job": row.job_id, "attempt": 1, "reason": "a slow node"}]
    assert f"    {name}\n" in files["README.txt"].decode()
    assert any(row.job_id in path and path.endswith("/log.txt") for path in files) is has_log
    rows = {row["case"]: row for row in json.loads(files["results/results.json"])["cases"]}
    left_out = f"attempt 1 of {row.job_id}: left out (a slow node)"
    assert (rows[row.case_name]["repeats"], rows[row.case_name]["newer"]) == (1, left_out)


# ---- the runs that count -------------------------------------------------------------------------------------

ARGUMENT = "--seed=3"
STRAY = {"refused": REFUSED, "cancelled": CANCELLED, "stopped": ended("stopped", "CANCELLED"), "waiting": WAITING}


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A case of a complete figure is submitted with other arguments, settings or code, at another scale or on "
    "another cluster, and is refused, cancelled, stopped or waits",
    promise="The commands show the complete figure, and name the later run.",
)
@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize(
    "options",
    [{"changes": (f"--arg={ARGUMENT}",)}, {"code": "feedc0de"}, {"cluster": "eos"}],
    ids=["arguments", "code", "cluster"],
)
def test_a_stray_submission_hides_no_result(verified: Project, stray: str, options: dict[str, Any]) -> None:
    def shown() -> tuple[object, ...]:
        rows = {case: (row["job"], row["verdict"]) for case, row in cases(verified).items()}
        return rows, verdicts(claims(verified, "figure-13"))

    before = shown()
    run = record(verified, {CASE: STRAY[stray]}, 1, **options)
    verified.messages.clear()
    assert shown() == before
    notes = " ".join(verified.messages)
    assert run in notes if "code" not in options else f"{CASE} (" in notes
    assert "All 6 cases are verified" in api.report("r", session=verified.session).file.read_text()


def test_published_arguments_come_first_then_the_latest_measured_run(verified: Project) -> None:
    changed: dict[str, Any] = {"changes": (f"--arg={ARGUMENT}",)}
    run = record(verified, {CASE: 7.0}, 1, **changed)

    def rate(**selection: Any) -> object:
        return cases(verified, **selection)[CASE]["tflops_per_gpu"]

    assert (rate(), rate(arg=[ARGUMENT]), rate(run=run)) == (GOOD[CASE], 7.0, 7.0)
    record(verified, {CASE: 8.0}, 2)
    assert rate() == 8.0
    with pytest.raises(ReproError, match="^figure-13 with --arg --seed=4 was never submitted"):
        rate(arg=["--seed=4"])
    arguments = {job.arguments for job in verified.jobs("figure-13").values()}
    assert arguments == {None, f"--arg {ARGUMENT}"}


def test_changed_arguments_are_shown_if_only_they_have_results(project: Project) -> None:
    record(project, {CASE: 7.0}, changes=(f"--arg={ARGUMENT}",))
    record(project, {CASE: CRASHED}, 2)
    assert cases(project)[CASE]["tflops_per_gpu"] == 7.0


def test_a_failure_of_new_code_is_not_hidden_by_an_old_result(verified: Project) -> None:
    record(verified, {CASE: CRASHED}, 1, code="feedc0de")
    assert cases(verified)[CASE]["verdict"] == "failed" and claims(verified, "figure-13").failed


def test_a_partial_case_counts_and_is_marked(verified: Project) -> None:
    partial = {"state": "TIMEOUT", "phase": "ended", "verdict": "partial", "verdict_reason": "reached its time limit"}
    record(verified, {CASE: Outcome(7.0, columns=partial | {"iteration": 6})}, 2, code="feedc0de")
    assert failed_everywhere(verified) == [False] * 3
    row = cases(verified)[CASE]
    assert row["verdict"] == "partial" and row["iteration_ms"] is not None
    table = b"".join(api.collect("figure-13", session=verified.session).export("md"))
    assert b"| partial, " in table
    assert [count.text() for count in api.status(session=verified.session).tallies] == ["6/7 verified, 1 partial"]
    page = api.report("r", session=verified.session).file.read_text()
    assert "5 of 6 cases are verified, 1 is partial" in page and "partial, 6/8" in page
