"""Logs of jobs: the whole log, one rank, an earlier attempt, and a log that grows."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from orchestrator import api
from orchestrator.errors import ReproError
from orchestrator.job_spec import Resources
from orchestrator.ledger.attempts import RefreshResult
from tests.recorded_jobs import SimulatedSlurm, log_text
from tests.stand_in_site import Site
from tests.unit.api.project import Project, problems

SRUN = b" 0: start\n 1: start\n11: start\n 1: [rank1]: Traceback\n 1:   File\n11: bad\nslurmstepd: error: x\n 1: end"


def read(project: Project, job: str = "a-id", *, rank: int | None = None, attempt: int | None = None) -> bytes:
    return api.logs(job, rank=rank, attempt=attempt, session=project.session).read()


def follow(project: Project, job: str = "a-id", attempt: int | None = None) -> bytes:
    return api.logs(job, follow=True, attempt=attempt, session=project.session).read()


def test_a_job_is_found_by_the_start_of_its_id_or_the_schedulers(
    finished: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project.at(finished, monkeypatch)
    job = next(iter(project.jobs().values()))
    whole = read(project, job.job)
    assert whole.startswith(b"this is a stand-in") and whole.count(b"elapsed time per iteration") == 8
    assert read(project, job.job[:6]) == read(project, str(job.id)) == read(project, job.job, attempt=1) == whole
    assert follow(project, job.job) == whole


def test_following_a_log_ends_with_its_job_and_loses_nothing(project: Project) -> None:
    project.site.behave("slow")
    project.submit("pp=1,gbs=4")
    (job,) = project.jobs()
    followed = follow(project, job)
    assert b"[after training is done]" in followed and followed == read(project, job)


def test_the_lines_of_one_rank_have_their_labels(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a", "b")
    simulated.start("a-id", SRUN)
    simulated.start("b-id", b"one\ntwo\n")
    assert read(project, rank=1) == b"".join(SRUN.splitlines(True)[line] for line in (1, 3, 4, 7))
    assert read(project, rank=2) == b"" and project.messages == ["rank 2 of a-id (a) has no labelled lines yet"]
    for rank in (4, -1):
        with pytest.raises(ReproError) as caught:
            read(project, rank=rank)
        assert problems(caught) == [f"--rank {rank}: the job has 4 ranks. Hint: 0 to 3"]
    with pytest.raises(ReproError) as caught:
        read(project, "b-id", rank=1)
    why = "no line of its log has the label of a rank. Hint: repro logs b-id prints all lines"
    assert problems(caught) == [f"b-id (b): {why}"]


def test_a_task_for_each_node_is_known_by_the_script_it_has(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", b"1: torchrun says\n0: [default1]: a\n0: [rank1]: b\n")
    with simulated.ledger.writing() as session:
        given = json.dumps(simulated.row("a-id").spec.to_json() | {"resources": asdict(Resources(1, 4, 4, "1:00"))})
        session.connection().exec_driver_sql("update jobs set configuration = ?", (given,))
    (simulated.run_folder("a-id") / "job.sh").write_text("#!/bin/bash\n#SBATCH --ntasks-per-node=1\n")
    assert read(project, rank=1) == b"0: [default1]: a\n0: [rank1]: b\n"


def test_an_earlier_attempt_is_read_by_its_number(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", b"the first time\n")
    simulated.end("a-id", "FAILED", "failed")
    simulated.submit("a", token="18")
    simulated.start("a-id", b"the second time\n")
    assert read(project) == read(project, attempt=2) == b"the second time\n"
    assert read(project, attempt=1) == follow(project, attempt=1) == b"the first time\n"
    with pytest.raises(ReproError) as caught:
        read(project, attempt=3)
    assert problems(caught) == ["--attempt 3: a-id has no such attempt. Hint: 1 to 2"]


def test_follow_waits_for_a_log_that_does_not_exist_yet(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    nothing = [lambda: None, lambda: None]
    begins, ends = lambda: simulated.start("a-id", b"begins\n"), lambda: simulated.end("a-id")
    simulated.on_query = [*nothing, begins, *nothing, ends]
    assert (follow(project), simulated.on_query) == (b"begins\n", [])
    assert set(simulated.intervals_s) == {15.0}
    simulated.submit("b", token="18")
    assert read(project, "b-id") == b"" and project.messages == ["b-id (b) has no output yet; its state is PENDING"]
    simulated.end("b-id")
    assert read(project, "b-id") == b"" and project.messages[1].startswith("b-id (b) has no output: ")
    assert project.messages[1].endswith("; repro history b-id has its events")


def test_lines_written_just_before_the_end_are_read(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", b"begins\n")

    def ends() -> None:
        simulated.write_log("a-id", b"ends without an end of line")
        simulated.end("a-id")

    simulated.on_query = [lambda: None, ends]
    simulated.answer = RefreshResult(("squeue: no answer",), None)  # reported once, and no reason to stop
    assert follow(project) == b"begins\nends without an end of line"
    assert project.messages == ["note: squeue: no answer"]


def test_a_log_that_begins_anew_is_followed_from_its_start(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", log_text(3))
    log = simulated.run_folder("a-id") / "log.txt"

    def requeued() -> None:
        log.write_bytes(b"anew\n")

    def replaced() -> None:
        log.with_name("other").write_bytes(b"another\n")
        simulated.write_log("a-id", b"the last of the old\n")
        log.with_name("other").rename(log)

    simulated.on_query = [lambda: None, requeued, lambda: None, replaced, lambda: simulated.end("a-id")]
    assert follow(project) == f"{log_text(3)}anew\nthe last of the old\nanother\n".encode()
    assert project.messages == [
        "the log was cut off and is printed from its new start",
        "the log was replaced by another file",
    ]


def test_follow_continues_with_a_new_attempt_and_names_it(project: Project, simulated: SimulatedSlurm) -> None:
    simulated.submit("a")
    simulated.start("a-id", b"the first time\n")

    def again() -> None:
        simulated.write_log("a-id", b"fails\n")
        simulated.end("a-id", "FAILED", "failed")
        simulated.submit("a", token="18")
        simulated.start("a-id", b"the second time\n")

    simulated.on_query = [lambda: None, again, lambda: None, lambda: simulated.end("a-id")]
    assert follow(project) == b"the first time\nfails\nthe second time\n"
    assert project.messages == ["attempt 2 of a-id: 18_0"]


def test_a_link_in_a_logs_place_is_not_followed_and_output_of_the_script_comes_last(
    project: Project, simulated: SimulatedSlurm
) -> None:
    simulated.submit("a")
    simulated.start("a-id", b"the program\n")
    folder = simulated.run_folder("a-id")
    (folder / "batch.txt").write_bytes(b"srun: error\n")
    assert read(project) == b"the program\nsrun: error\n"
    (folder / "log.txt").unlink()
    (folder / "log.txt").symlink_to("/etc/hostname")
    with pytest.raises(ReproError, match="a link and not a file"):
        read(project)
