"""Job that sends the message about a figure after its last job, also if no command waits for the jobs.

It is a job of Slurm with a dependency on the jobs of the figure. On this machine it is a process that waits for the
end of the queue. It runs `repro wait`. URLs are passed in its environment, and are not in its script.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clusters.resolve import Cluster
from orchestrator.config.user import NOTIFY_VARIABLE, Address
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.files import private_folder
from orchestrator.job_spec import Resources
from orchestrator.launch.directives import directive, free_directives, output_pattern, placement, slurm_of
from orchestrator.launch.executors import SlurmScriptExecutor
from orchestrator.launch.templates import Line, templates_in
from orchestrator.ledger.database import Ledger, sqlite_file
from orchestrator.ledger.locks import file_system_of
from orchestrator.ledger.rows import JobRow
from orchestrator.paths import CONFIG_VARIABLE, DATABASE_VARIABLE, Folders, short_name, user_config_file
from orchestrator.slurm.notation import base_id

TIME_LIMIT = "0:10:00"
LONGEST_WAIT = "5m"
"""Time for which the job waits for the scheduler's answer about jobs that have ended."""
DELAY_S = 30
"""More than the interval in which a command that waits asks the scheduler."""
QUEUE_POLL_S = 5


@dataclass(frozen=True, slots=True)
class Figure:
    """Jobs that one message is about. `program` is the program that runs instead of the experiment's own, if any."""

    experiment: str
    scale: str
    cluster: str
    program: str | None = None

    @property
    def wait_words(self) -> tuple[str, ...]:
        """Return the arguments of `repro wait` that select the jobs."""
        program = ("--workload", self.program) if self.program else ()
        return (self.experiment, "--scale", self.scale, "--cluster", self.cluster, *program)


def submit_notify_job(
    figure: Figure,
    rows: Sequence[JobRow],
    cluster: Cluster,
    ledger: Ledger,
    folders: Folders,
    run_id: str,
    addresses: Sequence[Address],
) -> str:
    """Submit the job, or start the process, that sends the message after these open jobs; return its id.

    ReproError if the site does not allow it, or the scheduler refuses it.
    """
    script = render_notify_job(figure, rows, cluster, ledger, folders, run_id, addresses)
    file = notify_folder(folders, run_id) / "notify.sh"
    private_folder(file.parent)
    file.write_text(script, encoding="utf-8")
    file.chmod(0o750)
    variables = _secret_variables(ledger, addresses)
    if cluster.is_slurm:
        with _environment(variables):
            return SlurmScriptExecutor(file.parent).submit_script(script, f"repro-notify:{run_id}")
    with (file.parent / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            ["bash", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **variables},
        )
    return str(process.pid)


def render_notify_job(
    figure: Figure,
    rows: Sequence[JobRow],
    cluster: Cluster,
    ledger: Ledger,
    folders: Folders,
    run_id: str,
    addresses: Sequence[Address],
) -> str:
    """Return the script; ReproError with why the site does not allow it."""
    ids = sorted({base_id(row.scheduler_id) for row in rows if row.scheduler_id}, key=int)
    if not ids:
        raise ReproError("its jobs are not in the queue yet")
    variables, configuration, file = _secret_variables(ledger, addresses), user_config_file(), sqlite_file(ledger.url)
    repro = Path(sys.executable).with_name("repro")
    if cluster.is_slurm:
        seen = [repro, folders.home, *([file] if file else [])]
        if NOTIFY_VARIABLE not in variables and configuration is not None:
            seen.append(configuration)
        _require_site(cluster, seen, variables)
    database = ("--database", str(file)) if file is not None else ()
    return templates_in(folders.templates).render(
        "notify.sh.j2",
        directives=_directives(figure, ids, cluster, notify_folder(folders, run_id)) if cluster.is_slurm else [],
        figure=f"{figure.experiment} at scale {figure.scale} on {figure.cluster}",
        source="the variable REPRO_NOTIFY" if NOTIFY_VARIABLE in variables else f"notify: in {configuration}",
        has_addresses=NOTIFY_VARIABLE in variables,
        has_database=DATABASE_VARIABLE in variables,
        home=str(folders.home),
        configuration=str(configuration.absolute()) if configuration and os.environ.get(CONFIG_VARIABLE) else None,
        repro=str(repro),
        folder=str(folders.home),
        queues=[] if cluster.is_slurm else ids,
        queue_poll_s=QUEUE_POLL_S,
        delay_s=DELAY_S,
        words=Line((*figure.wait_words, *database, "--timeout", LONGEST_WAIT), ""),
    )


def notify_folder(folders: Folders, run_id: str) -> Path:
    """Return the folder of the script and its log."""
    return folders.job(run_id, "notify")


def _secret_variables(ledger: Ledger, addresses: Sequence[Address]) -> dict[str, str]:
    """Return the variables that the job gets and no file contains: URLs that are not in the configuration."""
    variables: dict[str, str] = {}
    configured = user_config_file()
    if configured is None or not all(address.origin.startswith(f"{shown(configured)}:") for address in addresses):
        variables[NOTIFY_VARIABLE] = " ".join(address.url for address in addresses)
    if sqlite_file(ledger.url) is None:
        variables[DATABASE_VARIABLE] = ledger.url.render_as_string(hide_password=False)
    return variables


def _require_site(cluster: Cluster, seen: Sequence[Path], variables: Mapping[str, str]) -> None:
    """Raise ReproError if a job of this site cannot run `repro`, or cannot reach a message service."""
    site, slurm = cluster.profile.site, slurm_of(cluster)
    if site.notify_job is False:
        raise ReproError(Problem("the profile has notify_job: false", cluster.location(("site", "notify_job"))))
    if not seen[0].exists():
        raise ReproError(f"there is no {seen[0]}")
    exports = [word.partition("=")[2] for word in slurm.sbatch if word.startswith("--export=")]
    missing = [name for name in variables if exports and not {"ALL", name} & set(exports[-1].split(","))]
    if missing:
        location = cluster.location(("slurm", "sbatch"))
        raise ReproError(Problem(f"--export does not pass {' and '.join(missing)} to jobs", location, "add it there"))
    if refusals := slurm.refusals(1, 0, TIME_LIMIT):
        raise ReproError(Problem(f"a job of {TIME_LIMIT} {refusals[0]}", cluster.location(("slurm",))))
    if site.notify_job:
        return
    hint = "set site: notify_job: true if they do"
    if site.offline_nodes:
        what = "compute nodes reach no message service"
        raise ReproError(Problem(what, cluster.location(("site", "offline_nodes")), hint))
    for path in seen:
        system = file_system_of(path if path.is_dir() else path.parent)
        if system is not None and system.is_local:
            raise ReproError(Problem(f"{path} is on a file system that nodes may not see, {system}", hint=hint))


def _directives(figure: Figure, ids: Sequence[str], cluster: Cluster, folder: Path) -> list[Line]:
    """Return the #SBATCH lines: one task without a GPU, after the last of these jobs."""
    return [
        directive("job-name", f"repro-notify-{short_name(figure.experiment)}"),
        *placement(cluster, Resources(1, 1, 0, TIME_LIMIT)),
        *(directive("nodes", "1"), directive("ntasks", "1"), directive("time", TIME_LIMIT), Line.of("--no-requeue")),
        directive("dependency", f"afterany:{':'.join(ids)}"),
        *free_directives(cluster),
        directive("output", output_pattern(folder / "log.txt")),
    ]


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables for sbatch, which passes them to the job. On its command line every user could read them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
