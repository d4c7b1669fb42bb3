"""Identity of this machine, its boot and its processes. Host names change, and clocks of two machines differ.

A process is identified by its machine, its PID namespace, its number and its start time in clock ticks since boot.
Durations are measured by the clock since boot, which no change of the date affects.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class Location(enum.Enum):
    """Location of a recorded process, as seen from this process."""

    HERE = "here"
    REBOOTED = "rebooted"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """Machine, boot and PID namespace of a process. A field is empty if the system does not provide it.

    `machine_id` is that of machine-id(5), `boot_id` is new at each boot, `pid_namespace` is an inode number.
    """

    machine_id: str
    boot_id: str
    pid_namespace: str

    def __str__(self) -> str:
        return f"{self.machine_id}/{self.boot_id}/{self.pid_namespace}"

    @classmethod
    def parse(cls, text: str) -> MachineIdentity:
        """Return the machine that `str` printed."""
        machine_id, _, rest = text.partition("/")
        boot_id, _, pid_namespace = rest.partition("/")
        return cls(machine_id, boot_id, pid_namespace)


@cache
def this_machine_identity() -> MachineIdentity:
    """Return the machine, boot and PID namespace of this process."""
    return MachineIdentity(
        machine_id=_text_of(Path("/etc/machine-id")),
        boot_id=_text_of(Path("/proc/sys/kernel/random/boot_id")),
        pid_namespace=_pid_namespace(),
    )


def place_of(machine: str | None, host: str) -> Location:
    """Return where a process with this machine and host name belongs.

    Its processes are gone if this machine has been booted since. Without a recorded machine, the host name decides.
    """
    if not machine:
        return Location.HERE if host == socket.gethostname() else Location.ELSEWHERE
    there, here = MachineIdentity.parse(machine), this_machine_identity()
    if there.boot_id == here.boot_id:
        if not here.boot_id and host != socket.gethostname():
            return Location.ELSEWHERE
        return Location.HERE if there.pid_namespace == here.pid_namespace else Location.ELSEWHERE
    # Copies of a virtual machine may share a machine id, but not their host name as well.
    if there.machine_id and there.machine_id == here.machine_id and host == socket.gethostname():
        return Location.REBOOTED
    return Location.ELSEWHERE


def start_ticks(pid: int) -> int | None:
    """Return when this process started, in clock ticks since boot; None if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])  # proc(5): field 22


def seconds_since_boot() -> float:
    """Return the time since boot in seconds, suspended time included."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def own_start_ticks() -> int | None:
    """Return when this process started, in clock ticks since boot."""
    return start_ticks(os.getpid())


def _text_of(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().replace("/", "")
    except OSError:
        return ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""
