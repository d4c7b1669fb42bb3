"""Tests of output: tables and JSON, and no text of a file, log or scheduler controls a terminal (a real one: a pty)."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.cli.output import VisibleLog, data, table
from orchestrator.text import printable
from tests.forked_repro import REPRO, ForkedRepro, run_forked
from tests.stand_in_site import Site
from tests.unit.catalog.entries import BASE, write_experiment

pytestmark = pytest.mark.slow

# It would set the window's title, clear the screen, turn the writing round and hide what follows.
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[31m\u009b1m\u202e\u200b\x08\x7f\rX"
# A terminal's own line ends, and nothing else that is not written.
HARMLESS = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]*")


def on_terminal(words: Sequence[str], folder: Path, environment: Mapping[str, str], program: str = REPRO) -> bytes:
    """Return the output of a program on a terminal that is both its stdout and its stderr."""
    ours, its = pty.openpty()
    process = ForkedRepro(words, folder, environment, its, its, program)
    os.close(its)
    written = b"".join(_read(ours))
    process.wait()
    os.close(ours)
    return written


def repro_on_terminal(site: Site, *words: str) -> bytes:
    """Return the output of `repro` without colours on such a terminal."""
    return on_terminal(words, site.folder, {**site.environment, "NO_COLOR": "1"})


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            block = os.read(terminal, 4096)
        except OSError:  # so Linux says that nobody has it open any more
            return
        if not block:
            return
        yield block


def require_harmless(written: bytes) -> str:
    text = written.decode().replace("\r\n", "\n")
    assert HARMLESS.fullmatch(text) and "\r" not in text, repr(text)
    return text


@pytest.mark.fault(
    section="Safety",
    fault="Control sequences in printed text, on a real terminal",
    promise="Printed as `?`.",
)
@pytest.mark.parametrize(
    "call", ["message(evil)", "data(evil)", "next_command(evil, evil)", "table([{evil: evil}], [evil])"]
)
def test_whatever_is_printed_reaches_a_terminal_without_its_control_characters(tmp_path: Path, call: str) -> None:
    program = f"from orchestrator.cli.output import *; evil = {EVIL!r}; {call}"
    text = require_harmless(on_terminal([], tmp_path, os.environ, program))
    assert "owned" in text.lower() and "X" in text and "?" in text


def test_data_is_piped_unchanged_and_messages_are_always_escaped(tmp_path: Path) -> None:
    program = f"from orchestrator.cli.output import *; data({EVIL!r}); message({EVIL!r})"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout.decode() == EVIL + "\n"
    require_harmless(done.stderr)


def quoted(text: str) -> str:
    return json.dumps(text)  # which YAML reads, too


EVIL_EXPERIMENT = (
    BASE.replace("title: t", f"title: {quoted('title' + EVIL)}")
    .replace("label: x", f"label: {quoted('label' + EVIL)}")
    .replace(
        "fixed: {mbs: 1}", f"fixed: {{mbs: 1}}\nnotes: [{quoted('note' + EVIL)}]\narguments: [{quoted('-a' + EVIL)}]"
    )
)


@pytest.mark.fault(
    section="Safety",
    fault="Control sequences in an experiment",
    promise="Printed as `?`.",
)
@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("list", "title?"),
        ("show figure-1", "note?"),
        ("show figure-1 --json", "note"),
        ("plan figure-1 --cluster here", None),
        (f"show figure-1{EVIL}", None),
    ],
)
def test_text_of_an_experiment_does_not_control_the_terminal(tmp_path: Path, words: str, seen: str | None) -> None:
    site = Site.create(tmp_path / "home")
    write_experiment(site.folder, EVIL_EXPERIMENT)
    text = require_harmless(repro_on_terminal(site, *words.split(" ")))
    assert "Traceback" not in text and (seen is None or seen in text)


@pytest.mark.fault(
    section="Safety",
    fault="Control sequences in an invalid experiment",
    promise="Printed as `?`.",
)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gpus: 8", f"gpus: {quoted('8' + EVIL)}"),
        ("gpus: 8", f"gpus: 8{EVIL}"),
        ("gbs: [8, 16]", f"gbs: [{quoted('8' + EVIL)}]"),
        ("  tp: gpus / pp", f"  tp: {quoted('gpus /' + EVIL)}"),
        ("program: pretrain", f"program: {quoted('pretrain' + EVIL)}"),
        ("title: t", f"{quoted('title' + EVIL)}: t"),
        ("of: [pp, tp]", f"of: [{quoted('pp' + EVIL)}]"),
    ],
)
def test_errors_of_an_invalid_experiment_do_not_control_the_terminal(tmp_path: Path, old: str, new: str) -> None:
    site = Site.create(tmp_path / "home")
    assert old in BASE
    write_experiment(site.folder, BASE.replace(old, new))
    text = require_harmless(repro_on_terminal(site, "plan", "figure-1", "--cluster", "here"))
    assert "repro: " in text and "Traceback" not in text


@pytest.mark.fault(
    section="Safety",
    fault="Control sequences in a log line that becomes a reason",
    promise="Printed as `?`. A pipe gets the original bytes.",
)
def test_a_log_line_that_is_a_reason_does_not_control_the_terminal(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "home")
    octal = "".join(f"\\{byte:03o}" for byte in EVIL.encode())
    (site.folder / "train.sh").write_text(f"#!/bin/bash\nprintf 'RuntimeError: it broke {octal}\\n' >&2\nexit 1\n")
    assert site.submit("--where", "pp=1,gbs=4", "--wait").returncode == 1
    for words in ("status --wide", "status --json", "collect figure-13", "collect figure-13 --export json"):
        text = require_harmless(repro_on_terminal(site, *words.split()))
        assert "it broke" in " ".join(text.split()), words
    job = json.loads(site.repro("status", "--json").stdout)["jobs"][0]["job"]
    text = require_harmless(repro_on_terminal(site, "logs", job))
    assert "it broke ?]0;owned??[2J" in text
    piped = site.repro("logs", job)
    assert piped.returncode == 0 and EVIL in piped.stdout


def test_a_log_that_is_printed_block_by_block_does_not_steer_the_terminal(tmp_path: Path) -> None:
    program = (
        "import sys; from orchestrator.cli.output import VisibleLog, table; log = VisibleLog()\n"
        f"for byte in {EVIL.encode()!r}: sys.stdout.buffer.write(log.feed(bytes([byte])))"
    )
    text = require_harmless(on_terminal([], tmp_path, os.environ, program))
    assert text == "?]0;owned??[2J?[31m?1m????\nX"


# What only looks unlike ASCII stays as it is: units, names, a figure space, a sign of several code points.
WRITTEN = "µs 3×2 Ålesund 中文 \u00a0\u2007 é e\u0301 ✓ 😀\n\ttab"


def shown_log(block: bytes) -> bytes:
    return VisibleLog().feed(block, last=True)


def test_a_full_disk_of_stdout_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match=r"No space left on device: 'stdout'"):
            data("text")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is left in the buffer


def test_printable_text_is_unchanged() -> None:
    assert printable(WRITTEN) == WRITTEN
    assert shown_log(WRITTEN.encode()) == WRITTEN.encode()


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (b"10%\r20%\r\n30%\r", b"10%\n20%\n30%\n"),
        (b"\r\r\n\n", b"\n\n\n"),
        (b"\x1b[0m\x00\x0b\x9b\xc2\x9b", b"?[0m????"),
        (b"\xff\xfe ok \xe4\xb8", b"?? ok ?"),
        ("\ud800".encode("utf-8", "surrogatepass"), b"???"),
        ("a\u2028b\u2029c\ufeff\u00ad\U000e0041".encode(), b"a?b?c???"),
    ],
)
def test_unprintable_bytes_are_question_marks_and_all_line_ends_are_the_same(block: bytes, shown: bytes) -> None:
    assert shown_log(block) == shown


@given(text=st.text())
@example(text=EVIL)
def test_printable_removes_control_characters_and_keeps_visible_ones(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text) and HARMLESS.fullmatch(shown) and "\r" not in shown
    assert printable(shown) == shown
    assert all(new in (old, "?") for new, old in zip(shown, text, strict=True))


BLOCKS = st.lists(st.binary(max_size=6) | st.sampled_from([b"\r", b"\n", "é".encode(), "😀".encode()[:2], b"\x1b["]))


@given(blocks=BLOCKS)
@example(blocks=[b"\r", b"\n", b"\n"])
@example(blocks=[b"\r", b"", b"\n"])
@example(blocks=["😀".encode()[:2], "😀".encode()[2:]])
def test_a_log_looks_the_same_however_it_is_cut_into_blocks(blocks: list[bytes]) -> None:
    log, whole = VisibleLog(), b"".join(blocks)
    shown = b"".join(log.feed(block) for block in blocks) + log.feed(b"", last=True)
    assert shown == shown_log(whole)
    text = codecs.decode(shown, "utf-8")
    assert HARMLESS.fullmatch(text) and "\r" not in text


def test_a_table_is_aligned_never_cropped_and_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"name": "a" * 300, "rate": 1.23456}, {"name": "\x1b[2J\nb", "rate": None}]
    table(rows, ["name", "rate"])
    header, long, evil = capsys.readouterr().out.splitlines()
    assert (header.split(), len(long)) == (["NAME", "RATE"], 307)
    assert long.endswith("1.235") and evil.startswith("?[2J?b ") and evil.endswith("    -")


WIDE_TABLE = """
import os, sys, pty
from orchestrator.cli.output import table
rows = [{"job": "0" * 12, "case": "pp=1,tp=4,gbs=16", "state": "RUNNING", "why": "w" * 90, "rate": 1.5, "id": "7" * 30}]
table(rows, list(rows[0]), important=("case", "state", "why"), wide="wide" in sys.argv)
"""


@pytest.mark.parametrize("columns", [80, 120])
def test_rows_fit_the_terminal_with_the_important_columns_and_state_colours(tmp_path: Path, columns: int) -> None:
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": ""}
    written = on_terminal([], tmp_path, environment, WIDE_TABLE).decode()
    assert "\x1b[36mRUNNING\x1b[0m" in written
    plain = require_harmless(on_terminal([], tmp_path, {**environment, "NO_COLOR": "1"}, WIDE_TABLE))
    header, row, hidden = plain.splitlines()
    assert max(len(header), len(row)) <= columns and "RUNNING" in row and "www" in row
    assert ("…" in row) == (columns == 80) and hidden.startswith("not shown: ") and "id" in hidden
    wide = require_harmless(on_terminal(["wide"], tmp_path, {**environment, "NO_COLOR": "1"}, WIDE_TABLE))
    piped = run_forked([], tmp_path, environment, WIDE_TABLE)
    assert wide == piped.stdout and "w" * 90 in wide
