"""The parsers of what squeue and sacct print."""

from __future__ import annotations

import pwd
import tracemalloc
from collections import deque
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.notation import SEPARATOR, JobRecord, by_id, expand_array_id, parse_accounting, parse_queue

PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\x85"), max_size=40)

SEVERAL_LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SEPARATOR), max_size=60)
# In a name of several lines, a line that looks like a row's beginning would be one.
NAMES = SEVERAL_LINES.filter(lambda text: not any(character.isdigit() for character in text))

SUBMITTED, STARTED, ENDED = 1795251640, 1795251648, 1795251700


def utc(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)


def queue_row(
    job: str = "7",
    state: str = "RUNNING",
    code: str = "0",
    nodes: str = "n1",
    start: str = str(STARTED),
    end: str = "N/A",
    reason: str = "None",
    comment: str = "(null)",
    name: str = "wrap",
    limit: str = "30:00",
    submit: str = str(SUBMITTED),
    preempted: str = "N/A",
    output: str = "/dev/null",
) -> str:
    times = (submit, start, end, preempted)
    return SEPARATOR.join((job, state, code, nodes, *times, limit, "ada", reason, name, output, comment)) + "\n"


def accounting_row(
    job: str = "7",
    state: str = "COMPLETED",
    code: str = "0:0",
    name: str = "wrap",
    limit: str = "00:30:00",
    comment: str = "token",
    submit: str = str(SUBMITTED),
    start: str = str(STARTED),
    end: str = str(ENDED),
    user: str = "ada",
) -> str:
    times = (submit, start, end)
    return SEPARATOR.join((job, state, code, "n[1-2]", *times, limit, user, "4711", "None", name, comment)) + "\n"


@given(reason=PRINTABLE, comment=SEVERAL_LINES, name=NAMES)
def test_whatever_stands_in_reason_name_and_comment_stays_there(reason: str, comment: str, name: str) -> None:
    rows = queue_row(reason=reason, comment=comment, name=name) + queue_row("8", comment="next")
    past = accounting_row(comment=comment, name=name) + accounting_row("8", comment="next")
    for first, second in (parse_queue(rows), parse_accounting(past)):
        assert first.comment == ("" if comment == "(null)" else comment.rstrip("\n"))
        assert first.user == "ada"
        assert (second.job_id, second.comment) == ("8", "next")
    assert next(parse_queue(rows)).reason in (reason.strip(), "")


@given(PRINTABLE)
def test_a_separator_in_the_comment_moves_no_field(text: str) -> None:
    comment = f"a|b{SEPARATOR}{text}"
    (record,) = parse_queue(queue_row(comment=comment))
    assert (record.comment, record.state) == (comment, "RUNNING")


@given(st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    list(parse_queue(text))
    list(parse_accounting(text))
    expand_array_id(text)


@given(st.data())
def test_no_damaged_row_breaks_the_parsers(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([queue_row(), accounting_row("7_[1-3]")]))
    place = data.draw(st.integers(0, len(row)))
    text = row[:place] + data.draw(st.text(max_size=5)) + row[data.draw(st.integers(place, len(row))) :]
    for parse in (parse_queue, parse_accounting):
        assert all(isinstance(record, JobRecord) for record in parse(text))


def test_what_is_only_expected_is_not_reported_as_happened() -> None:
    start, end = str(STARTED), str(STARTED + 1800)
    (waiting,) = parse_queue(queue_row(state="PENDING", start=start, end=end, nodes=""))
    assert (waiting.started_at, waiting.ended_at, waiting.exit_code) == (None, None, None)
    assert (waiting.starts_at, waiting.ends_at) == (utc(STARTED), None)
    for (running,) in (
        parse_queue(queue_row(end=end)),
        parse_accounting(accounting_row(state="RUNNING", end="Unknown")),
    ):
        assert running.started_at == datetime(2026, 11, 21, 9, 0, 48, tzinfo=timezone.utc)
        assert (running.ended_at, running.starts_at) == (None, None)
        assert running.ends_at == utc(STARTED + 1800), running.source
    (held,) = parse_queue(queue_row(state="PENDING", start="N/A"))
    (endless,) = parse_queue(queue_row(end="NONE", limit="UNLIMITED"))
    assert (held.starts_at, endless.ends_at) == (None, None)
    (ended,) = parse_queue(queue_row(state="FAILED", end=end))
    assert (ended.ended_at, ended.ends_at) == (utc(STARTED + 1800), None)


def test_squeue_and_sacct_give_the_same_record_of_a_job() -> None:
    (queued,) = parse_queue(queue_row(state="FAILED", code="768", nodes="n[1-2]", end=str(ENDED), comment="token"))
    (past,) = parse_accounting(accounting_row(state="FAILED", code="3:0"))
    records = {(record.source, *_without_source(record)) for record in (queued, past)}
    assert {row[0] for row in records} == {"squeue", "sacct"}
    assert len({row[1:] for row in records}) == 1, records
    assert (queued.user, queued.submitted_at) == ("ada", utc(SUBMITTED))
    assert (queued.output, past.output) == ("/dev/null", "")


def _without_source(record: JobRecord) -> tuple[object, ...]:
    names = [name for name in JobRecord.__dataclass_fields__ if name not in ("source", "output")]
    return tuple(getattr(record, name) for name in names)


def test_who_cancelled_a_job_is_a_name_where_there_is_one() -> None:
    def canceller(state: str) -> str | None:
        return next(parse_accounting(accounting_row(state=state))).cancelled_by

    assert canceller("CANCELLED by 0") == pwd.getpwuid(0).pw_name
    assert canceller("CANCELLED by 4000000001") == "4000000001"
    assert canceller("CANCELLED") is None and canceller("COMPLETED") is None
    (stranger,) = parse_accounting(accounting_row(user=""))
    assert stranger.user == "4711", "a user without a name is the number"


@pytest.mark.parametrize(
    ("raw", "code", "signal"),
    [
        ("0", 0, None),
        ("768", 3, None),
        ("9", 0, 9),
        ("139", 0, 11),
        ("3:0", 3, None),
        ("0:15", 0, 15),
        ("x", None, None),
    ],
)
def test_squeues_wait_status_is_exit_code_and_signal(raw: str, code: int | None, signal: int | None) -> None:
    (record,) = parse_queue(queue_row(state="FAILED", code=raw))
    assert (record.exit_code, record.signal) == (code, signal)


def test_nothing_is_an_empty_text_in_each_of_slurms_words_for_it() -> None:
    (record,) = parse_queue(queue_row(nodes="None assigned", reason="None", comment="(null)", start="Unknown"))
    assert (record.nodes, record.reason, record.comment, record.started_at) == ("", "", "", None)


def test_a_cancelled_jobs_state_loses_who_did_it() -> None:
    (record,) = parse_accounting(accounting_row(state="CANCELLED by 1000", code="0:15"))
    assert (record.state, record.exit_code, record.signal, record.source) == ("CANCELLED", 0, 15, "sacct")


def test_the_wrong_nodes_of_a_stub_row_are_left_out() -> None:
    (stub,) = parse_accounting(accounting_row(name="allocation", limit=""))
    assert (stub.nodes, stub.comment, stub.state) == ("", "", "COMPLETED")
    (real,) = parse_accounting(accounting_row(name="allocation"))
    assert (real.nodes, real.comment) == ("n[1-2]", "token")


def test_a_row_without_an_end_has_no_exit_code_yet() -> None:
    """What sacct 22.05.8 printed of a job with `exit 3` that ended while slurmdbd was away, after its return."""
    (record,) = parse_accounting(accounting_row(state="FAILED", code="0:0", end="Unknown"))
    assert (record.state, record.exit_code, record.signal, record.ended_at) == ("FAILED", None, None, None)


def test_of_several_runs_under_one_id_the_newest_counts_wherever_it_stands() -> None:
    def last_state(*rows: str) -> str:
        return by_id(parse_accounting("".join(rows)))["7"].state

    assert last_state(accounting_row(state="NODE_FAIL"), accounting_row(state="COMPLETED")) == "COMPLETED"
    old = accounting_row(state="FAILED", submit=str(SUBMITTED - 9), start=str(SUBMITTED - 5))
    assert last_state(accounting_row(state="COMPLETED"), old) == "COMPLETED"
    again = accounting_row(state="PENDING", submit=str(SUBMITTED + 3), start="Unknown", end="Unknown")
    assert last_state(again, accounting_row(state="REQUEUED")) == "PENDING"
    assert last_state(accounting_row(state="NODE_FAIL"), accounting_row(state="PENDING", start="Unknown")) == "PENDING"


def test_a_pending_array_is_its_tasks() -> None:
    assert [job.job_id for job in parse_accounting(accounting_row("40_[2-5%2]", state="PENDING"))] == [
        "40_2",
        "40_3",
        "40_4",
        "40_5",
    ]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("40", ["40"]),
        ("40_3", ["40_3"]),
        ("40+1", ["40+1"]),
        ("40_[0-3%2]", ["40_0", "40_1", "40_2", "40_3"]),
        ("40_[0-6:3,9]", ["40_0", "40_3", "40_6", "40_9"]),
        ("40_[1,3,...]", ["40_1", "40_3"]),
        ("40_[1,3-...", ["40_1"]),
        ("12_[3-6%4]", ["12_3", "12_4", "12_5", "12_6"]),
        ("12_[1,3-5:2]", ["12_1", "12_3", "12_5"]),
        ("12_[5-1]", []),
        ("12_[x]", []),
    ],
)
def test_an_array_expression_is_expanded(text: str, ids: list[str]) -> None:
    assert list(expand_array_id(text)) == ids


def test_a_header_of_a_cluster_is_not_a_job() -> None:
    (record,) = parse_queue("CLUSTER: ci\n" + queue_row())
    assert record.job_id == "7"


@pytest.mark.slow
def test_a_long_queue_is_parsed_row_by_row() -> None:
    rows = 20_000
    text = "".join(queue_row(job=str(number), comment=f"token-{number}") for number in range(1, rows + 1))
    tracemalloc.start()
    try:
        (last,) = deque(parse_queue(text), maxlen=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (last.job_id, last.comment) == (str(rows), f"token-{rows}")
    assert peak < len(text)


def test_the_records_of_a_long_queue_share_what_is_the_same() -> None:
    first, second = parse_queue(queue_row(job="1") + queue_row(job="2"))
    assert first.nodes is second.nodes and first.started_at is second.started_at and first.user is second.user
