"""Records of a run: its contents in the ledger, and its scripts and submissions in its folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import orchestrator
from orchestrator.clusters.resolve import Cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder, read_job_file
from orchestrator.identity import own_start_ticks, read_own_file, require_own_folder, this_machine_identity, user_name
from orchestrator.job_spec import JobSpec
from orchestrator.launch.preflight import git_output
from orchestrator.ledger.database import Ledger, now
from orchestrator.ledger.rows import AttemptRow
from orchestrator.ledger.runs import NewJob, NewRun, Provenance, Submitter
from orchestrator.ledger.tables import SUBMITTING, SchedulerKind, field_values
from orchestrator.masking import hidden_values, secret_values, without_known
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, job_spec

_PACKAGES = ("submitit", "pydantic", "jinja2", "sqlalchemy", "torch", "megatron-core")


def this_submitter() -> Submitter:
    """Return this process as the submitter of the attempts that it claims."""
    return Submitter(socket.gethostname(), user_name(), os.getpid(), str(this_machine_identity()), own_start_ticks())


def provenance(checkout: Path) -> Provenance:
    """Return who submits from which code; `checkout` is the folder of the experiments and profiles."""
    commit = git_output(checkout, "rev-parse", "HEAD")
    status = git_output(checkout, "status", "--porcelain", "--untracked-files=no") if commit else None
    versions: dict[str, object] = {"repro": orchestrator.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return Provenance(
        **field_values(this_submitter()),
        git_commit=commit,
        git_dirty=None if status is None else bool(status),
        versions=versions,
    )


def profile_secrets(cluster: Cluster) -> frozenset[str]:
    """Return the values of variables with a secret's name, from `environment:` and, by `env_from:`, from this shell."""
    values: set[str] = set()
    for name, value in cluster.layered.mapping("environment").items():
        for text in _texts(value):
            values |= secret_values({str(name): text})
    for text in _texts(cluster.layered.value):
        values |= hidden_values(text)
    shell_values = {name: os.environ[name] for name in cluster.profile.env_from if name in os.environ}
    return frozenset(values | secret_values(shell_values))


def _texts(value: object) -> Iterator[str]:
    """Yield every text in JSON-like data except conditions on jobs (`when`)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "when":
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def new_run_of(
    run_id: str, plans: Sequence[Plan], cluster: Cluster, folders: Folders, command: Sequence[str]
) -> NewRun:
    """Return the run for the ledger, without the values of the profile's secrets."""
    case, secret = plans[0].case, profile_secrets(cluster)
    profile = cluster.layered.value | {"hardware": cluster.hardware.model_dump(exclude_none=True)}
    return NewRun(
        **field_values(provenance(folders.shipped)),
        id=run_id,
        experiment=case.experiment,
        scale=case.scale,
        cluster=cluster.name,
        command=without_known(command, secret),
        profile=without_known(profile, secret),
        profile_file=str(cluster.file.absolute()),
    )


def new_jobs(plans: Sequence[Plan], cluster: Cluster) -> list[NewJob]:
    """Return the jobs of a run for the ledger, without the values of the profile's secrets."""
    by_case = {plan.case.name: plan for plan in plans}  # repeats of a case have one configuration
    secret = profile_secrets(cluster)
    specs = {name: without_known(job_spec(plan, cluster).to_json(), secret) for name, plan in by_case.items()}
    return [
        NewJob(
            id=plan.identity,
            case_name=plan.case.name,
            cluster=cluster.name,
            program=plan.case.program,
            code=plan.program.code,
            image=plan.program.image,
            image_digest=plan.program.image_digest,
            spec=JobSpec.from_json(specs[plan.case.name]),
            gpus=plan.case.gpus,
            iterations=plan.case.iterations,
            scheduler="slurm" if cluster.is_slurm else "local",
            repeat=plan.repeat,
        )
        for plan in plans
    ]


def new_run_id() -> str:
    """Return a new run id. Ids sort by time, and two runs of one second differ."""
    return f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


JOB_SCRIPT = "job.sh"
_SEVERAL = re.compile(r"([0-9a-f]{64})\.(?:array|queue)\.sh")
"""Names of array and queue files: the digest of their text."""
_OPTION = re.compile(r"--exclude=[A-Za-z0-9_.,\[\]-]+|--begin=now\+[0-9]+")
"""Options of sbatch that an attempt can have. Others could run a program, as `--export=ALL,LD_PRELOAD=...` does."""
_FIRST, _LAST = "\njobs=( # script and folder\n", "\n)\n"


@dataclass(frozen=True, slots=True)
class OwnScript:
    """Script that was read and checked. `arguments` are its command line arguments."""

    file: Path
    text: str
    arguments: tuple[str, ...]


def file_name(text: str, kind: str) -> str:
    """Return the name of an array or queue file with this text: the digest in it shows a later change."""
    return f"{_sha256(text.encode())}.{kind}.sh"


def read_own_script(ledger: Ledger, attempts: Sequence[AttemptRow]) -> OwnScript:
    """Return the file that these attempts share; ReproError where it must not run as the current user."""
    foreign = next((attempt for attempt in attempts if not ledger.is_own(attempt.user)), None)
    if foreign is not None:
        owner = foreign.user or "an unknown user"
        raise _refused(Path(foreign.file), f"is a script of {owner}")
    for attempt in attempts:
        for option in attempt.options:
            if not _OPTION.fullmatch(option):
                raise _refused(Path(attempt.file), f"has the unknown option {option!r}")
    file = Path(attempts[0].file)
    if file.name == JOB_SCRIPT and len(attempts) == 1 and attempts[0].array_index is None:
        text = _text(file, ledger, attempts[0].script_sha256)
        _require_folder(file, str(file.parent), attempts[0])
        # The folder as an argument marks a submitted script: a second copy of it does not start.
        return OwnScript(file, text, (attempts[0].folder,))
    name = _SEVERAL.fullmatch(file.name)
    if name is None or file.parent.name != SUBMISSIONS:
        read_own_file(file, ledger.runs)  # a file of another user is refused as such
        raise _refused(file, "is not a script that repro writes for a scheduler")
    text = _text(file, ledger, name[1])
    _require_elements(ledger, file, text, attempts)
    return OwnScript(file, text, ())


def _require_elements(ledger: Ledger, file: Path, text: str, attempts: Sequence[AttemptRow]) -> None:
    """Raise ReproError unless each attempt has its folder in the list of jobs, and its script there is unchanged."""
    try:
        words = shlex.split(text.partition(_FIRST)[2].partition(_LAST)[0])
    except ValueError:  # an open quote
        words = []
    jobs = list(zip(words[::2], words[1::2], strict=False))
    checked: set[tuple[str, str]] = set()
    for attempt in attempts:
        if attempt.array_index is None or not 0 <= attempt.array_index < len(jobs):
            raise _refused(file, f"has no element {attempt.array_index}")
        script, folder = jobs[attempt.array_index]
        _require_folder(file, folder, attempt)
        require_own_folder(Path(folder), ledger.runs)
        if (script, attempt.script_sha256) not in checked:  # repeats share a script
            _text(Path(script), ledger, attempt.script_sha256)
            checked.add((script, attempt.script_sha256))


def _require_folder(file: Path, folder: str, attempt: AttemptRow) -> None:
    if folder != attempt.folder:
        raise _refused(file, f"writes to {folder}, and the ledger contains {attempt.folder}")


def _text(file: Path, ledger: Ledger, digest: str) -> str:
    """Return the text of a file of the current user; ReproError if it is not that with this digest."""
    read = read_own_file(file, ledger.runs)
    if _sha256(read) != digest:
        raise _refused(file, "was changed after it was written")
    try:
        return read.decode()
    except UnicodeDecodeError:
        raise _refused(file, "is not UTF-8 text") from None


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _refused(file: Path, why: str) -> ReproError:
    return ReproError(Problem(f"{why}, so it is not run", f"{file}:", "run repro submit again to write a new script"))


COMMENT = "repro:"
"""Start of the comment of a Slurm job; the token follows."""

SUBMISSIONS, _SUFFIX = "submissions", ".sent"


def write_sent(run: Path, attempts: Sequence[AttemptRow], token: str) -> None:
    """Write the record of a submission before the scheduler is called; ReproError if that fails."""
    lines = [
        f"token={token}",
        f"scheduler={attempts[0].scheduler}",
        f"host={socket.gethostname()}",
        f"file={Path(attempts[0].file).name}",
    ]
    for attempt in attempts:
        element = "-" if attempt.array_index is None else attempt.array_index
        lines.append(f"job={attempt.job_id} {element} {Path(attempt.folder).name}")
    write_own_file(run / SUBMISSIONS / f"{token}{_SUFFIX}", "\n".join(lines) + "\n", os.O_EXCL, 0o640)


def write_own_file(path: Path, text: str, flag: int, mode: int) -> None:
    """Write a file of a run with this mode and this further flag of open(2); ReproError if that fails."""
    try:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flag, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ReproError(Problem(f"cannot be written ({error.strerror})", f"{path}:")) from None


def sent_of_run(run: Path) -> Iterator[AttemptRow]:
    """Yield the attempts that the records of submissions in a run folder contain; nothing if it cannot be read."""
    try:
        files = sorted(path for path in (run / SUBMISSIONS).iterdir() if path.name.endswith(_SUFFIX))
    except OSError:
        return
    for file in files:
        try:
            text = (read_job_file(file.parent, file.name) or b"").decode()
            yield from list(_sent(run, text))
        except (ReproError, KeyError, ValueError):
            continue


def _sent(run: Path, text: str) -> Iterator[AttemptRow]:
    """Yield the attempts of a record; KeyError or ValueError if it is damaged."""
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line]
    fields = {name: value for name, value in pairs if name != "job"}
    scheduler: SchedulerKind = "slurm" if fields["scheduler"] == "slurm" else "local"
    for job_id, element, folder in (value.split(" ", 2) for name, value in pairs if name == "job"):
        if "/" in folder or folder in ("", ".", ".."):
            raise ValueError(folder)
        yield AttemptRow(
            attempt_id=0,
            number=0,
            job_id=job_id,
            run_id=run.name,
            scheduler=scheduler,
            host=fields["host"],
            token=fields["token"],
            file=fields["file"],
            array_index=None if element == "-" else int(element),
            state="SUBMITTING",
            phase=SUBMITTING,
            folder=str(run / folder),
            created_at=now(),
        )
