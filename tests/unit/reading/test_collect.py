"""Tests of collecting: new content is read once, and a replaced log from its beginning."""

from __future__ import annotations

import dataclasses
import gzip
import io
import math
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.files import open_job_file
from orchestrator.ledger import attempts, measurements
from orchestrator.ledger.attempts import job_rows, record_observations
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import (
    MeasuredMetric,
    Measurement,
    iterations_of,
    metrics_of,
)
from orchestrator.ledger.rows import JobRow, Observation
from orchestrator.ledger.tables import ENDED, RUNNING, Attempt, Event, Iteration, IterationLine, Job, LogOffset, Metric
from orchestrator.megatron.logs import reader as megatron_reader
from orchestrator.megatron.logs.reader import FINGERPRINT_BYTES, NewContent, read_new
from orchestrator.reading import collect as collecting
from orchestrator.reading import logs, reader
from orchestrator.reading.collect import collect, measure
from orchestrator.reading.gpu_samples import MeanPower, SampledNumbers
from tests.examples import examples
from tests.recorded_jobs import JOB_SPEC, new_ledger, record_jobs

pytestmark = pytest.mark.slow

WORLD = "using world size: 4, data-parallel size: 1, tensor-model-parallel size: 2, pipeline-model-parallel size: 2\n"
LINE = (
    " [2026-01-01 00:00:00.000000] iteration {n:8d}/       8 | consumed samples: {n:12d} | elapsed time per iteration"
    " (ms): {ms:.1f} | learning rate: 1.000000E-04 | global batch size:     4 | lm loss: {loss} | loss scale: 1.0 |"
    " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
KEPT = ("iteration", "verdict", "verdict_reason", "failure", "deciding_line", "deciding_rank", "execution")
"""Columns of an attempt that collecting sets."""
DONE = "[after training is done] datetime: 2026-01-01 00:00:00 \n"


def log(upto: int, *, ms: float = 100.0, loss: str = "6.9E+00", begin: int = 1) -> str:
    lines = (LINE.format(n=n, ms=ms + n, loss=loss) for n in range(begin, upto + 1))
    return WORLD + "".join(lines) + (DONE if upto == 8 else "")


EXECUTION = " > execution: graph\n"


def waiting(text: str) -> str:
    """Return the log of a program that measures the host wait."""
    return EXECUTION + text.replace(" | learning", " | host wait per iteration (ms): 30.9 | learning")


class Made:
    """Jobs of a ledger with their folders."""

    def __init__(self, home: Path, *names: str) -> None:
        self.home = home
        home.mkdir(exist_ok=True)
        self.ledger = new_ledger(home)
        sa.event.listen(self.ledger.engine, "connect", lambda raw, _: raw.execute("pragma synchronous=off") and None)
        self.ledger.engine.dispose()
        record_jobs(self.ledger, *names)
        with self.ledger.writing() as session:
            for attempt in session.scalars(sa.select(Attempt)):
                folder = home / attempt.job_id
                folder.mkdir()
                attempt.folder = str(folder)

    def folder(self, name: str = "a") -> Path:
        return self.home / f"{name}-id"

    def runs(self, *attempts: int) -> None:
        record_observations(self.ledger, {attempt: Observation("RUNNING", RUNNING) for attempt in attempts or (1,)}, [])

    def ends(self, *attempts: int, state: str = "COMPLETED", code: int = 0, **seen: Any) -> None:
        end = Observation(state, ENDED, exit_code=code, **seen)
        record_observations(self.ledger, dict.fromkeys(attempts or (1,), end), [])

    def row(self, name: str = "a") -> JobRow:
        return next(row for row in job_rows(self.ledger) if row.case_name == name)

    def numbers(self, attempt: int = 1) -> list[int]:
        return [line.iteration for line in iterations_of(self.ledger, attempt)]

    def begin_again(self) -> None:
        """Reset the first job to its start."""
        for file in self.folder().iterdir():
            file.write_text("")
        nothing = dict.fromkeys((*KEPT, "ended_at", "exit_code"))
        with self.ledger.writing() as session:
            for table in (Iteration, Metric, LogOffset, Event):
                session.execute(sa.delete(table))
            session.execute(sa.update(Attempt).values(state="RUNNING", phase=RUNNING, **nothing))

    def check_as_measured(self, name: str = "a") -> None:
        """Check that the ledger has the content of all of the job's files."""
        row = self.row(name)
        now = measure(row)
        assert [getattr(row, name) for name in KEPT] == [getattr(now, name) for name in KEPT]
        stored = iterations_of(self.ledger, row.attempt_id)
        assert [_plain(line) for line in stored] == [_plain(line) for line in now.iterations]
        metrics = metrics_of(self.ledger, [row.attempt_id]).get(row.attempt_id, {})
        assert metrics == {metric.name: metric for metric in now.metrics}

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return everything that collecting writes, without times."""
        with self.ledger.reading() as session:
            stored = {
                str(table.__table__): [tuple(row) for row in session.execute(sa.select(*table.__table__.columns))]
                for table in (Iteration, Metric, LogOffset)
            }
            stored["attempts"] = [
                tuple(row) for row in session.execute(sa.select(*(getattr(Attempt, n) for n in KEPT)))
            ]
            events = sa.select(Event.kind, Event.detail).where(Event.kind == "verdict")
            stored["events"] = [tuple(row) for row in session.execute(events)]
        return stored


def _plain(line: IterationLine) -> tuple[object, ...]:
    """Return None for NaN."""
    values = dataclasses.astuple(line)
    return tuple(None if isinstance(v, float) and not math.isfinite(v) else v for v in values)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return a ledger with one running job."""
    jobs = Made(tmp_path, "a")
    jobs.runs()
    return jobs


# ---- while it runs, and at its end ---------------------------------------------------------------------------


def test_running_log_is_read_so_far_and_judged_at_its_end(made: Made) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    assert collect(made.ledger) == ()
    assert (made.row().iteration, made.row().verdict, made.numbers()) == (5, None, [1, 2, 3, 4, 5])
    assert metrics_of(made.ledger, [1]) == {}, "metrics are of a whole job"
    file.write_text(log(8))
    made.ends()
    collect(made.ledger)
    assert (made.row().iteration, made.row().verdict, made.row().verdict_reason) == (8, "verified", None)
    timing = metrics_of(made.ledger, [1])[1]["iteration_ms"]
    assert (timing.value, timing.count, len(made.numbers())) == (105.5, 6, 8)


def test_running_jobs_are_not_read_if_only_ended_ones_are_collected(made: Made) -> None:
    (made.folder() / "log.txt").write_text(log(5))
    collect(made.ledger, running=False)
    assert made.numbers() == []
    made.ends()
    collect(made.ledger, running=False)
    assert made.row().verdict == "failed" and len(made.numbers()) == 5


def test_new_lines_are_added_and_stored_lines_are_not_rewritten(made: Made) -> None:
    """A rewritten line would lose a mark that this test sets."""
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    collect(made.ledger)
    with made.ledger.writing() as session:
        session.execute(sa.update(Iteration).values(loss_scale=77.0))
    file.write_text(log(8))
    collect(made.ledger)
    marks = [line.loss_scale for line in iterations_of(made.ledger, 1)]
    assert marks == [77.0] * 5 + [1.0] * 3


def test_nothing_is_written_without_new_content(made: Made) -> None:
    """The log ends within a line, which the next refresh reads."""
    (made.folder() / "log.txt").write_text(log(5) + LINE.format(n=6, ms=106.0, loss="6.9")[:50])
    (made.folder() / "batch.txt").write_text("")
    collect(made.ledger)
    file = made.home / "results.db"
    before, everything = file.read_bytes(), made.everything()
    other = sqlite3.connect(file)
    version = other.execute("pragma data_version").fetchone()
    for _ in range(3):
        assert collect(made.ledger) == ()
    assert other.execute("pragma data_version").fetchone() == version
    other.close()
    assert file.read_bytes() == before and made.everything() == everything


def test_judged_attempt_is_never_read_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.folder() / "log.txt").write_text(log(8))
    made.ends()
    collect(made.ledger)
    before = made.everything()
    (made.folder() / "log.txt").write_text(log(3))
    monkeypatch.setattr(megatron_reader, "read_new", lambda *_words, **_named: pytest.fail("read again"))
    collect(made.ledger)
    assert made.everything() == before


# ---- a replaced log ------------------------------------------------------------------------------------------


def replaced(file: Path, text: str) -> None:
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def truncated(file: Path, text: str) -> None:
    file.write_text(text)


def rewritten(file: Path, text: str) -> None:
    """Rewrite the log in place with more content than was read."""
    with file.open("r+") as open_file:
        open_file.write(text + " " * 9000 + "\n")


CHANGES: dict[str, Callable[[Path], None]] = {
    "replaced by a longer one": lambda file: replaced(file, log(6, ms=500)),
    "replaced by a shorter one": lambda file: replaced(file, log(2, ms=500)),
    "truncated and begun again": lambda file: truncated(file, log(2, ms=500)),
    "truncated to nothing": lambda file: truncated(file, ""),
    "rewritten in place": lambda file: rewritten(file, log(7, ms=500)),
    "truncated and grown beyond what was read": lambda file: truncated(file, log(7, loss="1.0E+00")),
}


@pytest.mark.fault(
    section="Ledger",
    fault="Between two refreshes a log is replaced, truncated, or rewritten in place, with more or with less",
    promise="It is read again from its beginning. The stored iterations are replaced.",
)
@pytest.mark.parametrize("change", CHANGES)
def test_replaced_log_is_read_from_its_beginning(made: Made, change: str) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    collect(made.ledger)
    old = made.everything()["iterations"]
    CHANGES[change](file)
    collect(made.ledger)
    made.check_as_measured()
    assert made.everything()["iterations"] != old
    made.ends()
    collect(made.ledger)
    made.check_as_measured()


@pytest.mark.fault(
    section="Ledger",
    fault="A log is replaced by one with the same beginning",
    promise="It is read again from its beginning.",
)
def test_replaced_log_with_the_same_bytes_is_read_from_its_beginning(made: Made) -> None:
    """The bytes that identify the file are equal."""
    file, noise = made.folder() / "log.txt", "noise\n" * FINGERPRINT_BYTES
    file.write_text(noise + log(3) + noise)
    collect(made.ledger)
    replaced(file, noise + log(3, loss="1.5E+00") + noise + log(4, begin=4))
    collect(made.ledger)
    assert [line.loss for line in iterations_of(made.ledger, 1)] == [1.5, 1.5, 1.5, 6.9]


@pytest.mark.fault(
    section="Ledger",
    fault="Slurm requeues a job and overwrites its log",
    promise="The log counts from its new beginning.",
)
def test_log_overwritten_by_a_requeue_counts_from_its_new_beginning(made: Made) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(7))
    collect(made.ledger)
    record_observations(made.ledger, {1: Observation("PENDING", "waiting")}, [])
    file.write_text(log(3, ms=900))
    collect(made.ledger)
    assert made.numbers() == [1, 2, 3, 4, 5, 6, 7], "it does not run now"
    made.runs()
    collect(made.ledger)
    assert (made.row().iteration, made.numbers()) == (3, [1, 2, 3])
    file.write_text(log(8, ms=900))
    made.ends()
    collect(made.ledger)
    assert made.row().verdict == "verified" and metrics_of(made.ledger, [1])[1]["iteration_ms"].value == 905.5
    made.check_as_measured()


def test_restart_within_the_log_voids_earlier_lines(made: Made) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    collect(made.ledger)
    with file.open("a") as more:
        more.write(log(2, ms=300))
    collect(made.ledger)
    assert (made.row().iteration, made.numbers()) == (2, [1, 2])
    made.check_as_measured()


@pytest.mark.fault(
    section="Ledger",
    fault="A log is deleted",
    promise="What was read of it still counts.",
)
def test_content_of_a_deleted_log_still_counts(made: Made) -> None:
    """A missing file is not an empty file."""
    file = made.folder() / "log.txt"
    file.write_text(log(8))
    collect(made.ledger)
    file.unlink()
    collect(made.ledger)
    assert made.numbers() == [1, 2, 3, 4, 5, 6, 7, 8]
    made.ends()
    collect(made.ledger)
    assert made.row().verdict == "verified" and "iteration_ms" in metrics_of(made.ledger, [1])[1]


def test_execution_mode_is_recorded_while_running_and_host_wait_at_the_end(made: Made) -> None:
    file = made.folder() / "log.txt"
    file.write_text(waiting(log(5)))
    collect(made.ledger)
    assert (made.row().execution, made.row().verdict) == ("graph", None)
    file.write_text(waiting(log(8)))
    made.ends()
    collect(made.ledger)
    assert (made.row().execution, made.row().verdict) == ("graph", "verified")
    assert {line.host_wait_ms for line in iterations_of(made.ledger, 1)} == {30.9}
    stored = metrics_of(made.ledger, [1])[1]
    assert stored["host_wait_ms"].value == 30.9
    assert stored["host_wait_percent"].value == pytest.approx(100 * 30.9 / stored["iteration_ms"].value)
    made.check_as_measured()


def test_execution_mode_is_unknown_if_not_printed(made: Made) -> None:
    (made.folder() / "log.txt").write_text(log(8))
    made.ends()
    collect(made.ledger)
    assert made.row().execution is None
    assert not {"host_wait_ms", "host_wait_percent"} & metrics_of(made.ledger, [1])[1].keys()


def test_facts_of_another_version_are_discarded(made: Made) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    collect(made.ledger)
    with made.ledger.writing() as session:
        session.execute(sa.update(LogOffset).values(facts={"version": 0}))
    file.write_text(log(6))
    collect(made.ledger)
    assert made.numbers() == [1, 2, 3, 4, 5, 6]
    made.check_as_measured()


# ---- any way of growing --------------------------------------------------------------------------------------

PIECES = (
    "",
    "noise\n",
    WORLD,
    EXECUTION,
    waiting(log(8)),
    log(8),
    log(3),
    log(6, begin=4),
    log(8, begin=7),
    log(5, begin=2, ms=250.0),
    LINE.format(n=5, ms=100.0, loss="nan"),
    LINE.format(n=6, ms=1e12, loss="6.9E+00"),
    DONE,
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 9 | reserved: 1.0 | max reserved: 9\n",
    "half a line",
)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=6),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    beside=st.sampled_from(["", "a script says\n", WORLD]),
    ended=st.sampled_from([("COMPLETED", 0), ("FAILED", 1), ("TIMEOUT", 0)]),
)
def test_incremental_reading_stores_the_same_as_one_reading(
    made: Made, pieces: list[str], cuts: list[float], beside: str, ended: tuple[str, int]
) -> None:
    whole = "".join(pieces).encode()
    made.begin_again()
    for cut in sorted(cuts):
        (made.folder() / "log.txt").write_bytes(whole[: int(cut * len(whole))])
        if cut > 0.5:
            (made.folder() / "batch.txt").write_text(beside)
        collect(made.ledger)
        made.check_as_measured()
    (made.folder() / "log.txt").write_bytes(whole)
    (made.folder() / "batch.txt").write_text(beside)
    made.ends(state=ended[0], code=ended[1])
    collect(made.ledger)
    made.check_as_measured()
    grown = made.everything()
    made.begin_again()
    (made.folder() / "log.txt").write_bytes(whole)
    (made.folder() / "batch.txt").write_text(beside)
    made.ends(state=ended[0], code=ended[1])
    collect(made.ledger)
    assert made.everything() == grown


# ---- what is read --------------------------------------------------------------------------------------------


class Counted(io.BufferedReader):
    """File that counts the bytes read from it."""

    read_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        Counted.read_bytes += len(content)
        return content


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Counted]]:
    """Count every byte that is read of a job's files."""

    def opened(folder: Path, name: str) -> BinaryIO | None:
        file = open_job_file(folder, name)
        return Counted(file.detach()) if isinstance(file, io.BufferedReader) else None

    for module in (megatron_reader, logs):
        monkeypatch.setattr(module, "open_job_file", opened)
    Counted.read_bytes = 0
    yield Counted


def test_refresh_reads_only_new_bytes_and_fingerprints(made: Made, counted: type[Counted]) -> None:
    """The fingerprints of the log are read, too."""
    file = made.folder() / "log.txt"
    file.write_text(log(5) + "x" * 99 + "\n" + "noise\n" * 200_000)
    collect(made.ledger)
    size = file.stat().st_size
    assert counted.read_bytes >= size
    counted.read_bytes = 0
    collect(made.ledger)
    assert counted.read_bytes == 2 * FINGERPRINT_BYTES
    counted.read_bytes = 0
    with file.open("a") as more:
        more.write(log(7, begin=6))
    collect(made.ledger)
    added = file.stat().st_size - size
    assert added <= counted.read_bytes <= added + 5 * FINGERPRINT_BYTES
    assert made.numbers() == [1, 2, 3, 4, 5, 6, 7]


SAMPLES = "".join(
    f"2026/01/01 00:00:0{second}.123, 0, 61000, 143771, 99, {power}, 1755, 61, 0x0000000000000004\n"
    for second, power in ((1, 300), (4, 700), (6, 710))
)


def test_gpu_samples_need_no_second_reading_of_the_log(made: Made, counted: type[Counted]) -> None:
    """The times of the first and last measured line are facts, also if the log was read in parts."""
    times = {n: log(n, begin=n).replace("2026-01-01 00:00:00", f"2026-01-01 00:00:0{n}") for n in range(1, 9)}
    file = made.folder() / "log.txt"
    (made.folder() / "gpus.n1.csv").write_text(SAMPLES)
    for upto in (2, 5):
        file.write_text("".join(times[n].replace(WORLD, "" if n > 1 else WORLD) for n in range(1, upto + 1)))
        collect(made.ledger)
    file.write_text("".join(times[n].replace(WORLD, "" if n > 1 else WORLD) for n in range(1, 9)) + "noise\n" * 100_000)
    made.ends()
    counted.read_bytes = 0
    collect(made.ledger)
    assert made.row().verdict == "verified"
    assert counted.read_bytes <= file.stat().st_size + 5 * FINGERPRINT_BYTES
    power = metrics_of(made.ledger, [1])[1]["gpu_power_w"]
    assert (power.value, power.count) == (705, 2), "of the samples after the warm-up"
    assert made.row().no_energy == f"samples are of 1 GPU, and the job has {made.row().gpus}"
    made.check_as_measured()


@pytest.mark.fault(
    section="Faults of jobs",
    fault="A finished job has a log of any size, with GPU samples",
    promise="It is collected in constant memory.",
    count=0,
)
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_log_of_any_size_is_collected_in_constant_memory(made: Made, state: str) -> None:
    (made.folder() / "gpus.n1.csv").write_text(SAMPLES)
    peaks = []
    for times in (200_000, 2_000_000):
        made.begin_again()
        (made.folder() / "log.txt").write_text(log(4) + "another line\n" * times + log(8, begin=5))
        made.ends(state=state, code=int(state == "FAILED"))
        tracemalloc.start()
        try:
            collect(made.ledger)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        assert made.row().verdict is not None
    assert peaks[1] < peaks[0] + 2 * logs.LONGEST_LINE_BYTES


def test_iterations_come_from_the_first_file_that_has_them(made: Made) -> None:
    """Each rank may have a file, and an earlier rank may write its first line later."""
    for name in ("rank1.txt", "rank3.txt"):
        (made.folder() / name).write_text("")
    (made.folder() / "rank3.txt").write_text(log(4, ms=300))
    collect(made.ledger)
    assert made.row().iteration == 4
    (made.folder() / "rank1.txt").write_text(log(2, ms=100))
    collect(made.ledger)
    assert made.numbers() == [1, 2]
    (made.folder() / "rank3.txt").write_text(log(6, ms=300))
    collect(made.ledger)
    assert (made.numbers(), iterations_of(made.ledger, 1)[0].elapsed_ms) == ([1, 2], 101.0)
    made.check_as_measured()


def test_compressed_log_is_read_once(made: Made) -> None:
    (made.folder() / "log.txt.gz").write_bytes(gzip.compress((log(5) + "noise\n" * 10_000).encode()))
    collect(made.ledger)
    before = (made.home / "results.db").read_bytes()
    collect(made.ledger)
    assert made.numbers() == [1, 2, 3, 4, 5] and (made.home / "results.db").read_bytes() == before


@pytest.mark.fault(
    section="Ledger",
    fault="One of many logs cannot be read",
    promise="Reported. The other jobs get their verdicts.",
)
def test_unreadable_log_is_reported_and_other_jobs_are_judged(tmp_path: Path) -> None:
    site = Made(tmp_path / "site", "a", "b", "c")
    site.runs(1, 2, 3)
    (site.folder("a") / "log.txt").mkdir()
    (site.folder("b") / "log.txt").write_text("x" * 1_100_000 + "\n" + log(8))
    (site.folder("c") / "log.txt").write_text(log(8))
    site.ends(1, 2, 3)
    warnings = collect(site.ledger)
    assert [text.partition("-id/")[2] for text in warnings] == [
        "log.txt: is a folder and not a file, so it is not read",
        "log.txt: 1 line of 1,100,001 bytes ignored, as no program writes such a line",
    ]
    assert [site.row(name).verdict for name in "abc"] == [None, "verified", "verified"]


# ---- at the end ----------------------------------------------------------------------------------------------


def test_deciding_line_is_stored_without_its_secret(made: Made) -> None:
    secret = "hf_" + "a1" * 20
    (made.folder() / "log.txt").write_text(log(2) + f"[rank3]: RuntimeError: no access with {secret}\n")
    made.ends(state="FAILED", code=1)
    collect(made.ledger)
    row = made.row()
    assert row.verdict == "failed" and row.deciding_line is not None and "no access with" in row.deciding_line
    assert row.deciding_rank == 3
    assert secret.encode() not in (made.home / "results.db").read_bytes()


def test_log_of_a_verified_attempt_is_not_searched_for_errors(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    (made.folder() / "log.txt").write_text(log(8))
    made.ends()
    monkeypatch.setattr(reader, "CauseFinder", lambda _lines: pytest.fail("searched"))
    collect(made.ledger)
    assert made.row().verdict == "verified"


NOON = datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(("device", "hours"), [("gpu", 4 * 1.5), ("cpu", None)])
def test_ended_attempt_has_its_gpu_hours_as_a_metric(made: Made, device: str, hours: float | None) -> None:
    with made.ledger.writing() as session:
        session.execute(sa.update(Job).values(configuration=JOB_SPEC | {"device": device}))
    (made.folder() / "log.txt").write_text(log(8))
    made.ends(started_at=NOON, ended_at=NOON + timedelta(hours=1.5))
    collect(made.ledger)
    metric = metrics_of(made.ledger, [1])[1].get("gpu_hours")
    assert (metric.value if metric else None, metric.unit if metric else None) == (hours, "h" if hours else None)


def test_gpu_samples_replace_metrics_of_the_log(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    error_line = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1 | max allocated: 9 | reserved: 1 | max reserved: 9 |"
    )
    (made.folder() / "log.txt").write_text(log(2) + f"{error_line} total device memory used: 900\n" + log(8, begin=3))
    sampled = [MeasuredMetric("gpu_memory_used_gb", 71.5, "GB"), MeasuredMetric("gpu_clock_mhz", 1410.0, "MHz")]
    numbers = SampledNumbers(sampled, MeanPower())
    monkeypatch.setattr(collecting, "read_samples", lambda *_: numbers)
    made.ends()
    collect(made.ledger)
    metrics = metrics_of(made.ledger, [1])[1]
    assert (metrics["gpu_memory_used_gb"].value, metrics["gpu_clock_mhz"].value) == (71.5, 1410.0)
    assert "iteration_ms" in metrics


def test_line_with_nan_is_stored_and_does_not_count(made: Made) -> None:
    lines = [LINE.format(n=n, ms=100.0, loss="nan" if n == 5 else "6.9E+00") for n in range(1, 9)]
    file = made.folder() / "log.txt"
    for upto in (6, 8):
        file.write_text(WORLD + "".join(lines[:upto]) + DONE)
        collect(made.ledger)
    stored = {line.iteration: line for line in iterations_of(made.ledger, 1)}
    assert [(line.is_finite, line.used) for line in (stored[4], stored[5], stored[6])] == [
        (True, True),
        (False, False),
        (True, True),
    ]
    made.ends()
    collect(made.ledger)
    assert made.row().verdict == "failed" and "iteration 5" in (made.row().verdict_reason or "")
    made.check_as_measured()


# ---- whole or not at all, many, and several at once ----------------------------------------------------------


@pytest.mark.fault(
    section="Ledger",
    fault="`repro` ends between reading a log and storing the result",
    promise="Nothing has changed. The next command continues.",
)
def test_crash_within_the_transaction_changes_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    file = made.folder() / "log.txt"
    file.write_text(log(5))
    collect(made.ledger)
    before = made.everything()
    file.write_text(log(8))
    made.ends()

    def crashes(*_words: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.ledger.measurements._add_offsets", crashes)
        with pytest.raises(MemoryError):
            collect(made.ledger)
    assert made.everything() == before
    collect(made.ledger)
    assert made.row().verdict == "verified"
    made.check_as_measured()


@pytest.mark.fault(
    section="Ledger",
    fault="Another terminal reads the same log at the same time, to its end or from its beginning",
    promise="The iterations are stored once. No newer value is overwritten.",
)
@pytest.mark.parametrize("meanwhile", ["read", "grown and ended", "begun again"])
def test_content_read_by_another_terminal_is_not_overwritten(
    made: Made, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """The other terminal finishes between our reading and our writing."""
    file = made.folder() / "log.txt"
    file.write_text(log(4))
    collect(made.ledger)
    file.write_text(log(6))
    turns: list[int] = []

    def follows(*arguments: Any, **named: Any) -> NewContent:
        content = read_new(*arguments, **named)
        if not turns:
            turns.append(1)
            if meanwhile == "grown and ended":
                file.write_text(log(8))
                made.ends()
            if meanwhile == "begun again":
                file.write_text(log(2, ms=900))
            collect(new_ledger(made.home))
        return content

    monkeypatch.setattr(megatron_reader, "read_new", follows)
    collect(made.ledger)
    last = {"read": 6, "grown and ended": 8, "begun again": 2}[meanwhile]
    assert made.numbers() == list(range(1, last + 1))
    assert [kind for kind, _ in made.everything()["events"]] == ["verdict"] * (last == 8)
    made.check_as_measured()


def test_many_jobs_are_collected_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written in batches of a few thousand lines, so memory does not grow."""
    names = [f"job{number}" for number in range(7)]
    site = Made(tmp_path / "site", *names)
    for name in names:
        (site.folder(name) / "log.txt").write_text(log(8))
    site.ends(*range(1, 8))
    rows: list[int] = []
    lines: list[int] = []
    monkeypatch.setattr(collecting, "ATTEMPTS_AT_ONCE", 3)
    monkeypatch.setattr(collecting, "LINES_AT_ONCE", 10)

    def rows_of_attempts(ledger: Ledger, ids: list[int]) -> list[JobRow]:
        rows.append(len(ids))
        return attempts.rows_of_attempts(ledger, ids)

    def record_measurements(ledger: Ledger, batch: list[Measurement]) -> list[int]:
        lines.append(sum(len(measurement.iterations) for measurement in batch))
        return measurements.record_measurements(ledger, batch)

    monkeypatch.setattr(collecting, "rows_of_attempts", rows_of_attempts)
    monkeypatch.setattr(collecting, "record_measurements", record_measurements)
    collect(site.ledger)
    assert (rows, max(lines), sum(lines)) == ([3, 3, 1], 16, 7 * 8)
    assert {row.verdict for row in job_rows(site.ledger)} == {"verified"}
