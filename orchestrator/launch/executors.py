"""submitit's executor for finished scripts, and the local queue: its start, and the state and end of its jobs.

submitit submits and parses job ids. States are read by orchestrator/slurm/command, because submitit keeps records in a
class attribute for as long as the process lives. pyproject.toml registers `SlurmScriptExecutor` as a plug-in.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from submitit.core import core, utils
from submitit.slurm.slurm import SlurmExecutor

from orchestrator.errors import Problem, ReproError, Unreachable
from orchestrator.files import private_folder, read_record, tail_bytes
from orchestrator.ledger.rows import Observation
from orchestrator.slurm.command import unreachable_from
from orchestrator.slurm.notation import phase_of

# They select the cluster and authenticate the user, also for squeue and scancel.
_WHICH_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


def clean_env_prefix() -> list[str]:
    """Return the `env` command for sbatch: variables of the shell would override lines of the script."""
    strays = [name for name in os.environ if re.match(r"(SBATCH|SLURM|PYXIS)_", name) and name not in _WHICH_CLUSTER]
    return ["env", *(f"--unset={name}" for name in sorted(strays))]


def joined_comment(own: str, of_site: str | None) -> str:
    """Return our comment of a job with that of the site, which finds its own part as before.

    In a JSON object ours is one more member, `"repro"`. Any other text follows ours after a blank.
    """
    if of_site is None or of_site == own:
        return own
    try:
        members = json.loads(of_site)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        return f"{own} {of_site}"
    return f'{of_site.rstrip().removesuffix("}")}{", " if members else ""}"repro": {json.dumps(own)}}}'


def _comment_in(script: str) -> str | None:
    """Return the comment in a script's #SBATCH lines."""
    lines = re.findall(r"^#SBATCH (--comment=.+)$", script, re.MULTILINE)
    return shlex.split(lines[-1])[0].partition("=")[2] if lines else None


class QueueFull(ReproError):
    """The scheduler accepts no more jobs of this user, account or QOS at the moment."""


class SlurmScriptExecutor(SlurmExecutor):
    """Submits a finished sbatch script. The token in the job's comment identifies it after a crash."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._text = ""
        self._options: list[str] = []
        self._arguments: tuple[str, ...] = ()
        self.cluster: str | None = None
        """Name of the cluster that accepted the last job, if sbatch printed it."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the plug-in."""
        return "slurm-script"

    @classmethod
    def affinity(cls) -> int:
        """Return the priority of the plug-in."""
        return 1  # asked for by name; never chosen over submitit's own by its automatic choice

    def submit_script(self, text: str, comment: str, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> str:
        """Submit a script, and return the scheduler's id. `options` are options of sbatch, `arguments` of the script.

        Raise ReproError with the scheduler's message, or QueueFull. Raise Unreachable if the scheduler does not answer;
        it may have accepted the job.
        """
        comment = joined_comment(comment, _comment_in(text))
        self._text, self._options, self._arguments = text, [f"--comment={comment}", *options], tuple(arguments)
        private_folder(Path(self.folder))
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it raises, too
                job: core.Job[object] = self._submit_command("")
        except utils.FailedJobError as error:
            from orchestrator.slurm.reasons import explain_rejection, is_for_want_of_room  # only for a rejection

            message = str(error) or _refusal_in(str(getattr(error.__cause__, "output", "")))
            if is_for_want_of_room(message):
                raise QueueFull(explain_rejection(message)) from None
            raise unreachable_from("sbatch", message) or ReproError(explain_rejection(message)) from None
        except utils.FailedSubmissionError as error:  # exit code 0: the job may be in the queue
            raise Unreachable(Problem(str(error), hint="`repro status` looks for it in the queue")) from None
        job_id, _, cluster = job.job_id.partition(";")
        self.cluster = cluster or None
        return job_id

    def _num_tasks(self) -> int:
        return 1  # one job object per Slurm job, whatever the number of its tasks

    def _make_submission_file_text(self, command: str, uid: str) -> str:  # noqa: ARG002  submitit's signature
        return self._text

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        # A session of its own: Ctrl-C must not end sbatch between the answer of Slurm and its output.
        command = [*clean_env_prefix(), "setsid", "--wait", "sbatch", "--parsable", *self._options]
        return [*command, str(submission_file_path), *self._arguments]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """Return the last line, `ID` or `ID;CLUSTER`; banners of the site come before it."""
        text = string if isinstance(string, str) else string.decode(errors="replace")
        lines = text.strip().splitlines()
        match = re.fullmatch(r"(\d+)(;\S+)?", lines[-1].strip()) if lines else None
        if match is None:
            raise utils.FailedSubmissionError(f"sbatch gave no job id: {' '.join(text.split())[-200:]}")
        return match[0]


def _refusal_in(stdout: str) -> str:
    """Return what a site's sbatch prints on stdout from its first error on, else the last line; banners come first."""
    lines = [line for line in map(str.strip, stdout.splitlines()) if re.search(r"\w", line)]
    errors = (at for at, line in enumerate(lines) if re.search(r"error|fail|denied|refus|invalid", line, re.IGNORECASE))
    return "\n".join(line.removeprefix("--> ") for line in lines[next(errors, -1) :])


def cancel_local(folder: Path) -> None:
    """Keep the job of a local queue in this folder from starting, or end its process group."""
    private_folder(folder)  # the folder of a repeat may not exist yet
    (folder / "cancelled").touch()
    start = read_record(folder / "start")
    if start is not None and is_alive(start.pid, str(folder)):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(start.pid, signal.SIGTERM)


def start_queue(queue: Path) -> str:
    """Start the script of a local queue in a session of its own, which outlives the terminal. Return its process id.

    It gets a ticket, a file with its host and process id. It waits until the queues with lower tickets have ended.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHELASTIC_")}
    tickets = queue.parents[2] / "local.tickets"  # of runs/RUN/submissions/NAME.queue.sh
    private_folder(tickets)
    with (tickets / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a queue reads the tickets under this lock: none without a process id
        given = [int(file.name) for file in tickets.iterdir() if file.name.isdecimal() and not _is_stale(file)]
        ticket = tickets / f"{max(given, default=0) + 1:08}"
        process = subprocess.Popen(
            ["bash", str(queue)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**environment, "REPRO_LOCAL_TICKET": str(ticket)},
        )
        ticket.write_text(f"{os.uname().nodename} {process.pid}\n")
        # The kernel shows the command line of a process after a moment. Until then the queue cannot be found.
        while process.poll() is None and not is_alive(process.pid, queue.name):
            time.sleep(0.001)
    return str(process.pid)


def _is_stale(ticket: Path) -> bool:
    """Remove the ticket of a queue of this machine that was killed; return whether it is gone."""
    try:
        host, _, pid = ticket.read_text().strip().partition(" ")
    except FileNotFoundError:  # the queue has just ended
        return True
    except IsADirectoryError:  # not of repro; its number stays taken
        return False
    if pid.isdecimal() and (host != os.uname().nodename or is_alive(int(pid), "queue.sh")):
        return False
    ticket.unlink(missing_ok=True)
    return True


TIMED_OUT = 124
"""Exit code of timeout(1)."""
NOT_STARTED = 95
"""Exit code of a script that finds its folder claimed by another job."""
_REFUSED = re.compile(rb"^repro: (not started: .+)$", re.MULTILINE)
_LONGEST_REFUSAL = 4096


def local_state(folder: Path, queue_pid: int | None, *, has_rebooted: bool = False) -> Observation:
    """Return the state of the job in `folder`, whose queue runs (or ran) as `queue_pid`.

    If the machine `has_rebooted` since, the job has no process. Each record is read before the next one, so that a job
    that changes its state meanwhile is not called lost.
    """
    queued = not has_rebooted and queue_pid is not None and is_alive(queue_pid, "queue.sh")
    start = read_record(folder / "start")
    running = not has_rebooted and start is not None and is_alive(start.pid, str(folder))
    end = read_record(folder / "end")
    cancelled = (folder / "cancelled").exists()
    began = start.at if start else None
    if end is not None:
        state, reason = "FAILED", None
        if end.exit_code == 0:
            state = "COMPLETED"
        elif cancelled:
            state, reason = "CANCELLED", "cancelled"
        elif end.exit_code == TIMED_OUT:
            state, reason = "TIMEOUT", "the time limit was reached"
        return _observation(state, reason, end.exit_code, began, end.at)
    if running:
        return _observation("RUNNING", started_at=began)
    if cancelled:
        return _observation("CANCELLED", "cancelled" if start else "cancelled before it started", started_at=began)
    if start is not None:
        why = "its process is gone and left no end record (killed, or the machine went down)"
        return _observation("NODE_FAIL", why, started_at=began)
    refused = _REFUSED.search(tail_bytes(folder, "batch.txt", _LONGEST_REFUSAL))
    if refused is not None:  # another job has claimed the folder
        return _observation("FAILED", refused[1].decode(errors="replace"), NOT_STARTED)
    if queued:
        return _observation("PENDING", "waits for the jobs before it")
    return _observation("NODE_FAIL", "its queue is gone and never started it (killed, or the machine went down)")


def is_alive(pid: int, marker: str) -> bool:
    """Return whether this process runs and has `marker` in its command line; a reused number has not."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return False
    return state != "Z" and marker.encode() in command


def _observation(
    state: str,
    reason: str | None = None,
    exit_code: int | None = None,
    started_at: datetime | None = None,
    ended_at: datetime | None = None,
) -> Observation:
    """Return a state of a local job, in Slurm's terms."""
    return Observation(
        state=state,
        phase=str(phase_of(state)),
        reason=reason,
        nodes=socket.gethostname(),
        exit_code=exit_code,
        started_at=started_at,
        ended_at=ended_at,
        seen_via="its own record" if ended_at else "its process",
    )


def find_process(marker: str) -> str | None:
    """Return the id of a process with `marker` in its command line; None if there is none."""
    processes = (folder.name for folder in Path("/proc").iterdir() if folder.name.isdecimal())
    return next((process for process in processes if is_alive(int(process), marker)), None)
