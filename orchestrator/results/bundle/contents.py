"""Contents of a bundle: scripts, logs, records and README; and the files that are missing."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orchestrator
from orchestrator.catalog.library import Entry
from orchestrator.errors import Problem, ReproError
from orchestrator.files import open_job_file, read_job_file
from orchestrator.ledger.attempts import job_rows
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.measurements import file_offsets
from orchestrator.ledger.reports import run_summaries, script_texts
from orchestrator.ledger.tables import ENDED, NEVER_SUBMITTED, OPEN, VERIFIED
from orchestrator.masking import hidden_values, masked
from orchestrator.reading.logs import decompressed, is_compressed, job_secrets, log_files
from orchestrator.results.bundle.extract import Extract, Row, attempt_folders, masked_blocks, masked_bytes
from orchestrator.results.outcome import FigureOutcome, outcome_of
from orchestrator.results.regression import in_order_of_runs

SCRIPT = "job.sh"
_RECORDS = re.compile(r"start|end|cancelled|claimed|sampler\.txt|gpus\.[A-Za-z0-9._-]{1,200}\.csv")
"""What a job's folder has beside logs. Nothing else is taken along: what a program leaves may hold anything."""

_PACKED = re.compile(r"\.(?:gz|zst)$")
"""A log that was packed after the job is read as what is in it, and is that here."""
_PIECE_BYTES = 1 << 20


def bundle_name(outcome: FigureOutcome) -> str:
    """Return the name of a bundle and of the folder in it: `figure-13-cpu-local`, with the program if not the own."""
    program = outcome.workloads if outcome.replaced_workload else []
    name = "-".join([outcome.entry.short_name, outcome.scale, outcome.cluster, *program])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")


def submit_command(outcome: FigureOutcome) -> str:
    """Return the command that runs the experiment again."""
    argv = ["repro", "submit", outcome.entry.name, "--scale", outcome.scale, "--cluster", outcome.cluster]
    program = ["--workload", *outcome.workloads] if outcome.replaced_workload else []
    return shlex.join([*argv, *program, "--wait"])


@dataclass(frozen=True, slots=True)
class MissingFile:
    """A file of the bundle that is missing; `is_fault` if a verdict depends on it."""

    path: str
    place: Path
    why: str
    is_fault: bool


@dataclass(slots=True)
class Contents:
    """Files of a bundle by path; each is read, without secrets, when its bytes are requested."""

    files: dict[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    places: dict[str, tuple[Path, bool]] = field(default_factory=dict)
    """Of those that are read from elsewhere: from where, and whether a verdict stands on it."""
    missing: list[MissingFile] = field(default_factory=list)
    secrets: frozenset[str] = frozenset()
    """Values that are masked wherever they occur."""

    def add(self, path: str, text: bytes) -> None:
        """Add a text without secrets."""
        self.files[path] = lambda: (text,)

    def add_file(self, path: str, folder: Path, name: str, is_judged: bool) -> None:
        """Add a file of a job folder; it is read later."""
        self.files[path] = lambda: _blocks(
            folder, name, self.secrets, lambda what: self.lacks(path, folder / name, what)
        )
        self.places[path] = folder / name, is_judged

    def lacks(self, path: str, place: Path, why: str | ReproError, is_fault: bool = False) -> None:
        """Record a missing file with the reason, without the path on this machine."""
        if isinstance(why, ReproError):
            why = why.problems[0].what.removeprefix(f"{place}: ").replace(str(place.parent), "its folder")
        self.missing.append(MissingFile(path, place, why, is_fault))


def add_attempts(contents: Contents, extract: Extract, ledger: Ledger) -> dict[int, Row]:
    """Add scripts, logs and records of every attempt; return the paths in the bundle by attempt."""
    folders = attempt_folders(extract)
    texts = script_texts(ledger, {row["script_sha256"] for row in extract.attempts})
    contents.secrets |= secrets_of(extract, texts.values())
    read = file_offsets(ledger, list(folders))
    paths: dict[int, Row] = {}
    now_in = ledger.run_folders()
    for recorded in extract.attempts:
        row = {**recorded, "folder": now_in.current(recorded["folder"])}
        row["file"] = now_in.current(row["file"]) if row["file"] is not None else None
        folder = folders[row["id"]]
        script = _add_script(contents, row, folder, texts)
        _add_logs(contents, row, folder, read.get(row["id"], {}))
        paths[row["id"]] = {"folder": folder, "script": script, "file": _add_submission(contents, row, script)}
    return paths


def secrets_of(extract: Extract, scripts: Iterable[str]) -> frozenset[str]:
    """Return the values that the jobs' scripts give to secret names, as they ran and as the ledger has them."""
    found = [job_secrets(Path(row["folder"])) for row in extract.attempts]
    return frozenset().union(*found, *map(hidden_values, scripts))


def _add_script(contents: Contents, row: Row, folder: str, texts: Mapping[str, str]) -> str | None:
    """Add the script from the ledger, which nobody can have changed, else from the job folder."""
    path, text = f"{folder}/{SCRIPT}", texts.get(row["script_sha256"])
    if text is not None:
        contents.add(path, masked(text, contents.secrets).encode())
        return path
    return path if _add_text(contents, path, Path(row["folder"]), SCRIPT) else None


def _add_submission(contents: Contents, row: Row, script: str | None) -> str | None:
    """Add the file that the scheduler received: the script, or the script of an array or queue."""
    if row["file"] is None:
        return None
    file = Path(row["file"])
    if file == Path(row["folder"]) / SCRIPT:
        return script
    path = f"runs/{row['run_id']}/submissions/{file.name}"
    beside = Path(row["folder"]).parent / "submissions"
    if file.parent != beside or not file.name.endswith((".array.sh", ".queue.sh")):
        contents.lacks(path, file, "is no file of its run")
        return None
    return path if path in contents.files or _add_text(contents, path, file.parent, file.name) else None


def _add_text(contents: Contents, path: str, folder: Path, name: str) -> bool:
    try:
        text = read_job_file(folder, name)
    except ReproError as error:
        contents.lacks(path, folder / name, error)
        return False
    if text is None:
        contents.lacks(path, folder / name, "is gone")
        return False
    contents.add(path, masked_bytes(text, contents.secrets))
    return True


def _add_logs(contents: Contents, row: Row, path: str, read: Collection[str]) -> None:
    """Add the logs and records of an attempt; `read` are the logs that were read when it was judged."""
    if row["state"] == NEVER_SUBMITTED or (row["phase"] in OPEN and row["started_at"] is None):
        return
    folder, is_judged = Path(row["folder"]), row["verdict"] is not None
    try:
        logs = [log.name for log in log_files(folder)]
        records = [path.name for path in folder.iterdir() if _RECORDS.fullmatch(path.name)]
    except FileNotFoundError:
        logs, records = [], []
    except ReproError as error:
        contents.lacks(path, folder, error, is_judged)
        return
    except OSError as error:
        contents.lacks(path, folder, f"cannot be read ({error.strerror})", is_judged)
        return
    for name in [*logs, *records]:
        contents.add_file(f"{path}/{_PACKED.sub('', name)}", folder, name, is_judged)
    known = {_PACKED.sub("", name) for name in read}
    for name in sorted(known - {_PACKED.sub("", name) for name in logs}):
        contents.lacks(f"{path}/{name}", folder / name, "is gone", is_judged)
    if not logs and not known and row["phase"] == ENDED:
        had_one = row["verdict"] == VERIFIED or row["iteration"] is not None
        contents.lacks(f"{path}/log.txt", folder / "log.txt", "is gone" if had_one else "there is none", had_one)


def _blocks(folder: Path, name: str, secrets: Collection[str], complain: Callable[[str], None]) -> Iterator[bytes]:
    """Yield a file, decompressed and without secrets."""
    file = open_job_file(folder, name)
    if file is None:
        raise ReproError(Problem(f"{folder / name}: is gone"))
    with file:
        try:
            plain = iter(lambda: file.read(_PIECE_BYTES), b"")
            yield from masked_blocks(decompressed(file, complain) if is_compressed(file) else plain, secrets)
        except OSError as error:
            raise ReproError(Problem(f"{folder / name}: cannot be read ({error.strerror})")) from None


REPORT, README = "report.html", "README.txt"


def stored_outcome(ledger: Ledger, entry: Entry, scale: str) -> FigureOutcome:
    """Return the outcome of a bundle's experiment from the ledger that contains the bundle's rows."""
    rows = [row for row in job_rows(ledger, experiment=entry.name) if row.scale == scale]
    if not rows:
        raise ReproError(Problem(f"no job of {entry.name} at scale {scale}", "ledger/:"))
    return outcome_of(ledger, entry, rows, in_order_of_runs(rows, run_summaries(ledger))[-1])


def code_sha256(templates: Path) -> str:
    """Return the digest of this program's code and of the report's templates: equal where they render the same."""
    package = Path(orchestrator.__file__).parent
    files = [path for path in package.rglob("*.py") if "shipped" not in path.relative_to(package).parts]
    digest = hashlib.sha256()
    for root, paths in ((package, files), (templates, templates.glob("report.*"))):
        for path in sorted(paths):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(text)}\n".encode() + text)
    return digest.hexdigest()


_CONTENTS = (
    ("results/", "a row per case as CSV and JSON, and the verdict of each claim"),
    ("report.html", "the results as a page, with their provenance; for any browser"),
    ("experiment/", "the figure as a program: cases, axes, published numbers and claims, with their sources"),
    ("jobs/", "script, logs, start and end records of each attempt of each job"),
    ("runs/", "for each `repro submit`: the cluster profile, and the files that the scheduler received"),
    ("ledger/", "the recorded rows: a file per table, a line of JSON per row"),
    ("environment.json", "versions, commits, images"),
    ("MANIFEST", "bytes, SHA-256 and path of each file"),
)


def readme(outcome: FigureOutcome, extract: Extract, missing: Mapping[str, str]) -> str:
    """Return the README as plain text; `missing` are paths that the bundle lacks, each with the reason."""
    entry, scale, cluster = outcome.entry, outcome.scale, outcome.cluster
    under_way = sum(row["phase"] in OPEN for row in extract.attempts)
    text = [
        f"{entry.paper.title} ({entry.paper.venue})",
        f"{entry.experiment.figure}: {entry.experiment.title}",
        "",
        f"Scale {scale} on {cluster}: {len(extract.attempts)} attempts of {len(extract.jobs)} jobs.",
    ]
    text += [f"Not final: {under_way} attempts were still under way."] if under_way else []
    text += ["", "To check the bundle without a cluster, a ledger or a network:", ""]
    text += [f"    repro bundle verify {bundle_name(outcome)}.tar.zst", "    sha256sum --check SHA256SUMS", ""]
    text += [
        "The first command reads every number from the logs, judges the claims, renders this page and the report, and",
        "compares the results with the bundle. The second command compares each file in this folder with its checksum.",
        "Neither proves who made the bundle: a signature does (--allowed-signers).",
    ]
    text += ["", "To run everything again, or one job by hand:", "", f"    {submit_command(outcome)}"]
    text += [*_by_hand(extract), ""]
    text += [f"On a cluster other than {cluster}, give another --cluster and change the paths in the script."]
    text += ["", "Contents:", "", *(f"    {path:<18}{what}" for path, what in _CONTENTS), ""]
    text += [
        "Scripts and logs are as they ran, with *** in place of secrets; script_sha256 is the digest of the script",
        "before. Times are UTC. The bundle leaves out who submitted; logs may still contain a user's folder.",
    ]
    if missing:
        text += ["", "MissingFile files:", "", *(f"    {path}: {why}" for path, why in missing.items())]
    return "\n".join(text) + "\n"


def _by_hand(extract: Extract) -> list[str]:
    """Return the command that runs the last script by hand."""
    if not extract.attempts:
        return []
    row = extract.attempts[-1]
    starts = "sbatch" if row["scheduler"] == "slurm" else "bash"
    return [f"    {starts} {row['folder']}/{SCRIPT} FOLDER   # its log goes there"]
