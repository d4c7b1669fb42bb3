"""What scancel is asked, and what its answers mean; the messages are those of Slurm 22.05.8."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from orchestrator.errors import ReproError, Unreachable
from orchestrator.slurm import command as query
from orchestrator.slurm.command import CommandResult

DENIED = "scancel: error: Kill job error on job id {}: Access/permission denied\n"


class FakeScancel:
    def __init__(self) -> None:
        self.calls: list[Sequence[str]] = []
        self.stderr = ""
        self.returncode = 0

    def __call__(self, argv: Sequence[str], *, timeout_s: float) -> CommandResult:
        self.calls.append(argv)
        assert timeout_s >= 95 + len(argv) / 20, "scancel repeats a request for up to 95 s, and sends 20 per second"
        return CommandResult(tuple(argv), self.returncode, "", self.stderr)


@pytest.fixture
def scancel(monkeypatch: pytest.MonkeyPatch) -> FakeScancel:
    fake = FakeScancel()
    monkeypatch.setattr(query, "run_slurm", fake)
    return fake


def test_many_jobs_are_one_call_in_the_order_given(scancel: FakeScancel) -> None:
    assert query.cancel_jobs(["9", "7_2", " 8 ", "9"]) == {}
    assert scancel.calls == [["scancel", "9", "7_2", "8"]]
    assert query.cancel_jobs([]) == {} and len(scancel.calls) == 1


def test_more_ids_than_a_command_line_holds_are_several_calls_and_none_is_lost(scancel: FakeScancel) -> None:
    ids = [f"{10_000_000 + number}_1000" for number in range(12_000)]
    scancel.stderr, scancel.returncode = DENIED.format(ids[0]) + DENIED.format(ids[-1]), 210
    assert set(query.cancel_jobs(ids)) == {ids[0], ids[-1]}
    assert [job_id for argv in scancel.calls for job_id in argv[1:]] == ids
    assert max(sum(len(word) + 1 for word in argv) for argv in scancel.calls) < 128 * 1024


@pytest.mark.parametrize("denied", [DENIED, DENIED.removeprefix("scancel: ")])
def test_a_refusal_has_the_message_of_scancel_and_only_the_refused_job(scancel: FakeScancel, denied: str) -> None:
    scancel.stderr, scancel.returncode = denied.format("12"), 210
    assert query.cancel_jobs(["10", "12", "11"]) == {"12": "Access/permission denied"}


def test_a_refused_array_is_a_refusal_of_what_was_asked_of_it(scancel: FakeScancel) -> None:
    scancel.stderr, scancel.returncode = DENIED.format("2_[1-3]") + DENIED.format("5_0"), 210
    assert set(query.cancel_jobs(["2_0", "2_1", "2_3", "5", "6"])) == {"2_1", "2_3", "5"}


@pytest.mark.parametrize("words", ["Job/step already completing or completed", "Invalid job id specified"])
def test_a_job_that_is_over_is_no_refusal(scancel: FakeScancel, words: str) -> None:
    scancel.stderr = f"scancel: Terminating job 10\nscancel: error: Kill job error on job id 10: {words}\n"
    scancel.returncode = 1
    assert query.cancel_jobs(["10", "11"]) == {}


def test_a_failure_that_names_no_job_is_never_a_success(scancel: FakeScancel) -> None:
    scancel.stderr, scancel.returncode = "scancel: error: Something new\n", 1
    with pytest.raises(Unreachable, match="scancel: Something new"):
        query.cancel_jobs(["7"])


@pytest.mark.parametrize("wrong", ["abc", "-u root", "--user=root", "7;rm", "7,8", "7.0"])
def test_what_is_no_job_id_is_refused_before_any_job_is_cancelled(scancel: FakeScancel, wrong: str) -> None:
    with pytest.raises(ReproError, match="not a Slurm job id"):
        query.cancel_jobs(["7", wrong])
    assert scancel.calls == []
