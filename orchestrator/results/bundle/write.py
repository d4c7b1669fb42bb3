"""Writer of a bundle, and its README. The same ledger and files give the same bytes."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

import orchestrator
from orchestrator import __version__
from orchestrator.errors import Problem, ReproError
from orchestrator.files import open_job_file, read_job_file
from orchestrator.ledger.attempts import job_rows, script_texts
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import file_offsets
from orchestrator.ledger.tables import ENDED, MEASURED, NEVER_SUBMITTED, OPEN
from orchestrator.masking import hidden_values, masked, masked_tree
from orchestrator.programs.record import known_program
from orchestrator.reading.logs import decompressed, file_blocks, is_compressed, job_secrets, log_files
from orchestrator.results.bundle.extract import (
    MANIFEST,
    OUTPUT_ROWS,
    SUMS,
    TABLES,
    Extract,
    anonymized,
    attempt_folders,
    compared_cases,
    extract_of,
    iterations_of,
    line_of,
    memory_ledger,
    new_archive,
    row_of,
    with_others,
)
from orchestrator.results.cases import LeftOutAttempt, words_of
from orchestrator.results.claims import JUDGING_RULES
from orchestrator.results.export.rows import Row, case_columns, claim_rows, export_rows, pieces
from orchestrator.results.outcome import FigureOutcome, judge_stored, needs_losses
from orchestrator.results.plot.figure import matplotlib_version
from orchestrator.results.report import report

FORMAT = 2
ABOUT, README, REPORT, SCRIPT = "bundle.json", "README.txt", "report.html", "job.sh"
_PROFILE = "runs/{id}/profile.json"
_NODE = r"[A-Za-z0-9._-]{1,200}"
_RECORDS = re.compile(rf"start|end|cancelled|claimed|sampler\.txt|gpus\.{_NODE}\.csv|fingerprint\.{_NODE}\.txt")
"""Files of a job folder that a bundle contains besides logs. Other files of a program may contain anything."""
_PACKED = re.compile(r"\.(?:gz|zst|xz|bz2)$")
"""Ending of a compressed log. The bundle contains the log decompressed, without the ending."""
# Lines that a verdict or a number may depend on.
_PROOF = re.compile(
    rb"iteration +[0-9]+/|using world size:|\[after training is done\]|\[exiting program|\(MB\)|number of parameters"
    rb"|exp_name: |DUE TO "
)

_BLOCK_BYTES = 1 << 22
_MOST_MASKED_BYTES = 1 << 26
"""A longer text is cut even if the cut may separate the parts of a secret."""
_BESIDE_CUT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file of the bundle that is missing; `is_fault` if a verdict depends on it."""

    path: str
    place: Path
    why: str
    is_fault: bool


@dataclass(slots=True)
class Contents:
    """Files of a bundle by path; each is read, without secrets, when its bytes are requested.

    `sources` are the files that are read from job folders, and whether a verdict depends on them. `secrets` are values
    that are masked wherever they occur in files. Rows of the ledger contain no secrets. `left_out` are folders of
    attempts that do not count.
    """

    files: dict[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    sources: dict[str, tuple[Path, bool]] = field(default_factory=dict)
    missing: list[MissingFile] = field(default_factory=list)
    secrets: frozenset[str] = frozenset()
    left_out: tuple[str, ...] = ()

    def add(self, path: str, text: bytes) -> None:
        """Add a text without secrets."""
        self.files[path] = lambda: (text,)

    def add_file(self, path: str, folder: Path, name: str, is_judged: bool) -> None:
        """Add a file of a job folder; it is read later."""
        file = folder / name
        self.files[path] = lambda: _blocks(folder, name, self.secrets, lambda what: self.lacks(path, file, what))
        self.sources[path] = file, is_judged

    def lacks(self, path: str, place: Path, why: str | ReproError, is_fault: bool = False) -> None:
        """Record a missing file with the reason, without the path on this machine."""
        if isinstance(why, ReproError):
            why = why.problems[0].what.removeprefix(f"{place}: ").replace(str(place.parent), "its folder")
        counts = not f"{path}/".startswith(tuple(f"{folder}/" for folder in self.left_out))
        self.missing.append(MissingFile(path, place, why, is_fault and counts))


def add_attempts(contents: Contents, extract: Extract, ledger: Ledger) -> dict[int, Row]:
    """Add scripts, logs and records of every attempt; return their paths in the bundle by attempt."""
    folders = attempt_folders(extract)
    texts = script_texts(ledger, {row["script_sha256"] for row in extract.attempts})
    secrets = [job_secrets(Path(row["folder"])) for row in extract.attempts]
    contents.secrets = contents.secrets.union(*secrets, *map(hidden_values, texts.values()))
    read = file_offsets(ledger, list(folders))
    outputs = {job["id"]: _output_files(job["program"], job["configuration"]) for job in extract.jobs}
    paths: dict[int, Row] = {}
    current = ledger.run_folders()
    for recorded in extract.attempts:
        row = {**recorded, "folder": current(recorded["folder"])}
        row["file"] = current(row["file"]) if row["file"] is not None else None
        folder = folders[row["id"]]
        path, text = f"{folder}/{SCRIPT}", texts.get(row["script_sha256"])
        if text is not None:  # that of the ledger cannot have been edited
            contents.add(path, text.encode())
        script = path if text is not None else _add_text(contents, path, Path(row["folder"]), SCRIPT)
        _add_logs(contents, row, folder, read.get(row["id"], {}), outputs[row["job_id"]])
        paths[row["id"]] = {"folder": folder, "script": script, "file": _add_submission(contents, row, script)}
    return paths


def _add_submission(contents: Contents, row: Row, script: str | None) -> str | None:
    """Add the file that the scheduler received: the script, or the script of an array or queue."""
    if row["file"] is None:
        return None
    file = Path(row["file"])
    if file == Path(row["folder"]) / SCRIPT:
        return script
    path = f"runs/{row['run_id']}/submissions/{file.name}"
    submissions = Path(row["folder"]).parent / "submissions"
    if file.parent != submissions or not file.name.endswith((".array.sh", ".queue.sh")):
        contents.lacks(path, file, "does not belong to its run")
        return None
    return path if path in contents.files else _add_text(contents, path, file.parent, file.name)


def _add_text(contents: Contents, path: str, folder: Path, name: str) -> str | None:
    """Add a text file of a job folder; return its path, or None if it is missing."""
    why: str | ReproError = "is gone"
    try:
        if (text := read_job_file(folder, name)) is not None:
            contents.add(path, masked_bytes(text, contents.secrets))
            return path
    except ReproError as error:
        why = error
    contents.lacks(path, folder / name, why)
    return None


def _output_files(program: str, configuration: Row) -> Collection[str]:
    """Return the other files in which a program writes its output."""
    described = configuration.get("program")
    if described is None:
        known = known_program(program)
        return () if known is None else known.output_files
    return [file] if (file := described.get("output", {}).get("file")) else ()


def _add_logs(contents: Contents, row: Row, path: str, read: Collection[str], outputs: Collection[str]) -> None:
    """Add the logs, the records and the output files of an attempt.

    `read` are the logs that were read when it was judged.
    """
    folder, is_judged = Path(row["folder"]), row["verdict"] is not None
    try:
        logs = [log.name for log in log_files(folder)]
        names = [path.name for path in folder.iterdir()]
        records = [name for name in names if _RECORDS.fullmatch(name) or _PACKED.sub("", name) in outputs]
    except FileNotFoundError:
        logs, records = [], []
    except ReproError as error:
        contents.lacks(path, folder, error, is_judged)
        return
    except OSError as error:
        contents.lacks(path, folder, f"cannot be read ({error.strerror})", is_judged)
        return
    for name in dict.fromkeys([*logs, *records]):
        contents.add_file(f"{path}/{_PACKED.sub('', name)}", folder, name, is_judged)
    were_read = {_PACKED.sub("", name) for name in read}
    for name in sorted(were_read - {_PACKED.sub("", name) for name in logs}):
        contents.lacks(f"{path}/{name}", folder / name, "is gone", is_judged)
    if not logs and not were_read and row["phase"] == ENDED and row["state"] != NEVER_SUBMITTED:
        had_log = row["verdict"] in MEASURED or row["iteration"] is not None
        contents.lacks(f"{path}/log.txt", folder / "log.txt", "is gone" if had_log else "there is none", had_log)


def _blocks(folder: Path, name: str, secrets: Collection[str], complain: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a file, decompressed and without secrets."""
    file = open_job_file(folder, name)
    if file is None:
        raise ReproError(Problem("is gone", f"{folder / name}:"))
    with file:
        try:
            pieces = decompressed(file, complain) if is_compressed(file) else file_blocks(file)
            yield from masked_blocks(pieces, secrets)
        except OSError as error:
            raise ReproError(Problem(f"cannot be read ({error.strerror})", f"{folder / name}:")) from None


def masked_blocks(pieces: Iterable[bytes], secrets: Collection[str] = ()) -> Iterator[bytes]:
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
        cut = _cut(pending, secrets)
        if cut:
            yield masked_bytes(pending[:cut], secrets)
        kept = [pending[cut:]]
        enough = len(kept[0]) + _BLOCK_BYTES
    if last := b"".join(kept):
        yield masked_bytes(last, secrets)


def masked_bytes(text: bytes, secrets: Collection[str] = ()) -> bytes:
    """Return the bytes without secrets; bytes that are not UTF-8 stay.

    A secret name with an unclosed quote hides the lines up to the next quote. If a verdict depends on one of these
    lines, each such line is masked separately.
    """
    masked_text = _masked(text, secrets)
    if masked_text.count(b"\n") == text.count(b"\n") or _proof(masked_text) == _proof(text):
        return masked_text
    parts: list[bytes] = []
    for is_proof, group in itertools.groupby(text.splitlines(keepends=True), lambda line: bool(_PROOF.search(line))):
        lines = list(group)
        parts += [_masked(part, secrets) for part in (lines if is_proof else [b"".join(lines)])]
    return b"".join(parts)


def _masked(text: bytes, secrets: Collection[str]) -> bytes:
    return masked(text.decode("utf-8", "surrogateescape"), secrets).encode("utf-8", "surrogateescape")


def _proof(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if _PROOF.search(line)]


def _cut(text: bytes, secrets: Collection[str]) -> int:
    """Return the length of the part that can be masked separately; 0 if more must be read."""
    cut = text.rfind(b"\n", 0, max(0, len(text) - _BESIDE_CUT_BYTES)) + 1
    if len(text) >= _MOST_MASKED_BYTES:
        return cut or len(text) - _BESIDE_CUT_BYTES
    before, behind = text[max(0, cut - _BESIDE_CUT_BYTES) : cut], text[cut : cut + _BESIDE_CUT_BYTES]
    apart = _masked(before, secrets) + _masked(behind, secrets)
    return cut if cut and apart == _masked(before + behind, secrets) else 0


def code_sha256(templates: Path) -> str:
    """Return the digest of this program's code and of the pages' templates: equal if they render the same pages."""
    package = Path(orchestrator.__file__).parent
    code = (path for path in package.rglob("*.py") if "shipped" not in path.relative_to(package).parts)
    digest = hashlib.sha256()
    for root, paths in ((package, code), (templates, [*templates.glob("report*"), *templates.glob("bundle*")])):
        for path in sorted(paths):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Bundled:
    """Number of files and attempts that were written; `under_way` attempts may still change.

    `verified` is the number of verified cases. `left_out` are the attempts that do not count.
    """

    files: int
    attempts: int
    under_way: int
    verified: int
    left_out: tuple[LeftOutAttempt, ...]
    missing: tuple[MissingFile, ...]


def write_bundle(ledger: Ledger, figure: FigureOutcome, templates: Path, file: Path) -> Bundled:
    """Write the bundle of a figure; the bundle lists unreadable files as missing."""
    others = compared_cases(figure)
    name, programs = figure.entry.name, set(figure.programs)
    other_jobs = {row.job_id for row in job_rows(ledger, experiment=name)} - figure.jobs  # of other arguments or runs
    extract = extract_of(ledger, name, figure.scale, figure.cluster, programs, others, other_jobs)
    folders = attempt_folders(extract)
    left_out = [attempt for attempt in figure.left_out if attempt.attempt_id in folders]
    contents = Contents(left_out=tuple(folders[attempt.attempt_id] for attempt in left_out))
    paths = add_attempts(contents, extract, ledger)  # first, because it collects the secrets of the scripts
    _add_inputs(contents, figure, extract)
    lines = functools.partial(_lines, ledger, extract, paths)
    for table in (table for table in TABLES if table != OUTPUT_ROWS or extract.output_rows):
        contents.files[f"ledger/{table}.jsonl"] = functools.partial(lines, table)
    cases = anonymized([dict(row) for row in export_rows(figure.entry, figure.results, ledger)], extract.users)
    results = {"cases": cases, "claims": claim_rows(figure.claims)}
    for result_file, file_format in (("cases.csv", "csv"), ("results.json", "json")):
        text = b"".join(pieces(file_format, case_columns(figure.entry), results))
        contents.add(f"results/{result_file}", text)
    bundled_ledger, bundled_extract = _ledger_of_bundle(contents, figure, lines)
    reasons = [{"job": one.job, "attempt": one.attempt, "reason": one.reason} for one in left_out]
    reasons = masked_tree(anonymized(reasons, extract.users))
    shown = judge_stored(bundled_ledger, figure.entry, figure.scale, words_of(reasons))
    contents.add(REPORT, report(bundled_ledger, [shown], templates).encode())
    under_way = sum(row["phase"] in OPEN for row in extract.attempts)
    about = {"format": FORMAT, "repro": __version__, "experiment": figure.entry.name, "scale": figure.scale}
    about |= {"code_sha256": code_sha256(templates), "matplotlib": matplotlib_version()}
    about |= {"cluster": figure.cluster, "programs": figure.programs, "judging_rules": JUDGING_RULES}
    about |= {"left_out": reasons}
    with new_archive(file, figure.file_name(), extract.last_run["created_at"]) as archive:
        for path in sorted(contents.files):
            try:
                archive.add(path, contents.files[path]())
            except ReproError as error:
                source, is_judged = contents.sources[path]
                contents.lacks(path, source, error, is_judged)
        contents.missing.sort(key=lambda missing: missing.path)
        absent = {missing.path: missing.why for missing in contents.missing}
        about |= {"under_way": under_way, "missing": [{"path": path, "why": why} for path, why in absent.items()]}
        archive.add(ABOUT, [_json(about)])
        archive.add(README, [readme(shown, bundled_extract, absent, templates).encode()])
        archive.add(MANIFEST, ["".join(f"{size}\t{digest}\t{path}\n" for size, digest, path in archive.added).encode()])
        archive.add(SUMS, [f"{digest}  {path}\n".encode() for _, digest, path in archive.added])
    verified = sum(result.is_verified for result in figure.results)
    return Bundled(
        len(archive.added), len(extract.attempts), under_way, verified, shown.left_out, tuple(contents.missing)
    )


def _add_inputs(contents: Contents, figure: FigureOutcome, extract: Extract) -> None:
    """Add the experiment as it is now, the profiles as recorded, and the environment of the runs."""
    name, file = figure.entry.name, figure.entry.file
    others = [(other.name, other.file) for other in with_others(figure.entry)[1:]]
    paper = file.parent / "paper.yaml"
    papers = [(f"{figure.entry.paper_folder}/paper", paper)] if paper.exists() else []
    for path, source in ((name, file), *others, *papers):
        try:
            text = source.read_text(encoding="utf-8")
        except OSError as error:
            raise ReproError(Problem(f"cannot be read ({error.strerror})", f"{source}:")) from None
        contents.add(f"experiment/{path}.yaml", masked(text, contents.secrets).encode())
    for run in extract.runs:
        contents.add(_PROFILE.format(**run), _json(anonymized(run["profile"], extract.users)))
    runs = [{name: run[name] for name in ("id", "git_commit", "git_dirty", "versions")} for run in extract.runs]
    names = ("program", "code", "image", "image_digest")
    programs = {tuple(job[name] for name in names) for job in extract.jobs}
    environment = {
        "runs": runs,
        "programs": [dict(zip(names, values, strict=True)) for values in sorted(programs, key=repr)],
        "gpus": sorted({gpu for job in extract.jobs if (gpu := job["configuration"].get("gpu"))}),
    }
    contents.add("environment.json", _json(anonymized(environment, extract.users)))


def _lines(ledger: Ledger, extract: Extract, paths: Mapping[int, Row], table: str) -> Iterator[bytes]:
    """Yield the lines of the file of a table; `paths` are the paths of attempts."""
    rows = iterations_of(ledger, extract.attempts) if table == "iterations" else extract.of(table)
    for row in rows:
        own = (
            paths[row["id"]] if table == "attempts" else {"profile": _PROFILE.format(**row)} if table == "runs" else {}
        )
        yield line_of(table, row, own, extract.users)


def _ledger_of_bundle(
    contents: Contents, figure: FigureOutcome, lines: Callable[[str], Iterable[bytes]]
) -> tuple[Ledger, Extract]:
    """Return the rows that a reader of the bundle gets: without users, and with the bundle's paths."""

    def text_of(path: str) -> str:
        return b"".join(contents.files[path]()).decode("utf-8", "replace")

    def read_back(table: str) -> Iterator[Row]:
        return (row_of(table, line) for line in lines(table))

    extract = Extract.of_tables(read_back)
    iterations = read_back("iterations") if needs_losses(figure.entry) else ()
    return memory_ledger(extract, iterations, Path(), text_of), extract


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def readme(outcome: FigureOutcome, extract: Extract, missing: Mapping[str, str], templates: Path) -> str:
    """Return the README as plain text; `missing` are paths that the bundle lacks, each with the reason."""
    argv = ["repro", "submit", outcome.entry.name, "--scale", outcome.scale, "--cluster", outcome.cluster]
    argv += ["--program", *outcome.programs] if outcome.replaced_program else []
    argv += [word for change in outcome.argument_changes for word in change.split("=", 1)]
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string((templates / "bundle_readme.txt.j2").read_text(encoding="utf-8"))
    text: str = template.render(
        outcome=outcome,
        extract=extract,
        missing=missing,
        others=[f"{name} {case}" for name, cases in compared_cases(outcome).items() for case in sorted(cases)],
        under_way=sum(row["phase"] in OPEN for row in extract.attempts),
        name=outcome.file_name(),
        submit=shlex.join([*argv, "--wait"]),
        script=SCRIPT,
    )
    return text
