"""Runs Slurm commands, and reads the identity and the limits of the cluster."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

from orchestrator.errors import Problem, Unreachable

_LOGIN_NODE = "run this on a login node of the cluster"

# Variables that change what a command prints, which jobs it selects, or (scancel) whether it asks first. Variables that
# select the cluster (SLURM_CONF, SLURM_CLUSTERS) and those of sbatch (SBATCH_*) stay.
_OUTPUT_PREFIXES = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SPRIO_", "SSTAT_", "SCANCEL_")
_OUTPUT_VARIABLES = frozenset({"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SLURM_DEBUG_FLAGS"})

# Errors of a connection. Slurm prints their texts, for instance if the controller dies during a request.
_CONNECTION_ERRORS = (
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ECONNABORTED,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.EPIPE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENETRESET,
)

# Texts that clients print on stderr, in lower case.
_CONTROLLER_AWAY = (
    "unable to contact slurm controller",
    "socket timed out",
    "zero bytes were transmitted",
    "unable to establish controller machine",
    "munge encode failed",
    "protocol authentication error",
    "invalid authentication credential",
    *(os.strerror(number).lower() for number in _CONNECTION_ERRORS),
)
_ACCOUNTING_OFF = ("accounting storage is disabled", "not running a supported accounting_storage plugin")
_ACCOUNTING_AWAY = (
    "slurm_persist_conn_open",
    "sending persistinit msg",
    "problem talking to the database",
    "unable to contact slurm database",
    "database is busy or waiting for lock",
    "slurmdbd: connection",
)
_NO_CONFIGURATION = (
    "unable to process configuration file",
    "could not establish a configuration source",
    "s_p_parse_file: cannot stat file",
)


class AccountingUnreachable(Unreachable):
    """Accounting (slurmdbd) is off or does not answer; the queue itself may be fine."""


class NoAccounting(AccountingUnreachable):
    """The cluster has no accounting."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Exit code and output of a command that ran to its end."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def failure(self) -> str:
        """Message of a command that failed."""
        return last_words(self.stderr) or f"failed with exit code {self.returncode}"


_ASKED: ContextVar[str | None] = ContextVar("asked Slurm cluster", default=None)
_OF_CLUSTERS = frozenset({"squeue", "sacct", "scontrol", "scancel", "sinfo"})
"""Commands with the option --clusters."""


@contextmanager
def on_cluster(name: str | None) -> Iterator[None]:
    """Send the Slurm commands inside the block to this cluster of a site with several; None changes nothing."""
    before = _ASKED.set(name or _ASKED.get())
    try:
        yield
    finally:
        _ASKED.reset(before)


def _asked_cluster() -> str | None:
    return _ASKED.get() or os.environ.get("SLURM_CLUSTERS") or None


def run_slurm(
    argv: Sequence[str], *, timeout_s: float = 60.0, variables: Mapping[str, str] | None = None
) -> CommandResult:
    """Run a Slurm command without a shell, in the C locale, with Slurm's own output formats.

    `variables` are added to its environment. `on_cluster`, or else SLURM_CLUSTERS, selects the cluster. A command that
    ran and failed is a result, not an error. Raise AccountingUnreachable if accounting is off or does not answer. Raise
    Unreachable if the command is not on this machine, does not end within `timeout_s` seconds, or cannot reach
    slurmctld.
    """
    name, cluster = argv[0], _asked_cluster()
    if cluster is not None and name in _OF_CLUSTERS:  # sacct does not read SLURM_CLUSTERS
        argv = [name, f"--clusters={cluster}", *argv[1:]]
    try:
        done = subprocess.run(
            list(argv),
            env={**_environment(os.environ), **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        raise Unreachable(Problem(f"{name}: there is no such command on this machine", hint=_LOGIN_NODE)) from None
    except subprocess.TimeoutExpired as late:
        stderr = _decoded(late.stderr or b"")
        raise _timed_out(name, timeout_s, stderr) from None
    result = CommandResult(tuple(argv), done.returncode, _decoded(done.stdout), _decoded(done.stderr))
    if result.returncode != 0 and (unreachable := unreachable_from(name, result.stderr)):
        raise unreachable
    return result


def unreachable_from(name: str, stderr: str) -> Unreachable | None:
    """Return the error for a stderr that shows an unreachable scheduler; None for other failures."""
    text = stderr.lower()
    message = f"{name}: {last_words(stderr)}"
    if any(phrase in text for phrase in _ACCOUNTING_OFF):
        return NoAccounting(Problem(message, hint="only the queue can be asked on this cluster"))
    if any(phrase in text for phrase in _ACCOUNTING_AWAY):
        return AccountingUnreachable(Problem(message, hint="try again when slurmdbd answers"))
    if any(phrase in text for phrase in _NO_CONFIGURATION):
        return Unreachable(Problem(message, hint=f"{_LOGIN_NODE}, or set SLURM_CONF to its slurm.conf"))
    if any(phrase in text for phrase in _CONTROLLER_AWAY):
        return Unreachable(Problem(message, hint="try again when slurmctld answers; `scontrol ping` asks it"))
    return None


def last_words(stderr: str) -> str:
    """Return the last line of stderr that is not blank, without `command: error:` in front; "" if there is none."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if not lines:
        return ""
    head, mark, tail = lines[-1].partition(": error: ")
    return tail if mark and " " not in head else lines[-1]


def _timed_out(name: str, timeout_s: float, stderr: str) -> Unreachable:
    unreachable = unreachable_from(name, stderr)
    message = f"{name}: no answer within {timeout_s:g} s"
    if tail := last_words(stderr):
        message += f" ({tail})"
    hint = unreachable.problems[0].hint if unreachable else "try again when the scheduler answers"
    kind = (
        type(unreachable) if unreachable else (AccountingUnreachable if name in ("sacct", "sacctmgr") else Unreachable)
    )
    return kind(Problem(message, hint=hint))


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change the format of Slurm's output."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(_OUTPUT_PREFIXES) and name not in _OUTPUT_VARIABLES
    }
    return {**kept, "LC_ALL": "C"}


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")


_SHOW_CONFIG = ("scontrol", "show", "config")
_SETTING = re.compile(r"(\S+)\s*=[ \t]*(.*)")
DEFAULT_MAX_ARRAY_SIZE = 1001
"""MaxArraySize where the cluster does not set it (slurm.conf(5))."""


def read_settings() -> dict[str, str]:
    """Return the cluster's settings by name. Raise Unreachable if slurmctld does not answer or does not show them."""
    answer = run_slurm(_SHOW_CONFIG)
    if answer.returncode != 0:
        raise Unreachable(Problem(f"scontrol show config: {answer.failure}", hint=_LOGIN_NODE))
    return parse_settings(answer.stdout)


def settings_if_allowed() -> dict[str, str]:
    """Return the cluster's settings by name; none if the site does not show them to this user.

    Raise Unreachable if slurmctld does not answer.
    """
    return parse_settings(run_slurm(_SHOW_CONFIG).stdout)


def parse_settings(stdout: str) -> dict[str, str]:
    """Parse the output of `scontrol show config`. If a name comes twice, the first value counts."""
    settings: dict[str, str] = {}
    for line in stdout.splitlines():
        if match := _SETTING.fullmatch(line):
            settings.setdefault(match[1], match[2].strip())
    return settings


def most_in_array() -> int:
    """Return how many elements an array may have: Slurm's default if the site does not show its limit.

    MaxArraySize is one more than the largest index, so an array that counts from 0 has that many elements. Raise
    Unreachable if slurmctld does not answer.
    """
    size = settings_if_allowed().get("MaxArraySize", "")
    return max(int(size) if size.isascii() and size.isdecimal() else DEFAULT_MAX_ARRAY_SIZE, 1)


def keeps_comments(settings: Mapping[str, str]) -> bool:
    """Return whether accounting stores job comments. Slurm before 21.08 has another setting for it."""
    stored = settings.get("AccountingStoreFlags", "").lower()
    return "job_comment" in stored or settings.get("AccountingStoreJobComment", "").lower() == "yes"


def cluster_identity() -> str:
    """Return the cluster as `name@host:port` of its first controller. Raise Unreachable if slurmctld does not answer.

    Two clusters may have one name, and two may have one login node.
    """
    return _identity(os.environ.get("SLURM_CONF"), _asked_cluster())


@contextmanager
def at(identity: str | None, here: str) -> Iterator[bool]:
    """Send the Slurm commands inside the block to the cluster with this identity. Yield whether that is possible.

    `here` is the identity of the default cluster, which is used for None. Another cluster is asked by its name.
    """
    if identity in (None, here):
        yield True
        return
    with on_cluster(str(identity).partition("@")[0]):
        try:
            is_reached = cluster_identity() == identity
        except Unreachable:
            is_reached = False
        yield is_reached


@cache
def _identity(_conf: str | None, asked: str | None) -> str:
    settings = {name: value.split()[0] for name, value in read_settings().items() if value}
    name, host = settings.get("ClusterName"), settings.get("SlurmctldHost[0]") or settings.get("ControlMachine")
    if name is None or host is None:
        raise Unreachable(Problem("scontrol show config: the answer names no cluster", hint=_LOGIN_NODE))
    if asked is not None and asked.lower() != name.lower():
        raise Unreachable(Problem(f"scontrol --clusters={asked} show config: the answer is of cluster {name}"))
    return f"{name}@{host.partition('(')[0]}:{settings.get('SlurmctldPort', '')}"
