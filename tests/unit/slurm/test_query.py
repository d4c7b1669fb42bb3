"""How the two sources are put together; the commands are replaced by what they would say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.slurm import command as query
from orchestrator.slurm.command import AccountingUnreachable, CommandResult, NoAccounting, keeps_comments
from orchestrator.slurm.notation import ACCOUNTING_FIELDS, QUEUE_FIELDS, JobRecord
from tests.unit.slurm.test_records import SUBMITTED, accounting_row, queue_row

QUEUE_HEADER = "\x1f".join(["JOBID", *QUEUE_FIELDS[1:]]) + "\n"
ACCOUNTING_HEADER = "\x1f".join(ACCOUNTING_FIELDS) + "\n"


@dataclass
class FakeSlurm:
    """Answers of squeue, sacct and scontrol (settings), and what they were asked."""

    squeue: str = ""
    sacct: str | Unreachable = ""
    config: str = "AccountingStoreFlags    = job_comment,job_env\n"
    squeue_error: str = ""
    warnings: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=lambda: {"squeue": QUEUE_HEADER, "sacct": ACCOUNTING_HEADER})
    calls: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], *, variables: Mapping[str, str] | None = None) -> CommandResult:
        self.calls.append(argv)
        said = {"squeue": self.squeue, "sacct": self.sacct}.get(argv[0], self.config)
        if isinstance(said, Unreachable):
            raise said
        if argv[0] != "scontrol":
            assert variables is not None and variables["SLURM_TIME_FORMAT"] == "%s", "local times are ambiguous"
            assert variables["SLURM_BITSTR_LEN"] == "0", "a long list of tasks is cut otherwise"
        error = self.squeue_error if argv[0] == "squeue" else ""
        header = "" if error else self.headers.get(argv[0], "")
        return CommandResult(tuple(argv), 1 if error else 0, header + said, error or self.warnings.get(argv[0], ""))

    def asked(self, command: str) -> list[str]:
        return [word for argv in self.calls if argv[0] == command for word in argv if word.startswith("--jobs=")]

    @property
    def commands(self) -> list[str]:
        return [argv[0] for argv in self.calls]


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm()
    monkeypatch.setattr(query, "run_slurm", fake)
    return fake


def test_the_commands_leave_out_no_field_task_state_or_run(slurm: FakeSlurm) -> None:
    slurm.sacct = AccountingUnreachable(Problem("sacct: off"))
    fields = "\x1f,".join(f"{name}:" for name in QUEUE_FIELDS)
    squeue = ["squeue", "--array", "--states=all", f"--Format={fields}"]
    sacct = ["sacct", "--allocations", "--duplicates", "--parsable2", "--delimiter=\x1f"]
    sacct.append(f"--format={','.join(ACCOUNTING_FIELDS)}")
    query.query_jobs(["7"])
    assert [list(argv) for argv in slurm.calls] == [[*squeue, "--jobs=7"], [*sacct, "--jobs=7"]]
    slurm.calls.clear()
    query.find_by_comments(["token"])
    user = f"--user={os.getuid()}"
    assert slurm.calls == [[*squeue, "--all", user], [*sacct, user, "--starttime=now-30days"]]


def test_no_ids_ask_nothing(slurm: FakeSlurm) -> None:
    assert query.query_jobs([]) == query.QueryAnswer({}, ()) and slurm.calls == []


def test_accounting_is_not_asked_for_what_the_queue_knows(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7") + queue_row("8_0")
    assert set(query.query_jobs(["7", "8"]).records) == {"7", "8_0"}
    assert len(slurm.calls) == 1


@pytest.mark.parametrize("id_of_first", ["7+0", "7"])
def test_the_first_component_of_a_heterogeneous_job_is_the_job(slurm: FakeSlurm, id_of_first: str) -> None:
    slurm.squeue = queue_row("7+1", state="PENDING") + queue_row(id_of_first, state="RUNNING")
    slurm.sacct = accounting_row("8+0") + accounting_row("8+1", state="FAILED")
    records = query.query_jobs(["7", "8"]).records
    assert (records["7"].state, records["8"].state) == ("RUNNING", "COMPLETED")


def test_a_revoked_job_has_the_state_of_the_sibling_cluster_that_started_it(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", state="REVOKED") + queue_row("8", state="REVOKED") + queue_row("9")
    slurm.sacct = accounting_row("7") + accounting_row("8", state="REVOKED")
    records = query.query_jobs(["7", "8", "9"]).records
    assert [records[job_id].state for job_id in "789"] == ["COMPLETED", "REVOKED", "RUNNING"]
    assert [{"--federation", "--sibling"} & set(call) for call in slurm.calls] == [
        set(),
        {"--federation"},
        {"--federation", "--sibling"},
    ]
    assert slurm.asked("sacct") == ["--jobs=7,8"]


def test_accounting_is_asked_once_and_only_for_the_rest(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", state="RUNNING")
    slurm.sacct = accounting_row("7", state="NODE_FAIL") + accounting_row("5") + accounting_row("6_[0-2]")
    answer = query.query_jobs(["5", "6_1", "7", "9"])
    assert {job: record.source for job, record in answer.records.items()} == {
        "7": "squeue",
        "5": "sacct",
        "6_1": "sacct",
    }
    assert slurm.asked("sacct") == ["--jobs=5,6,9"]


def test_an_older_run_in_accounting_does_not_end_a_job_that_is_queued_again(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", state="PENDING")
    slurm.sacct = accounting_row("7", state="NODE_FAIL")
    assert query.query_jobs(["7", "8"]).records["7"].state == "PENDING"


def test_a_job_id_that_slurm_does_not_know_is_absent_and_no_error(slurm: FakeSlurm) -> None:
    slurm.squeue_error = "slurm_load_jobs error: Invalid job id specified"
    assert query.query_jobs(["7"]) == query.QueryAnswer({}, (), frozenset({"7"}))


@pytest.mark.fault(
    section="Job states",
    fault="squeue fails in any other way",
    promise="The failure is never an empty answer.",
)
def test_any_other_failure_of_squeue_is_never_an_empty_answer(slurm: FakeSlurm) -> None:
    slurm.squeue_error = "squeue: error: Something new"
    with pytest.raises(Unreachable, match="squeue: Something new"):
        query.query_jobs(["7"])


@pytest.mark.fault(
    section="Job states",
    fault="sacct fails because slurmdbd does not answer, or because the cluster has no accounting",
    promise="Only a cluster without accounting can lack a job.",
)
@pytest.mark.parametrize(("kind", "unknown"), [(AccountingUnreachable, set()), (NoAccounting, {"8"})])
def test_a_job_is_unknown_without_sacct_only_on_a_cluster_without_accounting(
    slurm: FakeSlurm, kind: type[AccountingUnreachable], unknown: set[str]
) -> None:
    slurm.squeue, slurm.sacct = queue_row("7"), kind(Problem("sacct: away"))
    answer = query.query_jobs(["7", "8"])
    assert answer.complaints == ("sacct: away",) and set(answer.unknown) == unknown


@pytest.mark.parametrize("source", ["squeue", "sacct"])
def test_a_record_that_may_be_ours_is_neither_ours_nor_unknown(slurm: FakeSlurm, source: str) -> None:
    slurm.squeue, slurm.sacct = (queue_row("7"), "") if source == "squeue" else ("", accounting_row("7"))
    answer = query.query_jobs(["7", "9"], lambda _: None)
    assert not answer.records and set(answer.unclear) == {"7"} and set(answer.unknown) == {"9"}


@pytest.mark.parametrize(
    ("stdout", "stderr", "message"),
    [
        ("Slurmctld(primary) at c1 is DOWN\n", "scontrol: error: x", "Slurmctld(primary) at c1 is DOWN"),
        ("\n", "scontrol: error: Something new\n", "Something new"),
        ("", "", "no answer"),
    ],
)
def test_nothing_is_submitted_unless_a_controller_is_up(
    monkeypatch: pytest.MonkeyPatch, stdout: str, stderr: str, message: str
) -> None:
    def ping(argv: Sequence[str]) -> CommandResult:
        assert argv == ["scontrol", "ping"]
        return CommandResult(tuple(argv), 0, stdout, stderr)

    monkeypatch.setattr(query, "run_slurm", ping)
    with pytest.raises(Unreachable) as caught:
        query.require_controller()
    assert caught.value.problems == (Problem(f"scontrol ping: {message}", hint="try again when slurmctld answers"),)
    stdout += "Slurmctld(backup) at c2 is UP\n"
    query.require_controller()


def is_mine(record: JobRecord) -> bool:
    return record.comment == "token"


def test_somebody_elses_job_under_a_reused_id_is_not_taken_for_ours(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", comment="theirs") + queue_row("8", comment="token")
    newer = accounting_row("7", state="RUNNING", comment="theirs", submit=str(SUBMITTED + 99))
    slurm.sacct = accounting_row("7", state="TIMEOUT") + newer + accounting_row("9", comment="theirs")
    answer = query.query_jobs(["7", "8", "9"], is_mine)
    assert {job: record.state for job, record in answer.records.items()} == {"7": "TIMEOUT", "8": "RUNNING"}
    assert answer.unknown == frozenset({"9"})
    assert slurm.asked("sacct") == ["--jobs=7,9"] and "--duplicates" in slurm.calls[1]


def test_an_array_of_which_any_task_is_known_is_not_unknown(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7_1") + queue_row("7_2")
    answer = query.query_jobs(["7", "7_2", "7_9"])
    assert set(answer.records) == {"7_1", "7_2"} and answer.unknown == frozenset({"7_9"})


@pytest.mark.fault(
    section="Job states",
    fault="A cluster without accounting; accounting that does not answer",
    promise="squeue alone decides which jobs are unknown; while accounting does not answer, no job is.",
)
def test_the_queue_alone_decides_only_on_a_cluster_without_accounting(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", comment="token") + queue_row("8", comment="theirs")
    for error, unknown in ((NoAccounting, {"8", "9"}), (AccountingUnreachable, set())):
        slurm.calls.clear()
        slurm.sacct = error(Problem("sacct: off"))
        answer = query.query_jobs(["7", "8", "9"], is_mine)
        assert {job: record.source for job, record in answer.records.items()} == {"7": "squeue"}
        assert (answer.complaints, answer.unknown) == (("sacct: off",), frozenset(unknown))
        assert slurm.commands == ["squeue", "sacct"]


@pytest.mark.slow
def test_thousands_of_ids_are_one_call_and_a_list_too_long_for_an_argument_is_split(slurm: FakeSlurm) -> None:
    query.query_jobs([str(10_000_000 + number) for number in range(8_000)])
    assert len(slurm.asked("squeue")) == 1
    slurm.calls.clear()
    query.query_jobs([str(10_000_000 + number) for number in range(40_000)])
    lists = slurm.asked("squeue")
    assert max(map(len, lists)) < 128 * 1024
    assert sum(len(text.split(",")) for text in lists) == 40_000


def test_the_tasks_of_an_array_are_asked_for_as_one(slurm: FakeSlurm) -> None:
    query.query_jobs([f"7_{task}" for task in range(1000)])
    assert slurm.asked("squeue") == ["--jobs=7"]


def test_tasks_cancelled_before_they_started_end_with_their_array(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("10", state="CANCELLED", nodes="") + queue_row("10_0", state="COMPLETED")
    records = query.query_jobs(["10_0", "10_1", "10_2"]).records
    assert {job: record.state for job, record in records.items()} == {
        "10_0": "COMPLETED",
        "10_1": "CANCELLED",
        "10_2": "CANCELLED",
    }
    assert [record.job_id for record in records.values()] == list(records)


def test_a_waiting_array_does_not_answer_for_a_task_it_does_not_list(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("10", state="PENDING", nodes="")
    assert query.query_jobs(["10_1"]).records == {}


@pytest.mark.fault(
    section="Job states",
    fault="Accounting lists one task of an array under the array's bare id",
    promise="The row is not used for tasks that never ran.",
)
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED"])
def test_the_row_of_one_task_that_ran_under_the_bare_id_is_not_given_to_tasks_that_never_ran(
    slurm: FakeSlurm, state: str
) -> None:
    """Seen after slurmctld was killed: sacct had the last task of an array under the array's id."""
    slurm.sacct = accounting_row("220", state=state)
    answer = query.query_jobs(["220_0", "220_1"])
    assert answer.records == {} and answer.unknown == frozenset({"220_0", "220_1"})


@pytest.mark.fault(
    section="Job states",
    fault="squeue or sacct prints an error and ends with exit code 0",
    promise="A warning; the output is not an answer.",
)
@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_an_error_text_with_exit_code_0_is_no_answer(slurm: FakeSlurm, command: str) -> None:
    slurm.warnings[command] = f"{command}: error: Something new\n"
    answer = query.query_jobs(["7", "8"])
    assert answer.unknown == frozenset() and f"{command}: Something new" in answer.complaints


@pytest.mark.fault(
    section="Job states",
    fault="squeue or sacct prints nothing and ends with exit code 0",
    promise="A warning; the output is not an answer.",
)
@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_an_answer_without_column_names_is_no_list_of_jobs(slurm: FakeSlurm, command: str) -> None:
    slurm.headers[command] = ""
    answer = query.query_jobs(["7", "8"])
    assert answer.unknown == frozenset() and f"{command}: its answer is no list of jobs" in answer.complaints


def test_a_command_that_fails_without_a_message_is_reported_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(argv: Sequence[str], **_: object) -> CommandResult:
        return CommandResult(tuple(argv), 7, QUEUE_HEADER, "")

    monkeypatch.setattr(query, "run_slurm", fail)
    for call, name in (
        (query.query_jobs, "squeue"),
        (query.find_by_comments, "squeue"),
        (query.cancel_jobs, "scancel"),
    ):
        with pytest.raises(Unreachable, match=f"{name}: failed with exit code 7"):
            call(["7"])


def test_a_list_that_a_failed_command_prints_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(argv: Sequence[str], *, variables: Mapping[str, str]) -> CommandResult:  # noqa: ARG001
        if argv[0] == "squeue":
            return CommandResult(tuple(argv), 0, QUEUE_HEADER, "")
        return CommandResult(tuple(argv), 7, ACCOUNTING_HEADER, "")

    monkeypatch.setattr(query, "run_slurm", answer)
    expected = query.QueryAnswer({}, ("sacct: failed with exit code 7",))
    assert query.query_jobs(["7"]) == query.find_by_comments(["token"]) == expected


def test_a_sacct_that_cannot_be_run_is_a_complaint_next_to_what_the_queue_lists(slurm: FakeSlurm) -> None:
    message = "sacct: there is no such command on this machine"
    slurm.squeue, slurm.sacct = queue_row("7", comment="token"), Unreachable(Problem(message))
    answer = query.query_jobs(["7", "8"])
    assert (set(answer.records), answer.complaints, answer.unknown) == ({"7"}, (message,), frozenset())
    answer = query.find_by_comments(["token", "other"])
    assert (set(answer.records), answer.complaints) == ({"7"}, (message,))


def test_words_on_stderr_do_not_hide_the_jobs_that_are_listed(slurm: FakeSlurm) -> None:
    slurm.squeue, slurm.warnings["squeue"] = queue_row("7"), "Welcome to the cluster\n"
    answer = query.query_jobs(["7"])
    assert set(answer.records) == {"7"} and answer.complaints == ()
    answer = query.query_jobs(["7", "8"])
    assert set(answer.records) == {"7"} and answer.complaints == ("squeue: Welcome to the cluster",)


def test_an_invalid_job_id_with_exit_code_0_is_a_warning(slurm: FakeSlurm) -> None:
    slurm.squeue, slurm.warnings["squeue"] = queue_row("7"), "slurm_load_jobs error: Invalid job id specified\n"
    answer = query.query_jobs(["7", "8"])
    assert set(answer.records) == {"7"} and answer.unknown == frozenset()
    assert answer.complaints == ("squeue: slurm_load_jobs error: Invalid job id specified",)


def test_jobs_and_warnings_of_every_list_of_ids_are_in_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long list of ids takes several calls of squeue and sacct."""

    def answer_for_one_job(argv: Sequence[str], *, variables: Mapping[str, str]) -> CommandResult:  # noqa: ARG001
        (job_id,) = (word.removeprefix("--jobs=") for word in argv if word.startswith("--jobs="))
        stderr = f"{argv[0]}: error: warning {job_id}"
        if argv[0] == "squeue":
            return CommandResult(tuple(argv), 0, QUEUE_HEADER + (queue_row(job_id) if job_id in "12" else ""), stderr)
        row = accounting_row(job_id) if job_id in "34" else ""
        return CommandResult(tuple(argv), 0, ACCOUNTING_HEADER + row, stderr)

    monkeypatch.setattr(query, "run_slurm", answer_for_one_job)
    monkeypatch.setattr(query, "id_lists", list)
    answer = query.query_jobs(["1", "2", "3", "4", "5"])
    assert set(answer.records) == {"1", "2", "3", "4"}
    expected = [f"squeue: warning {job_id}" for job_id in "12345"] + [f"sacct: warning {job_id}" for job_id in "345"]
    assert list(answer.complaints) == expected


@pytest.mark.parametrize(
    "stdout", ["JOBID is invalid\n", "JOBID\n7\x1f8\n", "no jobs\x1f\n", "CLUSTER: ci\n", "Welcome\nJOBID\x1fSTATE\n"]
)
def test_only_a_first_line_with_column_names_is_a_list_of_jobs(slurm: FakeSlurm, stdout: str) -> None:
    slurm.headers["squeue"] = stdout
    assert query.query_jobs(["7"]).complaints == ("squeue: its answer is no list of jobs",)


def test_the_name_of_the_cluster_before_the_column_names_does_not_make_a_list_doubtful(slurm: FakeSlurm) -> None:
    """If SLURM_CLUSTERS is set, squeue begins with this line."""
    slurm.headers["squeue"] = "CLUSTER: ci\n" + QUEUE_HEADER
    assert query.query_jobs(["7"]) == query.QueryAnswer({}, (), frozenset({"7"}))
    assert query.find_by_comments(["token"]) == query.QueryAnswer({}, ())
    slurm.squeue = queue_row("7", comment="token")
    assert set(query.query_jobs(["7"]).records) == set(query.find_by_comments(["token"]).records) == {"7"}


@pytest.mark.fault(
    section="Job states",
    fault="An empty output with exit code 0 when a token is looked up",
    promise="It proves nothing.",
)
@pytest.mark.parametrize("command", ["squeue", "sacct"])
def test_a_comment_missing_from_a_doubtful_answer_proves_nothing(slurm: FakeSlurm, command: str) -> None:
    slurm.headers[command] = ""
    answer = query.find_by_comments(["token"])
    assert answer.complaints == (f"{command}: its answer is no list of jobs",)


@pytest.mark.parametrize("wrong", ["abc", "7_x", "7;rm", "-7", "7,8", "٣"])
def test_what_is_no_job_id_is_refused_before_slurm_sees_it(slurm: FakeSlurm, wrong: str) -> None:
    with pytest.raises(ReproError, match="not a Slurm job id"):
        query.query_jobs(["7", wrong])
    assert slurm.calls == []


def test_a_comment_is_looked_for_in_the_queue_first_and_matched_whole(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", comment="token1") + queue_row("8", comment="token")
    assert list(query.find_by_comments(["token"]).records) == ["8"]
    slurm.squeue = queue_row("7", comment="group, my-token") + queue_row("8", comment='{"g": 1, "repro": "token"}')
    answer = query.find_by_comments(["token"])
    assert {job_id: record.comment for job_id, record in answer.records.items()} == {"8": "token"}
    assert [argv[0] for argv in slurm.calls] == ["squeue", "squeue"]


def test_a_comment_that_left_the_queue_is_found_in_accounting(slurm: FakeSlurm) -> None:
    slurm.sacct = accounting_row("7")
    assert list(query.find_by_comments(["token"]).records) == ["7"]


@pytest.mark.parametrize("source", ["squeue", "sacct"])
def test_a_listed_job_with_the_comment_is_the_answer_without_a_complaint(slurm: FakeSlurm, source: str) -> None:
    """The configuration is empty, so a missing comment would prove nothing."""
    slurm.config, slurm.warnings[source] = "", "Welcome to the cluster\n"
    slurm.squeue = queue_row("7", comment="token") if source == "squeue" else ""
    slurm.sacct = accounting_row("7") if source == "sacct" else ""
    answer = query.find_by_comments(["token"])
    assert (list(answer.records), answer.complaints) == (["7"], ())


@pytest.mark.fault(
    section="Job states",
    fault="Accounting keeps no comments",
    promise="A token that is not found proves nothing.",
)
@pytest.mark.parametrize("config", ["", "AccountingStoreFlags = (null)\n", "AccountingStoreFlags = job_env\n"])
def test_not_found_proves_nothing_where_accounting_keeps_no_comments(slurm: FakeSlurm, config: str) -> None:
    slurm.config = config
    (complaint,) = query.find_by_comments(["token"]).complaints
    assert complaint == "sacct: accounting stores no comments here, so a job that has left the queue cannot be found"
    slurm.config = "AccountingStoreFlags    = job_comment,job_script\n"
    assert query.find_by_comments(["token"]) == query.QueryAnswer({}, ())


def test_many_comments_are_one_squeue_and_one_sacct_for_those_it_lacks(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", comment="a") + queue_row("8", comment="other")
    slurm.sacct = accounting_row("5", comment="b") + accounting_row("7", comment="a") + accounting_row("6", comment="d")
    answer = query.find_by_comments(["a", "b", "c"])
    assert {job: record.source for job, record in answer.records.items()} == {"7": "squeue", "5": "sacct"}
    assert [argv[0] for argv in slurm.calls if "config" not in argv] == ["squeue", "sacct"]
    assert all(f"--user={os.getuid()}" in argv for argv in slurm.calls[:2])
    assert "--all" in slurm.calls[0], "jobs in hidden partitions too"
    slurm.calls.clear()
    assert query.find_by_comments([]) == query.QueryAnswer({}, ()) and slurm.calls == []
    assert set(query.find_by_comments(["a", "other"]).records) == {"7", "8"} and len(slurm.calls) == 1


def test_two_of_our_jobs_under_one_id_are_no_proof_that_there_is_only_one(slurm: FakeSlurm) -> None:
    slurm.squeue = queue_row("7", comment="new", submit=str(SUBMITTED + 9))
    slurm.sacct = accounting_row("7", comment="old")
    answer = query.find_by_comments(["old", "new"])
    assert answer.records["7"].comment == "new"
    assert answer.complaints == ("sacct: job 7 is a newer one, of the same id",)
    assert query.find_by_comments(["old"]).records["7"].comment == "old"


def test_a_user_whom_squeue_does_not_know_is_no_proof_that_there_is_no_job(slurm: FakeSlurm) -> None:
    """squeue 22.05.8 says so on stderr and ends with 0."""
    slurm.warnings["squeue"] = "squeue: error: Invalid user: nosuch\n"
    with pytest.raises(Unreachable, match="squeue: Invalid user: nosuch"):
        query.find_by_comments(["token"])


@pytest.mark.fault(
    section="Job states",
    fault="Accounting is unreachable when a token is looked up",
    promise="A token that is not found proves nothing.",
)
def test_not_found_proves_nothing_where_accounting_is_away(slurm: FakeSlurm) -> None:
    slurm.sacct = AccountingUnreachable(Problem("sacct: off"))
    assert query.find_by_comments(["token"]).complaints == ("sacct: off",)


@pytest.mark.parametrize("sacct", ["", AccountingUnreachable(Problem("sacct: off"))], ids=["sacct", "no sacct"])
def test_a_queue_with_a_warning_does_not_prove_that_a_comment_is_not_queued(
    slurm: FakeSlurm, sacct: str | Unreachable
) -> None:
    slurm.sacct = sacct
    assert query.find_by_comments(["token"]).lists_queue
    slurm.warnings["squeue"] = "squeue: error: Something new\n"
    answer = query.find_by_comments(["token"])
    assert not answer.lists_queue
    assert answer.complaints == ("squeue: Something new", *(["sacct: off"] if sacct else []))


def test_comments_kept_is_read_in_the_words_of_old_releases_too() -> None:
    assert keeps_comments({"AccountingStoreJobComment": "Yes"})
    assert not keeps_comments({"AccountingStoreJobComment": "No", "AccountingStorageType": "none"})
