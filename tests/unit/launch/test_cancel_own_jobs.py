"""Whether a job of Slurm is the attempt's: another user can write any id into a shared ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.identity import user_name
from orchestrator.launch import cancel as cancelling
from orchestrator.launch.cancel import SubmittedJobs, why_not_the_attempts_job
from orchestrator.launch.run_record import sent_of_run
from orchestrator.launch.submit import submit
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.rows import AttemptRow, JobRow
from orchestrator.slurm.notation import JobRecord, parse_queue
from tests.recorded_jobs import new_ledger
from tests.stand_in_site import Site
from tests.unit.launch.slurm_stand_in import PROFILE, Slurm

pytestmark = pytest.mark.slow


@dataclass
class Pair:
    """Two jobs of the user in the queue: `row` is one, and `other` is the one that somebody wants to be ended."""

    ledger: Ledger
    row: JobRow
    other: JobRow

    def record(self, row: JobRow, **values: Any) -> JobRecord:
        """What Slurm has under the id of this row."""
        return replace(_record(), job_id=str(row.scheduler_id), comment=f"repro:{row.token}", **values)


def _record() -> JobRecord:
    from orchestrator.slurm.notation import QUEUE_FIELDS, SEPARATOR

    shown = {"JobArrayID": "1", "State": "PENDING", "UserName": user_name(), "TimeLimit": "0:10:00"}
    (record,) = parse_queue(SEPARATOR.join(shown.get(name, "0") for name in QUEUE_FIELDS) + "\n")
    return record


@pytest.fixture
def pair(site: Site, monkeypatch: pytest.MonkeyPatch) -> Pair:
    (site.folder / "clusters" / "there.yaml").write_text(PROFILE)
    Slurm.on_path(site.folder.parent / "bin", monkeypatch)
    cluster = site.cluster("there")
    ledger = new_ledger(site.folder)
    submit(site.plans("gbs=4"), cluster, ledger, site.folders, [])
    submit(site.plans("pp=1,gbs=16"), cluster, ledger, site.folders, [])
    rows = job_rows(ledger)
    assert [row.scheduler_id for row in rows] == ["100_0", "100_1", "100_2", "101"]
    return Pair(ledger, rows[0], rows[3])


def test_the_job_of_an_attempt_is_known_by_its_comment_its_user_and_its_run_folder(pair: Pair) -> None:
    for row in (pair.row, pair.other):
        assert why_not_the_attempts_job(SubmittedJobs(pair.ledger), row, pair.record(row)) is None


def test_a_job_with_another_comment_is_known_by_its_output_file(pair: Pair) -> None:
    submitted = SubmittedJobs(pair.ledger)
    own = str(Path(pair.row.folder).parent / "submissions/100_0.txt")
    record = replace(pair.record(pair.row), comment="a project", output=own)
    assert why_not_the_attempts_job(submitted, pair.row, record) is None
    foreign = replace(record, output="/home/else/slurm-100.txt")
    assert "another comment and another output file" in str(why_not_the_attempts_job(submitted, pair.row, foreign))
    element = replace(pair.row, scheduler_id="100_1")
    assert why_not_the_attempts_job(submitted, element, replace(record, job_id="100_1")) is not None


def test_the_submissions_of_a_run_are_read_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading them for each job took minutes for a run of 5,000 jobs, and jobs started meanwhile."""
    read: list[Path] = []

    def counted(run: Path) -> Iterator[AttemptRow]:
        read.append(run)
        return sent_of_run(run)

    monkeypatch.setattr(cancelling, "sent_of_run", counted)
    submitted = SubmittedJobs(pair.ledger)
    rows = [row for row in job_rows(pair.ledger) if row.run_id == pair.row.run_id]
    assert len(rows) == 3 and [why_not_the_attempts_job(submitted, row, pair.record(row)) for row in rows] == [None] * 3
    assert read == [Path(pair.row.folder).parent]


def edited(pair: Pair, *names: str) -> JobRow:
    """The row with values of the other one, as somebody who may write to the ledger can set them."""
    return replace(pair.row, **{name: getattr(pair.other, name) for name in names})


EDITS: dict[str, Callable[[Pair], JobRow]] = {
    "the id": lambda pair: edited(pair, "scheduler_id"),
    "id and token": lambda pair: edited(pair, "scheduler_id", "token"),
    "id, token and folder": lambda pair: edited(pair, "scheduler_id", "token", "folder", "array_index"),
    "id, token, and a folder of nobody": lambda pair: replace(
        edited(pair, "scheduler_id", "token"), folder="/tmp/evil/runs/r/a"
    ),
    "an empty token": lambda pair: replace(edited(pair, "scheduler_id"), token=""),
    "id, token, and no user": lambda pair: replace(edited(pair, "scheduler_id", "token"), user=None),
    "the user": lambda pair: replace(edited(pair, "scheduler_id", "token"), user="nobody"),
}


@pytest.mark.fault(
    section="Safety",
    fault="Another user writes the id of another job into the ledger, with its token, folder or user as well",
    promise="It is not taken for the attempt's job.",
)
@pytest.mark.parametrize("how", EDITS)
def test_the_id_of_another_job_in_the_ledger_is_not_taken_for_the_attempts(pair: Pair, how: str) -> None:
    row = EDITS[how](pair)
    assert why_not_the_attempts_job(SubmittedJobs(pair.ledger), row, pair.record(pair.other)) is not None


def test_a_job_of_another_user_is_not_the_attempts(pair: Pair) -> None:
    record = pair.record(pair.row, user="bob")
    assert why_not_the_attempts_job(SubmittedJobs(pair.ledger), pair.row, record) == (
        f"the job belongs to bob, and the attempt to {user_name()}"
    )
