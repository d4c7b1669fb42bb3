"""Runs of another program than the published one: they are never mixed with the runs of the experiment's own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from orchestrator import api
from orchestrator.errors import ReproError
from tests.stand_in_site import Site
from tests.unit.api.project import Project, counts
from tests.unit.api.test_catalog import FIGURE, write
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

SITE = "{checkout: /code, data_path: /data, vocab_file: /vocab, merge_file: /merges}"
OWN, OTHER = "megatron-2021", "pretrain"
NOTE = f"note: figure-99 with {OTHER} instead of {OWN}"


@pytest.fixture
def both(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Figure 99: figure 13 whose program at scale cpu is megatron-2021, with a stand-in for that one, too.

    The stand-in for megatron-2021 is the `python` that its jobs start; there the claims of the figure fail.
    """
    head, cpu, rest = FIGURE.partition("  cpu:\n")
    file = write(project, head + cpu + rest.replace(f"program: {OTHER}", f"program: {OWN}"))
    code = f"{{{OWN}: {{repository: r, commit: c}}}}"
    file.with_name("paper.yaml").write_text(f"title: t\nvenue: v\ncode: {code}\n")
    program = project.folder / "train.sh"
    (project.folder / "clusters" / "here.yaml").write_text(
        "about: a machine of the tests\nscheduler: local\n"
        f"programs: {{{OTHER}: {{python: {json.dumps(str(program))}}}, {OWN}: {SITE}}}\n"
    )
    elsewhere = project.folder / "bin"
    elsewhere.mkdir()
    (elsewhere / "python").write_text(program.read_text())
    (elsewhere / "python").chmod(0o755)
    (elsewhere / "behave").write_text("flat")
    monkeypatch.setenv("PATH", f"{elsewhere}:/usr/bin:/bin")
    # The later of two runs is the one of the later second, here without waiting for the next one.
    ids = (f"20260101-00{number // 60:02d}{number % 60:02d}-0000" for number in itertools.count())
    monkeypatch.setattr("orchestrator.launch.submit.new_run_id", lambda: next(ids))
    yield project
    Site(elsewhere).end_sleepers()


def run(project: Project, where: str | None = None, program: str | None = None) -> tuple[dict[str, int], bool]:
    """Submit figure 99 and wait. Return the counts of its jobs, and whether the figure failed."""
    options = {"scale": "cpu", "where": where, "program": program}
    submission = api.submit("figure-99", "here", session=project.session, **options)  # type: ignore[arg-type]
    (figure,) = api.supervise(submission, session=project.session)
    return counts(submission), figure.failed


def collected(project: Project, program: str | None = None) -> tuple[set[object], set[object], int]:
    """Return the programs of the rows, the published programs beside them, and the number of verified rows."""
    project.messages.clear()
    rows = [row for row in api.collect("figure-99", program=program, session=project.session).rows if row["job"]]
    programs = {row["program"] for row in rows}
    return programs, {row["published_program"] for row in rows}, sum(row["verdict"] == "verified" for row in rows)


def test_the_program_of_the_latest_run_is_the_default_and_programs_are_never_mixed(both: Project) -> None:
    assert run(both, "gbs=4") == ({"submitted": 3}, False)  # its claims are about more cases
    assert run(both, "pp=1", OTHER) == ({"submitted": 2}, False)
    assert collected(both) == ({OTHER}, {OWN}, 2) and NOTE in both.messages
    assert collected(both, OWN) == ({OWN}, {None}, 3) and NOTE not in both.messages
    assert run(both, "gbs=4") == ({"done": 3}, False)
    assert collected(both)[0] == {OWN} and collected(both, OTHER)[0] == {OTHER}
    (listed,) = (row for row in api.experiments(both.session).rows if row.experiment == "own/figure-99")
    assert [(one.program, one.verified, one.is_own_program) for one in listed.done] == [
        (OWN, 3, True),
        (OTHER, 2, False),
    ]


def test_the_result_is_that_of_the_program_that_was_submitted(both: Project) -> None:
    assert [run(both, None, program)[1] for program in (None, OTHER, None)] == [True, False, True]


def test_status_and_cancel_select_jobs_by_program(both: Project) -> None:
    (both.folder / "bin" / "behave").write_text("hang")
    both.site.behave("hang")
    for program in (None, OTHER):
        api.submit("figure-99", "here", scale="cpu", where="pp=1,gbs=4", program=program, session=both.session)
    jobs = {job.program: job.job for job in both.jobs("figure-99").values()}
    assert set(jobs) == {OWN, OTHER} and len(set(jobs.values())) == 2
    selected = [jobs[OTHER]]
    assert [*both.jobs("figure-99", program=OTHER)] == [*both.jobs("figure-99", where=f"program={OTHER}")] == selected
    with pytest.raises(ReproError, match='^pretain: no such program. Did you mean "pretrain"?'):
        both.jobs("figure-99", program="pretain")
    cancelled = api.cancel("figure-99", program=OTHER, session=both.session)
    assert [row.job_id for row in cancelled.asked] == selected
    api.cancel("figure-99", session=both.session)
    wait_until(lambda: {job.state for job in both.jobs().values()} == {"CANCELLED"})


def test_a_program_that_was_never_submitted_has_a_submit_hint(both: Project) -> None:
    run(both, "pp=1,gbs=4")
    hint = f"repro submit figure-99 --cluster local --program {OTHER}"
    with pytest.raises(ReproError, match=f"^figure-99 with {OTHER} was never submitted. Hint: {hint}$"):
        collected(both, OTHER)
