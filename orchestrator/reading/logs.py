"""Log files of a job: read in blocks of whole lines, or copied while they grow; secrets of the job's script."""

from __future__ import annotations

import contextlib
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

from orchestrator.errors import Problem, ReproError
from orchestrator.files import Unreadable, open_job_file, read_job_file, tail_bytes
from orchestrator.ledger.rows import JobRow
from orchestrator.masking import hidden_values, secret_values

LONGEST_LINE_BYTES = 1024 * 1024
"""Size of one read. A longer line is not a line of a program's log, and is ignored."""

# Our scripts write one log. A script of the user's own may write one file per task, named by the task's number.
_RANK_LOG = re.compile(r"(?:log|out|output|rank|task)[._-]?([0-9]{1,6})\.(?:txt|log|out)")
_NEWLINE = ord("\n")
_SUFFIXES = ("", ".gz", ".zst", ".xz", ".bz2")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file of a job, with its identity and its size when it was listed."""

    folder: Path
    name: str
    device: int
    inode: int
    size: int

    def blocks(self, offset: int = 0) -> LogBlocks:
        """Return the content from this byte on. For an archive, offsets are those of the decompressed content."""
        return LogBlocks(self, offset)


class LogBlocks(Iterator[bytes]):
    """Blocks of whole lines, each of some MiB at most. Only the last block may end within a line.

    Together the blocks have as many bytes as the decompressed file: a line that is ignored becomes blank lines of the
    same size. Raises Unreadable if the disk fails.
    """

    def __init__(self, file: LogFile, offset: int) -> None:
        self._path, self._file = file.folder / file.name, file
        self._warnings: list[str] = []
        self._long_lines = 0
        self._first_long_bytes = 0
        self._blocks = self._read(offset)

    def __next__(self) -> bytes:
        return next(self._blocks)

    @property
    def warnings(self) -> list[str]:
        """Content that could not be read so far, one line each."""
        if not self._long_lines:
            return self._warnings
        lines = "1 line" if self._long_lines == 1 else f"{self._long_lines} lines, the first"
        ignored = f"{lines} of {self._first_long_bytes:,} bytes ignored, as no program writes such a line"
        return [*self._warnings, f"{self._path}: {ignored}"]

    def _read(self, offset: int) -> Iterator[bytes]:
        opened = open_job_file(self._file.folder, self._file.name)
        if opened is None:
            return
        with opened:
            status = os.fstat(opened.fileno())
            if (status.st_dev, status.st_ino) != (self._file.device, self._file.inode):
                self._warn("replaced by another file before it was read")
                return
            try:
                yield from self._whole_lines(self._pieces(opened, offset))
            except OSError as error:
                problem = Problem(f"cannot be read ({error.strerror or error})", location=f"{self._path}:")
                raise Unreadable(problem) from None

    def _pieces(self, opened: BinaryIO, offset: int) -> Iterator[bytes]:
        """Yield the bytes from the offset on, in pieces of at most `LONGEST_LINE_BYTES`."""
        if is_compressed(opened):
            yield from _repacked(decompressed(opened, self._warn), offset)
            return
        opened.seek(offset)
        yield from file_blocks(opened)

    def _whole_lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        rest = b""  # beginning of a line that continues in the next piece
        in_long_line = False
        for piece in pieces:
            first_end, start = piece.find(b"\n") + 1 or len(piece), 0
            if in_long_line or len(rest) + first_end > LONGEST_LINE_BYTES:
                yield from _blank(len(rest) + first_end)
                self._count_long_line(len(rest) + first_end, is_new=not in_long_line)
                in_long_line = piece[first_end - 1] != _NEWLINE
                rest, start = b"", first_end
            cut = piece.rfind(b"\n", start) + 1
            if cut:
                yield b"".join((rest, memoryview(piece)[start:cut]))
                rest, start = b"", cut
            rest += piece[start:]
        if rest:
            yield rest

    def _warn(self, problem: str) -> None:
        self._warnings.append(f"{self._path}: {problem}")

    def _count_long_line(self, length: int, *, is_new: bool) -> None:
        self._long_lines += is_new
        if self._long_lines == 1:
            self._first_long_bytes += length


def _repacked(parts: Iterator[bytes], offset: int) -> Iterator[bytes]:
    """Yield the bytes from the offset on, in pieces of `LONGEST_LINE_BYTES`."""
    kept, size = [], 0
    for part in parts:
        skipped = min(offset, len(part))
        offset -= skipped
        kept.append(part[skipped:])
        size += len(kept[-1])
        if size >= LONGEST_LINE_BYTES:
            whole = b"".join(kept)
            for at in range(0, size - size % LONGEST_LINE_BYTES, LONGEST_LINE_BYTES):
                yield whole[at : at + LONGEST_LINE_BYTES]
            kept = [whole[size - size % LONGEST_LINE_BYTES :]]
            size = len(kept[0])
    if size:
        yield b"".join(kept)


def _blank(length: int) -> Iterator[bytes]:
    """Yield this number of newlines."""
    for _ in range(length // LONGEST_LINE_BYTES):
        yield b"\n" * LONGEST_LINE_BYTES
    if length % LONGEST_LINE_BYTES:
        yield b"\n" * (length % LONGEST_LINE_BYTES)


def log_files(folder: Path) -> tuple[LogFile, ...]:
    """Return the log files of a job in reading order: the log, single ranks' logs, the script's own output.

    Each may be compressed by gzip, zstd, xz or bzip2. Raise Unreadable if a file may not be read, which proves nothing
    about the job, and ReproError if it is not a regular file.
    """
    log, batch = file_of_job(folder, "log.txt"), file_of_job(folder, "batch.txt")
    ranks = [file_of_job(folder, name) for name in _rank_log_names(folder)]
    return tuple(file for file in (log, *ranks, batch) if file is not None)


def text_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of blocks of whole lines. A line that was too long to be read is one empty line."""
    was_blank = False
    for block in blocks:
        is_blank = (was_blank or len(block) > 1) and block.count(b"\n") == len(block)
        if not is_blank:
            yield from io.BytesIO(block)
        elif not was_blank:
            yield b"\n"
        was_blank = is_blank


def log_blocks(folder: Path) -> Iterator[bytes]:
    """Yield all log files of a job in blocks of whole lines. Raise the errors of `log_files`."""
    for file in log_files(folder):
        yield from file.blocks()


def file_of_job(folder: Path, name: str) -> LogFile | None:
    """Return the file, or the same file compressed; None if there is none. Raise the errors of `log_files`."""
    for suffix in _SUFFIXES:
        file = open_job_file(folder, name + suffix)
        if file is not None:
            with file:
                status = os.fstat(file.fileno())
            return LogFile(folder, name + suffix, status.st_dev, status.st_ino, status.st_size)
    return None


def _rank_log_names(folder: Path) -> list[str]:
    """Return the names of ranks' logs by number, without the suffixes of archives."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:  # no such folder, or a folder that may be entered and not listed
        return []
    plain = {name.removesuffix(suffix) for name in names for suffix in _SUFFIXES}
    numbered = [(int(match[1]), name) for name in plain if (match := _RANK_LOG.fullmatch(name))]
    return [name for _, name in sorted(numbered)]


_GZIP, _ZSTANDARD, _XZ = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"
_BZIP2 = re.compile(rb"BZh[1-9](?:1A|\x17r)")
_COMPRESSED_BYTES = 256
"""Bytes of an archive that are decompressed at once: they give 8 MiB at most, except of bzip2."""
_LARGEST_WINDOW_BYTES = 128 * 1024 * 1024
"""Window of `zstd --long`, which every zstd reads."""


class _Frame(Protocol):
    """Decompressor of one frame: the common part of zlib, zstandard, lzma and bz2."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


@runtime_checkable
class _LimitedFrame(Protocol):
    """Decompressor of lzma and bz2, which limits the size of its answer: 256 bytes of bzip2 may give 300 MB."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def is_compressed(opened: BinaryIO) -> bool:
    """Return whether the content is an archive, whatever the file's name is. Leaves the file at its beginning."""
    begins = opened.read(len(_XZ))
    opened.seek(0)
    return begins.startswith((_GZIP, _ZSTANDARD, _XZ)) or bool(_BZIP2.match(begins))


def decompressed(opened: BinaryIO, warn: Callable[[str], None]) -> Iterator[bytes]:
    """Yield the content of one or several archives in a file, up to a damage or an early end. Warn about both."""
    begins = opened.read(len(_XZ))
    opened.seek(0)
    new_frame, errors = _frames(begins)
    frame: _Frame | None = None
    try:
        while data := opened.read(_COMPRESSED_BYTES):
            while data:
                if frame is None:
                    data = data.lstrip(b"\0")  # padding on tapes
                    frame = new_frame() if data else None
                if frame is not None:
                    yield from _content(frame, data)
                    data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    except errors as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk; bz2's own has no number
            raise
        warn(f"damaged archive, read only up to the damage ({error})")
    else:
        if frame is not None:
            warn("truncated archive, read only up to its end")


def _content(frame: _Frame, data: bytes) -> Iterator[bytes]:
    """Yield the content of this part of a frame in pieces of some MiB."""
    if not isinstance(frame, _LimitedFrame):
        yield frame.decompress(data)
        return
    yield frame.decompress(data, LONGEST_LINE_BYTES)
    while not (frame.eof or frame.needs_input):
        yield frame.decompress(b"", LONGEST_LINE_BYTES)


def _frames(begins: bytes) -> tuple[Callable[[], _Frame], tuple[type[Exception], ...]]:
    if begins.startswith(_GZIP):
        return lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), (zlib.error,)
    if begins.startswith(_XZ):
        import lzma  # only where an archive needs it

        return lambda: lzma.LZMADecompressor(memlimit=2 * _LARGEST_WINDOW_BYTES), (lzma.LZMAError,)
    if _BZIP2.match(begins):
        import bz2

        return bz2.BZ2Decompressor, (OSError,)
    import zstandard

    tool = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW_BYTES)
    return tool.decompressobj, (zstandard.ZstdError,)


# ---- secrets of the job's script -----------------------------------------------------------------------------

_SCRIPT = "job.sh"
_LONGEST_SCRIPT_BYTES = 1 << 22
_REPEAT = re.compile(r"\.repeat-[0-9]+$")
_FROM_SHELL = re.compile(r"\$\{([A-Za-z_]\w*):\?must be exported", re.ASCII)


def job_secrets(folder: Path) -> frozenset[str]:
    """Return the secrets that the script of this job's folder sets, or takes from the submitting shell.

    They are masked by value in everything that is recorded of its logs. Repeats of a case share the script of the first
    one. The script of a job that was submitted by hand is beside the folder. A script that this user may not read
    gives no secrets.
    """
    script = ""
    same_case = folder.with_name(_REPEAT.sub("", folder.name))
    by_hand = (folder.parent, f"{folder.name}.sh")
    for place, name in dict.fromkeys(((folder, _SCRIPT), (same_case, _SCRIPT), by_hand)):
        with contextlib.suppress(ReproError):
            script = script or tail_bytes(place, name, _LONGEST_SCRIPT_BYTES).decode("utf-8", "replace")
    values, names = _script_secrets(script)
    return values | secret_values({name: os.environ[name] for name in names if name in os.environ})


@lru_cache(maxsize=256)
def _script_secrets(script: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the secret values in a script, and the names of variables that it takes from the shell."""
    return hidden_values(script), tuple(_FROM_SHELL.findall(script))


# ---- a log while it grows -------------------------------------------------------------------------------------


class RankLines:
    """Filter that keeps the whole lines of one rank, with their labels, from a log in pieces of any size.

    `srun --label` puts the task number before each line. It is the rank if every rank is a task. Where one task per
    node starts the `ranks_per_task` ranks of the node, torch's `[rank3]` is the rank, and torchrun's `[default3]` is
    the rank on its node. Lines of more than 1 MiB are split.
    """

    _TASK = re.compile(rb" *([0-9]{1,6}): ")
    _RANK = re.compile(rb"\[rank([0-9]{1,6})\]")
    _LOCAL = re.compile(rb"\[default ?([0-9]{1,4})\]")

    def __init__(self, rank: int, ranks_per_task: int = 1) -> None:
        self.labels_seen = False
        self.rank, self._ranks_per_task = rank, ranks_per_task
        self._pending = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the lines of the rank that this piece completes."""
        text = self._pending + piece
        end = text.rfind(b"\n") + 1
        if not end and len(text) > LONGEST_LINE_BYTES:
            end = len(text)
        self._pending = text[end:]
        return b"".join(line for line in io.BytesIO(text[:end]) if self._is_of_rank(line))

    def end(self) -> bytes:
        """Return the last line if it has no line end and is of the rank."""
        line, self._pending = self._pending, b""
        return line if line and self._is_of_rank(line) else b""

    def _is_of_rank(self, line: bytes) -> bool:
        task = self._TASK.match(line)
        start = line[task.end() if task else 0 :][:64]
        rank, local = self._RANK.match(start), self._LOCAL.match(start)
        if rank is not None:
            line_rank = int(rank[1])
        elif local is not None:
            line_rank = (int(task[1]) if task else 0) * self._ranks_per_task + int(local[1])
        elif task is not None and self._ranks_per_task == 1:
            line_rank = int(task[1])
        else:
            return False
        self.labels_seen = True
        return line_rank == self.rank


class GrowingLog:
    """A log that may be absent, grow, be cut off or be replaced while it is read. `notify` gets a line about that."""

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self._notify = notify
        self._file: BinaryIO | None = None

    def new_blocks(self) -> Iterator[bytes]:
        """Yield everything that was written since the last call."""
        while True:
            file = self._file = self._file or open_job_file(self.folder, "log.txt")
            if file is None:
                return
            if os.fstat(file.fileno()).st_size < file.tell():
                self._notify("the log was cut off and is printed from its new start")
                file.seek(0)
            yield from file_blocks(file)
            if not self._is_replaced(file):
                return
            self._notify("the log was replaced by another file")
            file.close()
            self._file = None

    def _is_replaced(self, file: BinaryIO) -> bool:
        """Return whether another file is in its place. While a file is replaced there may be none."""
        try:
            current = (self.folder / "log.txt").lstat()
        except OSError:
            return False
        opened = os.fstat(file.fileno())
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)


def file_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := file.read(LONGEST_LINE_BYTES):
        yield block


def ranks_per_task(folder: Path, row: JobRow) -> int:
    """Return how many ranks share a label of srun: all of a node if its script has one task for each node."""
    per_node = row.spec.resources.tasks_per_node if row.spec.resources else 1
    script = read_job_file(folder, "job.sh") or b""
    tasks = re.search(rb"^#SBATCH --ntasks-per-node=([0-9]{1,4})", script, re.MULTILINE)
    return max(1, per_node // max(1, int(tasks[1]))) if tasks else 1


# ---- lines of a log ---------------------------------------------------------------------------------------------

BYTES_BEFORE, BYTES_AFTER = 1024, 2048
"""Longest parts of a line before and after the token of a search."""

_TERMINAL = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_SRUN = re.compile(r"(?:P[0-9]{1,9} )? *([0-9]{1,9}): ")
_MPI = re.compile(r"\[(?:[\w.-]{1,100}@)?[0-9]{1,9},([0-9]{1,9})\]<std(?:out|err|diag)>:? ?")
_TEE = re.compile(r"\[[a-z_]{1,20}[0-9]{1,9}\]: ?")
_TORCH = re.compile(r"\[rank([0-9]{1,9})\]: ?")
# Labels of any launcher or logger before an exception: brackets, words with a digit (times, hosts, lines of a file),
# an error's level, and a logger's name. An exception that is logged as a warning ends no program.
_LABELS = re.compile(
    r"(?:(?![\[(]?\W{0,9}(?:(?i:trace|debug|info|notice|warn)|[DIW][0-9]{4} ))"
    r"(?:\[[^\[\]]{1,100}\]|\([^()]{1,100}\)|(?=[^\s\[\]()]{0,60}[0-9])[^\s\[\]()]{1,120}(?:\]|(?= ))"
    r"|(?:ERROR|CRITICAL|FATAL)(?::[\w.]{1,60}:|(?=[ :]))|[A-Za-z_.]{1,60}(?= [-|] )"
    r"|(?:[a-z_]{1,40}\.){1,6}[a-z_]{1,40}(?=:))[ :|-]{0,20}){1,10}"
    r"(?=(?:[A-Za-z_]\w{0,60}\.){0,8}(?:[A-Za-z_]\w{0,60}(?:Error|Exception)|Exception)(?:: |:?$))"
)
_WITHIN = re.compile(
    r"\bRank ([0-9]{1,9})\]|error: [\w.-]{1,64}: task ([0-9]{1,9}): |process rank ([0-9]{1,9}) with PID|"
    r"was aborted on rank ([0-9]{1,9})"
)
_NODE = re.compile(r"slurmstepd-([\w.-]{1,64}): |srun: error: ([\w.-]{1,64}): tasks? [0-9]")


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a line: the task number of srun's label, and the node name that slurmstepd or srun prints.

    slurmstepd prints its node name only in some builds of Slurm; in the others its prefix is `slurmstepd: `.
    """

    task: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its labels, and the rank and origin that the labels name.

    `is_task`: the rank is only srun's number of a task. That is a node's number if a launcher starts the ranks.
    """

    text: str
    rank: int | None
    is_task: bool
    origin: Origin = Origin()


def parse_line(line: bytes) -> LogLine:
    """Parse one line of any bytes. Remove terminal escape sequences, and replace bytes that are not UTF-8 by U+FFFD."""
    text = line.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = _TERMINAL.sub("", text)
    text = text.rstrip()
    if not text.isprintable():
        text = "".join(character if character.isprintable() else " " for character in text)
    task = _SRUN.match(text)
    text = text[task.end() :] if task else text
    process = _MPI.match(text)
    text = text[process.end() :] if process else text
    torch = _TORCH.match(text)
    tee = None if torch else _TEE.match(text)
    text = text[tee.end() :] if tee else text
    torch = torch or _TORCH.match(text)
    text = text[torch.end() :] if torch else text
    within = None if torch else _WITHIN.search(text)
    if labels := _LABELS.match(text):
        torch = torch or _TORCH.search(labels[0])
        text = text[labels.end() :]
    node = _NODE.match(text)
    origin = Origin(int(task[1]) if task else None, (node[1] or node[2]) if node else None)
    if torch or within or process:
        label = torch or within or process
        assert label is not None
        return LogLine(text, int(next(group for group in label.groups() if group)), is_task=False, origin=origin)
    return LogLine(text, origin.task, is_task=task is not None, origin=origin)


def lines_with(part: bytes, token: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each line that contains the token."""
    at = part.find(token)
    while at >= 0:
        start, end = line_around(part, at)
        yield start, end
        at = part.find(token, max(end, at + len(token)))


def line_around(part: bytes, at: int) -> tuple[int, int]:
    r"""Return start and end of the line at this position, or of its part near it. Progress bars end lines by \r."""
    low, high = max(0, at - BYTES_BEFORE), min(len(part), at + BYTES_AFTER)
    start = max(part.rfind(b"\n", low, at), part.rfind(b"\r", low, at)) + 1 or low
    ends = [end for end in (part.find(b"\n", at, high), part.find(b"\r", at, high)) if end >= 0]
    return start, min(ends, default=high)
