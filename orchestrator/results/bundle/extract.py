"""Rows of a figure in a bundle: written as JSON lines without secrets, read back, and loaded into a ledger."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any

import sqlalchemy as sa

from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.column_types import JsonObject, JsonTexts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Event, Iteration, Job, Metric, Run, RunJob, Table, batched, rows_of
from orchestrator.masking import masked, masked_tree

SOMEBODY = "user"
"""What stands for a user's name in a path."""

# Lines that a verdict or a number stands on; which of them do is told where they are read.
_PROOF = re.compile(
    rb"iteration +[0-9]+/|using world size:|\[after training is done\]|\[exiting program|\(MB\)|number of parameters"
)

_BLOCK_BYTES = 1 << 22
_MOST_BYTES = 1 << 26
"""Where no good place for a cut is found in so much, it is cut all the same."""
_BESIDE_CUT_BYTES = 1 << 16


def masked_blocks(pieces: Iterable[bytes], known: Collection[str] = ()) -> Iterator[bytes]:
    """Yield a file of any size without secrets, block by block, so that memory does not grow with the file.

    A secret may span several lines (a key in PEM). A block ends only where masking both parts separately gives the same
    result as masking them together.
    """
    kept: list[bytes] = []
    enough = _BLOCK_BYTES
    for piece in pieces:
        kept.append(piece)
        if sum(map(len, kept)) < enough:
            continue
        pending = b"".join(kept)
        cut = _cut(pending, known)
        if cut:
            yield masked_bytes(pending[:cut], known)
        kept = [pending[cut:]]
        enough = len(kept[0]) + _BLOCK_BYTES
    if last := b"".join(kept):
        yield masked_bytes(last, known)


def masked_bytes(text: bytes, known: Collection[str] = ()) -> bytes:
    """Return the bytes without secrets; bytes that are not UTF-8 stay.

    A secret name with an unclosed quote hides the lines up to the next quote. If a verdict depends on one of these
    lines, each such line is masked separately.
    """
    found = _masked(text, known)
    if found.count(b"\n") == text.count(b"\n") or _proof(found) == _proof(text):
        return found
    parts: list[bytes] = []
    for is_proof, group in itertools.groupby(text.splitlines(keepends=True), lambda line: bool(_PROOF.search(line))):
        lines = list(group)
        parts += [_masked(part, known) for part in (lines if is_proof else [b"".join(lines)])]
    return b"".join(parts)


def _masked(text: bytes, known: Collection[str]) -> bytes:
    return masked(text.decode("utf-8", "surrogateescape"), known).encode("utf-8", "surrogateescape")


def _proof(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if _PROOF.search(line)]


def _cut(text: bytes, known: Collection[str]) -> int:
    """Return the length of the part that can be masked separately; 0 if more must be read."""
    cut = text.rfind(b"\n", 0, max(0, len(text) - _BESIDE_CUT_BYTES)) + 1
    if len(text) >= _MOST_BYTES:
        return cut or len(text) - _BESIDE_CUT_BYTES
    before, behind = text[max(0, cut - _BESIDE_CUT_BYTES) : cut], text[cut : cut + _BESIDE_CUT_BYTES]
    apart = _masked(before, known) + _masked(behind, known)
    return cut if cut and apart == _masked(before + behind, known) else 0


def given_out(value: Any, names: Collection[str], known: Collection[str] = ()) -> Any:
    """Return a row, or other JSON, without secrets and without the names of these users in paths."""
    return _nameless(masked_tree(value, known=known), _paths_of(names))


def _paths_of(names: Collection[str]) -> re.Pattern[str] | None:
    """Return a pattern for user names that are a whole part of a path."""
    written = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)) if name)
    return re.compile(rf"(?<=/)(?:{written})(?![\w.@-])") if written else None


def _nameless(value: Any, pattern: re.Pattern[str] | None) -> Any:
    if pattern is None:
        return value
    if isinstance(value, str):
        return pattern.sub(SOMEBODY, value)
    if isinstance(value, dict):
        return {key: _nameless(one, pattern) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_nameless(one, pattern) for one in value]
    return value


Row = dict[str, Any]

TABLES: Mapping[str, type[Table]] = {
    "runs": Run,
    "jobs": Job,
    "run_jobs": RunJob,
    "attempts": Attempt,
    "metrics": Metric,
    "iterations": Iteration,
    "events": Event,
}
_LEFT_OUT: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"user", "host", "pid", "run_options"}),
    "attempts": frozenset(
        {"user", "host", "pid", "token", "machine", "pid_start_ticks", "unsettled_since", "unseen_log_bytes"}
    ),
}
_PATHS: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"profile"}),
    "attempts": frozenset({"folder", "script", "file"}),
}
_ADDED: Mapping[str, frozenset[str]] = {
    "jobs": frozenset({"image_digest"}),
    "attempts": frozenset({"execution", "slurm_cluster"}),
    "iterations": frozenset({"host_wait_ms"}),
}
"""Columns that the lines of older bundles lack. They are empty then."""
_LONGEST_LINE_BYTES = 1 << 24
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Extract:
    """Rows of a figure by table, in the order of the bundle, except iterations (there may be millions).

    `runs` are the runs that requested the jobs and the runs that made their attempts; `run_jobs` and `events` are those
    of this figure.
    """

    runs: list[Row]
    jobs: list[Row]
    run_jobs: list[Row]
    attempts: list[Row]
    metrics: list[Row]
    events: list[Row]

    def of(self, table: str) -> list[Row]:
        """Return the rows of a table."""
        found: list[Row] = getattr(self, table)
        return found

    @property
    def users(self) -> set[str]:
        """Return the user names in the rows; a bundle contains none."""
        return {row["user"] for row in (*self.runs, *self.attempts) if row.get("user")}

    @property
    def last_run(self) -> Row:
        """Return the latest run that requested jobs of this figure."""
        asked = {row["run_id"] for row in self.run_jobs}
        return [run for run in self.runs if run["id"] in asked][-1]


def extract_of(ledger: Ledger, experiment: str, scale: str, cluster: str, workloads: set[str]) -> Extract:
    """Return the ledger's rows about the jobs of a figure that run one of these programs, without scripts."""
    runs, jobs, asked, attempts, events = (rows_of(table) for table in (Run, Job, RunJob, Attempt, Event))
    its_own = (runs.c.experiment == experiment, runs.c.scale == scale, runs.c.cluster == cluster)
    asking = (
        sa.select(*asked.c)
        .join(runs, runs.c.id == asked.c.run_id)
        .join(jobs, jobs.c.id == asked.c.job_id)
        .where(*its_own, jobs.c.workload.in_(sorted(workloads)))
        .order_by(runs.c.created_at, runs.c.id, asked.c.position)
    )
    with ledger.reading() as session:

        def rows(query: sa.Select[Any]) -> list[Row]:
            return [dict(row) for row in session.execute(query).mappings()]

        def having(table: sa.TableClause, column: str, values: set[Any]) -> list[Row]:
            kept = [one for one in table.c if one.name != "script"]
            return [
                row
                for some in batched(sorted(values))
                for row in rows(sa.select(*kept).where(table.c[column].in_(some)))
            ]

        run_jobs = rows(asking)
        job_ids, run_ids = {row["job_id"] for row in run_jobs}, {row["run_id"] for row in run_jobs}
        made = sorted(having(attempts, "job_id", job_ids), key=lambda row: row["id"])
        ids = {row["id"] for row in made}
        told = having(events, "attempt_id", ids)
        told += [row for row in having(events, "run_id", run_ids) if row["attempt_id"] is None]
        all_runs = having(runs, "id", run_ids | {row["run_id"] for row in made})
        return Extract(
            runs=sorted(all_runs, key=lambda row: (row["created_at"], row["id"])),
            jobs=sorted(having(jobs, "id", job_ids), key=lambda row: str(row["id"])),
            run_jobs=run_jobs,
            attempts=made,
            metrics=sorted(
                having(rows_of(Metric), "attempt_id", ids), key=lambda row: (row["attempt_id"], row["name"])
            ),
            events=sorted(told, key=lambda row: (row["at"], row["id"])),
        )


def iterations_of(ledger: Ledger, attempts: list[Row]) -> Iterator[Row]:
    """Yield the iterations of these attempts, in the order of attempt ids."""
    table = rows_of(Iteration)
    with ledger.reading() as session:
        for ids in batched([row["id"] for row in attempts]):
            query = sa.select(*table.c).where(table.c.attempt_id.in_(ids))
            found = session.execute(
                query.order_by(table.c.attempt_id, table.c.iteration).execution_options(yield_per=1000)
            )
            yield from (dict(row) for row in found.mappings())


def attempt_folders(extract: Extract) -> dict[int, str]:
    """Return the folder of each attempt in the bundle: case name, job id and number of the attempt."""
    names: dict[str, str] = {}
    found: dict[int, str] = {}
    for row in extract.attempts:
        own = re.sub(r"[^A-Za-z0-9._]+", "-", PurePath(row["folder"]).name)[:_LONGEST_NAME].strip(".-") or "job"
        name = names.setdefault(row["job_id"], f"{own}-{row['job_id']}")
        found[row["id"]] = f"jobs/{name}/attempt-{row['number']}"
    return found


def line_of(table: str, row: Row, paths: Row, users: set[str], known: Collection[str] = ()) -> bytes:
    """Return one line of the table's file, without the secrets in `known`; `paths` stand for files of the bundle."""
    left_out = _LEFT_OUT.get(table, frozenset())
    kept = {name: value for name, value in row.items() if name not in left_out and name not in paths}
    kept |= {"profile_file": PurePath(row["profile_file"]).name} if row.get("profile_file") else {}
    plain = given_out({name: _plain(value) for name, value in kept.items()}, users, known) | paths
    return json.dumps({name: plain[name] for name in columns_of(table)}, allow_nan=False).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def columns_of(table: str) -> list[str]:
    """Return the columns of a table's lines, in order."""
    left_out = _LEFT_OUT.get(table, frozenset())
    return [column.name for column in rows_of(TABLES[table]).c if column.name not in left_out]


def read_extract(folder: Path) -> Extract:
    """Return the rows of an unpacked bundle; ReproError for an invalid line."""
    read = {name: list(read_rows(folder, name)) for name in TABLES if name != "iterations"}
    return Extract(**read)


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
        raise ReproError(Problem(f"{name}: not there")) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ReproError(Problem(f"{name}:{number}: no row of that table ({error})")) from None


def row_of(table: str, line: bytes) -> Row:
    """Return the row that a line of this table's file holds; ValueError for a line that is none."""
    columns, paths, added = _kinds_of(table)
    row, names = json.loads(line, parse_constant=_refused), [column.name for column in columns]
    if not isinstance(row, dict) or list(row) != [name for name in names if name in row or name not in added]:
        raise ValueError("other columns")
    return {column.name: _checked(row.get(column.name), column, column.name in paths) for column in columns}


@lru_cache
def _kinds_of(table: str) -> tuple[list[Any], frozenset[str], frozenset[str]]:
    """Return a table's columns, those of them that are paths within the bundle, and those that older bundles lack."""
    columns = [column for column in rows_of(TABLES[table]).c if column.name in columns_of(table)]
    return columns, _PATHS.get(table, frozenset()), _ADDED.get(table, frozenset())


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _checked(value: Any, column: Any, is_path: bool) -> Any:
    """Return the value if its type is the column's; else raise ValueError."""
    if value is None:
        if column.nullable or is_path:
            return None
        raise ValueError(f"{column.name} is missing")
    kind = str if is_path else column.type.python_type
    if kind is datetime:
        return datetime.fromisoformat(value)
    if isinstance(column.type, (JsonObject, JsonTexts)):
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{column.name} is {str(value)[:40]!r}")
    return value


def memory_ledger(
    extract: Extract,
    iterations: Iterable[Row],
    base: Path,
    profile_of: Callable[[Row], dict[str, Any]],
    script_of: Callable[[Row], str | None],
) -> Ledger:
    """Return a ledger in memory with the rows of a bundle; the folders of attempts are below `base`.

    What a bundle leaves out is empty. `profile_of` returns the profile of a run, `script_of` the script of an attempt.
    """
    url = sa.URL.create("sqlite")
    engine = sa.create_engine(url, poolclass=sa.pool.StaticPool)
    Table.metadata.create_all(engine)
    runs = ({**row, **_LEFT_OUT_OF_RUN, "profile": profile_of(row)} for row in extract.runs)
    attempts = (
        {**row, **_LEFT_OUT_OF_ATTEMPT, "folder": str(base / row["folder"]), "script": script_of(row) or ""}
        for row in extract.attempts
    )
    rows: Mapping[type[Table], Iterable[Row]] = {
        Run: runs,
        Job: extract.jobs,
        RunJob: [*extract.run_jobs, *_jobs_of_other_figures(extract)],
        Attempt: attempts,
        Metric: extract.metrics,
        Iteration: iterations,
        Event: extract.events,
    }
    ledger = Ledger(url, engine)
    with ledger.writing() as session:
        for table, of_table in rows.items():
            remaining = iter(of_table)
            while block := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
                session.connection().execute(sa.insert(rows_of(table)), block)
    return ledger


_LEFT_OUT_OF_RUN: Row = {"user": "", "host": "", "pid": 0}
_LEFT_OUT_OF_ATTEMPT: Row = {"host": "", "token": ""}
_ROWS_AT_ONCE = 10_000


def _jobs_of_other_figures(extract: Extract) -> Iterator[Row]:
    """Yield the rows of `run_jobs` that the bundle leaves out, for attempts that a run of another figure made."""
    names = {row["job_id"]: row["case_name"] for row in extract.run_jobs}
    present = {(row["run_id"], row["job_id"]) for row in extract.run_jobs}
    made = dict.fromkeys((row["run_id"], row["job_id"]) for row in extract.attempts)
    for number, (run_id, job_id) in enumerate((key for key in made if key not in present), 1):
        yield {"run_id": run_id, "position": -number, "job_id": job_id, "case_name": names[job_id]}
