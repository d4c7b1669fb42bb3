"""States of Slurm jobs and their meaning for a user who waits.

Source: the job states and state flags of slurm.h, job_state_string() and job_state_string_complete() of
slurm_protocol_defs.c from release 20.11 to 24.11, and the "JOB STATE CODES" of squeue(1) and sacct(1). EXPEDITING is
of 25.11.
"""

from __future__ import annotations

import enum


class Phase(str, enum.Enum):
    """Phase of a job. Only `ended` allows a conclusion. An unknown state is never `ended`."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


_W, _R, _E, _U = Phase.WAITING, Phase.RUNNING, Phase.ENDED, Phase.UNKNOWN

_STATES: dict[str, tuple[Phase, str]] = {
    # in the queue
    "PENDING": (_W, "waits in the queue"),
    "CONFIGURING": (_W, "has nodes, which are being made ready"),
    "POWER_UP_NODE": (_W, "has nodes, which are being switched on"),
    "REQUEUED": (_W, "was stopped and goes back into the queue"),
    "REQUEUED_CRON": (_W, "is a line of a crontab and waits for its next time"),
    "EXPEDITING": (_W, "failed and goes back into the queue, before all others, once its nodes are checked"),
    "REQUEUE_FED": (_W, "is being queued again by the federation"),
    "REQUEUE_HOLD": (_W, "was put back into the queue and is held; `scontrol release` frees it"),
    "SPECIAL_EXIT": (_W, "ended with a special exit code, is back in the queue and held"),
    "RESV_DEL_HOLD": (_W, "is held because its reservation was deleted"),
    "LAUNCH_FAILED": (_W, "could not be launched and goes back into the queue"),
    "RECONFIG_FAIL": (_W, "its nodes could not be reconfigured; it goes back into the queue"),
    # has its nodes
    "RUNNING": (_R, "runs"),
    "COMPLETING": (_R, "is ending; some of its processes are still there"),
    "RESIZING": (_R, "runs and is changing its number of nodes"),
    "SIGNALING": (_R, "runs and is being sent a signal"),
    "STAGE_OUT": (_R, "has run and its files are being copied out"),
    "STOPPED": (_R, "is stopped by SIGSTOP and keeps its processors"),
    "SUSPENDED": (_R, "is suspended; its processors were given to other jobs"),
    "UPDATE_DB": (_R, "its record is being written to the accounting database"),
    # over
    "COMPLETED": (_E, "ended with exit code 0"),
    "FAILED": (_E, "ended with an exit code other than 0"),
    "CANCELLED": (_E, "was cancelled by a user or an administrator"),
    "TIMEOUT": (_E, "reached its time limit"),
    "DEADLINE": (_E, "could not end before its deadline"),
    "OUT_OF_MEMORY": (_E, "ran out of memory"),
    "NODE_FAIL": (_E, "lost a node"),
    "BOOT_FAIL": (_E, "its nodes did not boot"),
    "PREEMPTED": (_E, "was preempted by a job of higher priority"),
    # The job runs, or ran, on another cluster, which alone can say how it ended.
    "REVOKED": (_U, "was started by another cluster of the federation"),
}

STATES = tuple(_STATES)
"""Names of the states of Slurm jobs."""

_MAY_RUN_AGAIN = frozenset({"NODE_FAIL", "PREEMPTED", "BOOT_FAIL"})


def base_state(text: str) -> str:
    """Return the bare state: CANCELLED for `CANCELLED by 1000` and `CANCELLED+`, OUT_OF_MEMORY for `OUT_OF_ME+`.

    A word that is not known comes back as it is, in capitals; "" stays "".
    """
    parts = text.split()
    if not parts:
        return ""
    word = parts[0].upper()
    if not word.endswith("+"):
        return word
    # sacct cuts a word that is too long for its column, and marks the cut with a plus.
    stem = word.rstrip("+")
    longer = [state for state in _STATES if state.startswith(stem)]
    return longer[0] if stem and stem not in _STATES and len(longer) == 1 else stem


def phase_of(state: str) -> Phase:
    """Return the phase of a state in any form that squeue and sacct print; `unknown` for an unknown state."""
    return _STATES.get(base_state(state), (Phase.UNKNOWN, ""))[0]


def meaning_of(state: str) -> str:
    """One line that completes "the job ..."; says so when the word is not known."""
    entry = _STATES.get(base_state(state))
    return entry[1] if entry else f"is in an unknown state: {state.strip() or 'none'}"


def may_run_again(state: str) -> bool:
    """Return whether Slurm itself puts jobs with this end back into the queue, so that one such row proves little."""
    return base_state(state) in _MAY_RUN_AGAIN
