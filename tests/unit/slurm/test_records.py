"""The parsers of squeue's and sacct's rows."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.slurm.records import SEPARATOR, by_id, expand_array_id, parse_accounting, parse_queue

PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="\u2028\u2029\x85"), max_size=40)

SEVERAL_LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SEPARATOR), max_size=60)


def queue_row(
    job: str = "7",
    state: str = "RUNNING",
    code: str = "0",
    nodes: str = "n1",
    start: str = "1795251648",
    end: str = "N/A",
    reason: str = "None",
    comment: str = "(null)",
) -> str:
    return SEPARATOR.join((job, state, code, nodes, start, end, reason, comment)) + "\n"


def accounting_row(
    job: str = "7", state: str = "COMPLETED", code: str = "0:0", name: str = "wrap", limit: str = "00:30:00"
) -> str:
    times = ("1795251648", "1795251700")
    return SEPARATOR.join((job, state, code, "n[1-2]", *times, "None", name, limit, "token")) + "\n"


@given(
    reason=PRINTABLE, comment=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x1f"), max_size=60)
)
def test_whatever_stands_in_reason_and_comment_stays_there(reason: str, comment: str) -> None:
    first, second = parse_queue(queue_row(reason=reason, comment=comment) + queue_row("8", comment="next"))
    assert first.comment == ("" if comment == "(null)" else comment.rstrip("\n"))
    assert first.reason in (reason.strip(), "") and first.nodes == "n1"
    assert (second.job_id, second.comment) == ("8", "next")


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


def test_what_is_only_expected_is_not_reported_as_happened() -> None:
    (waiting,) = parse_queue(queue_row(state="PENDING", start="1795251648", end="1795255000", nodes=""))
    assert (waiting.started_at, waiting.ended_at, waiting.exit_code) == (None, None, None)
    (running,) = parse_queue(queue_row(end="1795255000"))
    assert running.started_at == datetime(2026, 11, 21, 9, 0, 48, tzinfo=timezone.utc)
    assert running.ended_at is None


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


def test_of_a_job_that_ran_twice_the_last_row_counts() -> None:
    rows = accounting_row(state="NODE_FAIL") + accounting_row(state="COMPLETED")
    assert by_id(parse_accounting(rows))["7"].state == "COMPLETED"


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
    ],
)
def test_an_array_expression_is_expanded(text: str, ids: list[str]) -> None:
    assert list(expand_array_id(text)) == ids


def test_a_header_of_a_cluster_is_not_a_job() -> None:
    (record,) = parse_queue("CLUSTER: ci\n" + queue_row())
    assert record.job_id == "7"
