"""Content of a bundle: reproducible .tar.zst archives, safe unpacking and checksums; experiments and rows of a figure.

Rows are JSON lines, read back, and loaded into a ledger.
"""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import itertools
import json
import math
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from orchestrator.catalog.claims import PairFields
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, read_experiment
from orchestrator.errors import Problem, ReproError
from orchestrator.files import single_name
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import (
    Attempt,
    Event,
    Iteration,
    Job,
    Metric,
    OutputRow,
    Run,
    RunJob,
    Table,
    batched,
    rows_of,
)
from orchestrator.reading.logs import decompressed, file_blocks
from orchestrator.results.export.rows import Row
from orchestrator.results.outcome import FigureOutcome
from orchestrator.text import counted

LEVEL = 3
"""Compression level of zstd, its default. One thread, because the number of threads changes the bytes."""

_IN_MEMORY_BYTES = 1 << 24
_BLOCK_BYTES = 1 << 20

_MOST_MEMBERS = 100_000
_DEEPEST = 16
_LONGEST_PATH_BYTES = 1024
_LONGEST_HEADER_BYTES = _LONGEST_PATH_BYTES + 512
"""Older versions of `tarfile` need quadratic time for a header of many digits."""
_MOST_TRAILING_BYTES = 1 << 20
_SHARE_OF_FREE = 0.9
"""Share of the free disk space that an archive may fill."""


class Archive:
    """Writer of an archive; files keep their order and have no owner and the same time (UTC).

    `added` are size in bytes, SHA-256 and path of each file.
    """

    def __init__(self, tar: tarfile.TarFile, top: str, at: datetime, scratch: Path) -> None:
        self._tar, self._top, self._scratch = tar, top, scratch
        self._mtime = calendar.timegm(at.timetuple())
        self.added: list[tuple[int, str, str]] = []

    def add(self, path: str, blocks: Iterable[bytes]) -> None:
        """Add a file; a large one is buffered on disk, because a tar header contains the size."""
        digest, size_bytes = hashlib.sha256(), 0
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES, dir=str(self._scratch)) as spool:
            for block in blocks:
                digest.update(block)
                size_bytes += len(block)
                spool.write(block)
            spool.seek(0)
            member = tarfile.TarInfo(f"{self._top}/{path}")
            member.size, member.mtime, member.mode = size_bytes, self._mtime, 0o644
            self._tar.addfile(member, spool)
        self.added.append((size_bytes, digest.hexdigest(), path))


@contextlib.contextmanager
def new_archive(file: Path, top: str, at: datetime) -> Iterator[Archive]:
    """Open a .tar.zst for writing; all its files are below the folder `top`."""
    import zstandard

    packing = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with (
        file.open("wb") as raw,
        packing.stream_writer(raw, closefd=False) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        yield Archive(tar, top, at, file.parent)


@contextlib.contextmanager
def unpacked(file: Path) -> Iterator[tuple[Path, list[str]]]:
    """Unpack an archive into a temporary folder; yield the folder and the paths of its files.

    Raises ReproError for a damaged archive, and for an archive with anything but files below one folder.
    """
    with tempfile.TemporaryDirectory(prefix="repro-bundle-") as scratch:
        top, paths = _unpack(file, Path(scratch))
        yield Path(scratch) / top, paths


def _unpack(file: Path, into: Path) -> tuple[str, list[str]]:
    paths: list[str] = []
    free_bytes = int(shutil.disk_usage(into).free * _SHARE_OF_FREE)
    try:
        with file.open("rb") as raw:
            stream = _Decompressed(raw)
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as tar:  # type: ignore[call-overload]  # it only reads
                for number, member in enumerate(tar, 1):
                    path = _path_of(file, member)
                    if number > _MOST_MEMBERS:
                        raise ReproError(Problem(f"not a bundle: more than {_MOST_MEMBERS:,} files", f"{file}:"))
                    if member.isdir():
                        continue
                    free_bytes -= member.size
                    if free_bytes < 0:
                        what = f"its files do not fit into {into.parent} (at {path})"
                        raise ReproError(Problem(what, f"{file}:", "set TMPDIR to a folder with more space"))
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file has content
                    try:
                        (into / path).parent.mkdir(parents=True, exist_ok=True)
                        with (into / path).open("xb") as out:
                            shutil.copyfileobj(content, out, _BLOCK_BYTES)
                    except (FileExistsError, NotADirectoryError):
                        raise ReproError(Problem(f"contains {path!r} twice", f"{file}:")) from None
                    paths.append(path)
            trailing_bytes = 0
            while block := stream.read(_BLOCK_BYTES):  # to the end of the file, where zstd's checksum is
                trailing_bytes += len(block)
                if trailing_bytes > _MOST_TRAILING_BYTES:
                    raise ReproError(Problem("continues after the end of the archive", f"{file}:"))
    except (tarfile.TarError, EOFError, ValueError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ReproError(Problem(f"damaged, or not a bundle ({reason})", f"{file}:", "get it again")) from None
    tops = sorted({path.partition("/")[0] for path in paths})
    if len(tops) != 1 or any("/" not in path for path in paths):
        raise ReproError(Problem("not a bundle: its files are not below one folder", f"{file}:"))
    return tops[0], [path.partition("/")[2] for path in paths]


class _Member(tarfile.TarInfo):
    """Member of an archive that refuses oversized headers before they are read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        """Return the member that a header describes; ReadError for an oversized header."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file or an invalid size")
        if not member.isfile() and not member.isdir() and member.size > _LONGEST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {member.size:,} bytes")
        return member


def _path_of(file: Path, member: tarfile.TarInfo) -> str:
    """Return the path of a regular file or folder below the top folder; else raise ReproError."""
    kind = "a link" if member.issym() or member.islnk() else "a device, a pipe or a sparse file"
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise ReproError(Problem(f"not a bundle: {member.name!r} is {kind}", f"{file}:"))
    try:
        path_within(member.name)
        if member.name.count("/") >= _DEEPEST or len(member.name.encode()) > _LONGEST_PATH_BYTES:
            raise ReproError("too deep")
    except ReproError:
        raise ReproError(Problem(f"{member.name[:200]!r} is not a path of a bundle", f"{file}:")) from None
    return member.name


class _Decompressed:
    """File object over compressed data; ValueError if it is damaged or cut off."""

    def __init__(self, raw: BinaryIO) -> None:
        def refuse(what: str) -> None:
            raise ValueError(what)

        self._pieces, self._ready = decompressed(raw, refuse), bytearray()

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        while len(self._ready) < size and (piece := next(self._pieces, None)) is not None:
            self._ready += piece
        block = bytes(self._ready[:size])
        del self._ready[:size]
        return block


MANIFEST, SUMS = "MANIFEST", "SHA256SUMS"
_SUM = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST_TEXT_BYTES = 1 << 26


def text_of(folder: Path, name: str) -> str:
    """Return a text file of the bundle; ValueError if it is too long or not UTF-8."""
    with (folder / name).open("rb") as file:
        text = file.read(_LARGEST_TEXT_BYTES + 1)
    if len(text) > _LARGEST_TEXT_BYTES:
        raise ValueError(f"{name} is too long")
    return text.decode()


def changed_files(folder: Path, paths: Sequence[str]) -> Iterator[str]:
    """Yield each file that differs from SHA256SUMS or MANIFEST."""
    try:
        lines = text_of(folder, SUMS).splitlines()
        sums = {match[2]: match[1] for line in lines if (match := _SUM.fullmatch(line))}
        entries = (line.split("\t") for line in (text_of(folder, MANIFEST) if MANIFEST in sums else "").splitlines())
        sizes = {path: (int(size_bytes), digest) for size_bytes, digest, path in entries}
    except (OSError, ValueError):
        yield f"{SUMS} or {MANIFEST}: cannot be read"
        return
    if len(sums) != len(lines):
        yield f"{SUMS}: invalid or repeated: {counted(len(lines) - len(sums), 'line')}"
    yield from (f"{path}: is missing" for path in sorted(sums.keys() - set(paths)))
    yield from (f"{path}: is not in {SUMS}" for path in sorted(set(paths) - sums.keys() - {SUMS}))
    for path in sorted(sums.keys() & set(paths)):
        if _sha256(folder / path) != sums[path]:
            yield f"{path}: was changed"
        elif path != MANIFEST and sizes.get(path) != ((folder / path).stat().st_size, sums[path]):
            yield f"{path}: differs from its entry in {MANIFEST}"
    yield from (f"{path}: is in {MANIFEST} and not in {SUMS}" for path in sorted(sizes.keys() - sums.keys()))


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in file_blocks(file):
            digest.update(block)
    return digest.hexdigest()


def path_within(path: str) -> str:
    """Return the path if it is within the bundle; else raise ReproError."""
    for part in path.split("/"):
        single_name(part)
    return path


T = TypeVar("T")

SOMEBODY = "user"
"""Replacement of a user's name in a path."""


def anonymized(value: T, users: Collection[str]) -> T:
    """Return a row, or other JSON, without the names of these users in paths."""
    names = "|".join(re.escape(json.dumps(user)[1:-1]) for user in sorted(users, key=len, reverse=True) if user)
    if not names:
        return value
    within_path = rf"(?<=/)(?:{names})(?![\w.@-])"  # a name that is a whole part of a path
    anonymous: T = json.loads(re.sub(within_path, SOMEBODY, json.dumps(value)))
    return anonymous


OUTPUT_ROWS = OutputRow.__tablename__
"""Table that a bundle lacks if it has no rows, like every bundle of older versions."""
TABLES: Mapping[str, type[Table]] = {
    "runs": Run,
    "jobs": Job,
    "run_jobs": RunJob,
    "attempts": Attempt,
    "metrics": Metric,
    OUTPUT_ROWS: OutputRow,
    "iterations": Iteration,
    "events": Event,
}
_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"user", "host", "pid", "run_options"}),
    "attempts": frozenset(
        {"user", "host", "pid", "token", "machine", "pid_start_ticks", "unsettled_since", "unseen_log_bytes"}
    ),
}
_PATHS = {"runs": frozenset({"profile"}), "attempts": frozenset({"folder", "script", "file"})}
_LONGEST_LINE_BYTES = 1 << 24
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Extract:
    """Rows of a figure by table, in the order of the bundle, except iterations (there may be millions).

    `runs` are the runs that requested the jobs and the runs that made their attempts; `run_jobs` and `events` are those
    of this figure, and of the jobs of other figures that its claims compare with.
    """

    runs: list[Row]
    jobs: list[Row]
    run_jobs: list[Row]
    attempts: list[Row]
    metrics: list[Row]
    output_rows: list[Row]
    events: list[Row]

    @classmethod
    def of_tables(cls, read: Callable[[str], Iterable[Row]]) -> Extract:
        """Return the extract with the rows that `read` gives for each table."""
        return cls(**{table: list(read(table)) for table in TABLES if table != "iterations"})

    def of(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        rows: list[Row] = getattr(self, table)
        return rows

    @property
    def users(self) -> set[str]:
        """Return the user names in the rows; a bundle contains none."""
        return {row["user"] for row in (*self.runs, *self.attempts) if row.get("user")}

    @property
    def last_run(self) -> Row:
        """Return the latest run that requested jobs of this figure."""
        run_ids = {row["run_id"] for row in self.run_jobs}
        return [run for run in self.runs if run["id"] in run_ids][-1]


def extract_of(
    ledger: Ledger,
    experiment: str,
    scale: str,
    cluster: str,
    programs: set[str],
    others: Mapping[str, Collection[str]] | None = None,
    left_out: Collection[str] = (),
) -> Extract:
    """Return the ledger's rows about the jobs of a figure that run one of these programs.

    `others` are the cases of other experiments, by full name, whose jobs are included. `left_out` are job ids.
    """
    runs, jobs, requests = (rows_of(table) for table in (Run, Job, RunJob))
    cases = [
        sa.and_(runs.c.experiment == other, requests.c.case_name.in_(sorted(names)))
        for other, names in (others or {}).items()
    ]
    query = (
        sa.select(*requests.c)
        .join(runs, runs.c.id == requests.c.run_id)
        .join(jobs, jobs.c.id == requests.c.job_id)
        .where(sa.or_(runs.c.experiment == experiment, *cases), runs.c.scale == scale, runs.c.cluster == cluster)
        .where(jobs.c.program.in_(sorted(programs)))
        .order_by(runs.c.created_at, runs.c.id, requests.c.position)
    )
    with ledger.reading() as session:
        run_jobs = [dict(row) for row in session.execute(query).mappings() if row["job_id"] not in left_out]
        job_ids, run_ids = {row["job_id"] for row in run_jobs}, {row["run_id"] for row in run_jobs}
        attempts = _rows(session, Attempt, "job_id", job_ids, order="id")
        ids, job_ids = {row["id"] for row in attempts}, {row["job_id"] for row in attempts}
        run_jobs = [row for row in run_jobs if row["job_id"] in job_ids]
        events = [row for row in _rows(session, Event, "run_id", run_ids, order="id") if row["attempt_id"] is None]
        events += _rows(session, Event, "attempt_id", ids, order="id")
        return Extract(
            runs=_rows(session, Run, "id", run_ids | {row["run_id"] for row in attempts}, order="created_at id"),
            jobs=_rows(session, Job, "id", job_ids, order="id"),
            run_jobs=run_jobs,
            attempts=attempts,
            metrics=_rows(session, Metric, "attempt_id", ids, order="attempt_id name"),
            output_rows=_rows(session, OutputRow, "attempt_id", ids, order="attempt_id position"),
            events=sorted(events, key=lambda row: (row["at"], row["id"])),
        )


def _rows(session: Session, table: type[Table], column: str, values: set[int] | set[str], order: str) -> list[Row]:
    """Return the rows of a table with one of these values in a column, without scripts, ordered by these columns."""
    columns = rows_of(table).c
    query = sa.select(*(part for part in columns if part.name != "script"))
    rows: list[Row] = []
    for batch in batched(sorted(values)):
        rows += (dict(row) for row in session.execute(query.where(columns[column].in_(batch))).mappings())
    return sorted(rows, key=lambda row: [row[name] for name in order.split()])


def iterations_of(ledger: Ledger, attempts: list[Row]) -> Iterator[Row]:
    """Yield the iterations of these attempts, in the order of attempt ids."""
    columns = rows_of(Iteration).c
    query = sa.select(*columns).order_by(columns.attempt_id, columns.iteration).execution_options(yield_per=1000)
    with ledger.reading() as session:
        for ids in batched([row["id"] for row in attempts]):
            rows = session.execute(query.where(columns.attempt_id.in_(ids)))
            yield from (dict(row) for row in rows.mappings())


def attempt_folders(extract: Extract) -> dict[int, str]:
    """Return the folder of each attempt in the bundle: case name, job id and number of the attempt."""
    names: dict[str, str] = {}
    folders: dict[int, str] = {}
    for row in extract.attempts:
        own = re.sub(r"[^A-Za-z0-9._]+", "-", PurePath(row["folder"]).name)[:_LONGEST_NAME].strip(".-") or "job"
        name = names.setdefault(row["job_id"], f"{own}-{row['job_id']}")
        folders[row["id"]] = f"jobs/{name}/attempt-{row['number']}"
    return folders


def line_of(table: str, row: Row, paths: Row, users: set[str]) -> bytes:
    """Return one line of the table's file, without users; `paths` are its paths within the bundle."""
    names = [column.name for column in columns_of(table)]
    plain = {name: _plain(row[name]) for name in names if name not in paths}
    plain |= {"profile_file": PurePath(row["profile_file"]).name} if row.get("profile_file") else {}
    plain = anonymized(plain, users) | paths
    return json.dumps({name: plain[name] for name in names}, allow_nan=False).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_extract(folder: Path) -> Extract:
    """Return the rows of an unpacked bundle; ReproError for an invalid line."""
    return Extract.of_tables(lambda table: read_rows(folder, table))


def read_rows(folder: Path, table: str) -> Iterator[Row]:
    """Yield the rows of a table; times are datetimes."""
    name = f"ledger/{table}.jsonl"
    try:
        with (folder / name).open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE_BYTES):
                number += 1
                yield row_of(table, line)
    except FileNotFoundError:
        if table == OUTPUT_ROWS:
            return
        raise ReproError(Problem("missing", f"{name}:")) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ReproError(Problem(f"no row of that table ({error})", f"{name}:{number}:")) from None


def row_of(table: str, line: bytes) -> Row:
    """Return the row in a line of this table's file; ValueError for an invalid line."""
    columns = columns_of(table)
    row, names = json.loads(line, parse_constant=_refuse), [column.name for column in columns]
    if not isinstance(row, dict) or list(row) != names:
        raise ValueError("other columns")
    paths = _PATHS.get(table, frozenset())
    return {column.name: _checked(row[column.name], column, column.name in paths) for column in columns}


@lru_cache
def columns_of(table: str) -> list[sa.Column[Any]]:
    """Return the table's columns that its lines have."""
    left_out = _LEFT_OUT.get(table, frozenset())
    return [column for column in Table.metadata.tables[table].c if column.name not in left_out]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _checked(value: Any, column: sa.Column[Any], is_path: bool) -> object:
    """Return the value if its type is the column's; else raise ValueError."""
    if value is None:
        if column.nullable or is_path:
            return None
        raise ValueError(f"{column.name} is missing")
    kind = str if is_path else column.type.python_type
    if kind is datetime:
        return datetime.fromisoformat(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{column.name} is {str(value)[:40]!r}")
    return value


def memory_ledger(
    extract: Extract, iterations: Iterable[Row], base: Path, text_of: Callable[[str], str | None] = lambda _path: None
) -> Ledger:
    """Return a ledger in memory with the rows of a bundle; the folders of attempts are below `base`.

    Columns that a bundle leaves out are empty. `text_of` returns the text of a profile or a script in the bundle.
    """
    url = sa.URL.create("sqlite")
    engine = sa.create_engine(url, poolclass=sa.pool.StaticPool)
    Table.metadata.create_all(engine)
    runs = (
        {**row, "user": "", "host": "", "pid": 0, "run_options": {}}
        | {"profile": dict(json.loads(text_of(row["profile"]) or "{}"))}
        for row in extract.runs
    )
    attempts = (
        {**row, "host": "", "token": "", "folder": str(base / row["folder"])}
        | {"script": (text_of(row["script"]) if row["script"] else None) or ""}
        for row in extract.attempts
    )
    requests = [*extract.run_jobs, *_jobs_of_other_figures(extract)]
    made = {"runs": runs, "run_jobs": requests, "attempts": attempts, "iterations": iterations}
    ledger = Ledger(url, engine)
    with ledger.writing() as session:
        for name, table in TABLES.items():
            remaining = iter(made[name] if name in made else extract.of(name))
            while batch := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
                session.connection().execute(sa.insert(rows_of(table)), batch)
    return ledger


_ROWS_AT_ONCE = 10_000


def _jobs_of_other_figures(extract: Extract) -> Iterator[Row]:
    """Yield the rows of `run_jobs` that the bundle leaves out, for attempts that a run of another figure made."""
    names = {row["job_id"]: row["case_name"] for row in extract.run_jobs}
    present = {(row["run_id"], row["job_id"]) for row in extract.run_jobs}
    attempted = dict.fromkeys((row["run_id"], row["job_id"]) for row in extract.attempts)
    for number, (run_id, job_id) in enumerate((key for key in attempted if key not in present), 1):
        yield {"run_id": run_id, "position": -number, "job_id": job_id, "case_name": names[job_id]}


def read_entry(folder: Path, name: str) -> Entry:
    """Read the experiment in the bundle, and those that its claims compare with."""
    file = folder / "experiment" / f"{name}.yaml"
    files = {f"{name.rpartition('/')[0]}/{path.stem}": path for path in sorted(file.parent.glob("*.yaml"))}
    return read_experiment(name, file, files)


def with_others(entry: Entry) -> list[Entry]:
    """Return the experiment, the experiments that its claims compare with, and those that theirs compare with."""
    return [entry, *(one for other in entry.others.values() for one in with_others(other))]


def compared_cases(figure: FigureOutcome) -> dict[str, set[str]]:
    """Return the cases of other experiments that the claims compare with, by full name of the experiment."""
    cases: dict[str, set[str]] = {other.name: set() for other in figure.entry.others.values()}
    for claim in figure.entry.experiment.claims:
        if not isinstance(claim, PairFields) or claim.experiment is None or figure.scale not in claim.judged_at:
            continue
        other = figure.entry.others[claim.experiment]
        wanted = claim.where | claim.over
        cases[other.name] |= {
            case.name for case in expand(other, figure.scale) if wanted.items() <= case.settings.items()
        }
    return cases
