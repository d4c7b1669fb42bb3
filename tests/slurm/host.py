"""What a cluster needs of the machine it stands on: packages, ports, host names, devices, daemons with a pid file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTS_FILE = Path("/etc/hosts")


class ClusterUnavailable(Exception):
    """No Slurm cluster can be had on this machine; the message is the reason, one line."""


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; raise ClusterUnavailable with its last words when it fails or hangs."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            env=env,
            cwd=cwd,
            timeout=timeout_s,
            text=True,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise ClusterUnavailable(f"{argv[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise ClusterUnavailable(f"{argv[0]} did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        raise ClusterUnavailable(f"{argv[0]} failed ({done.returncode}): {last_line(done.stderr or done.stdout)}")
    return done


def last_line(text: str) -> str:
    """The last line that says something, or ""."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


_BUSY = 10


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Return once the condition holds. Raise ClusterUnavailable, naming `what`, if it does not in ten times the seconds
    that an idle machine needs at most.
    """
    limit_s = _BUSY * seconds
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise ClusterUnavailable(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.05)


# ---- packages ------------------------------------------------------------------------------------------------


def require_root() -> None:
    """Raise ClusterUnavailable unless daemons can be run as root here."""
    if os.geteuid() != 0:
        raise ClusterUnavailable("a Slurm cluster can only be brought up as root")


def require_root_on_debian() -> None:
    """Raise ClusterUnavailable unless packages can be installed and daemons run as root here."""
    require_root()
    if shutil.which("apt-get") is None:
        raise ClusterUnavailable("a Slurm cluster can only be brought up on Debian or Ubuntu (there is no apt-get)")


def install_packages(packages: Iterable[str]) -> None:
    """Install those packages that are missing, from the package lists at hand first, else after an update."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt: tuple[str, ...] = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300")
    install = [*apt, "install", "-y", "--no-install-recommends", *missing]
    try:
        run(install, env=env, timeout_s=600)
    except ClusterUnavailable:
        run([*apt, "update"], env=env, timeout_s=300)
        run(install, env=env, timeout_s=600)


def _is_installed(package: str) -> bool:
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f=${db:Status-Status}", package], capture_output=True, text=True, check=False
    )
    return asked.stdout == "installed"


# ---- network -------------------------------------------------------------------------------------------------


def free_ports(count: int) -> int:
    """The first of `count` free TCP ports in a row, below the range that outgoing connections take theirs from."""
    for _ in range(200):
        first = random.randrange(12_000, 32_000 - count)
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return first
    raise ClusterUnavailable(f"no {count} free TCP ports in a row")


def own_name() -> str:
    """This machine's name, without a domain."""
    return socket.gethostname().split(".")[0]


def nameless(tag: str) -> list[str]:
    """What of this machine's names, with and without a domain, has no address but by a line with the tag."""
    lines = HOSTS_FILE.read_text(encoding="utf-8").splitlines()
    tagged = {word for line in lines if line.endswith(f"# {tag}") for word in line.split()}
    names = dict.fromkeys((socket.gethostname(), own_name()))
    return [name for name in names if name in tagged or not _resolves(name)]


def _resolves(name: str) -> bool:
    try:
        socket.gethostbyname(name)
    except OSError:
        return False
    return True


def needs_ipv6() -> bool:
    """Whether this machine has no address but 127.0.0.1.

    The C library then knows no IPv4 address of any name, itself included, when it is asked as Slurm asks it; when asked
    for either kind, it does.
    """
    try:
        socket.getaddrinfo("127.0.0.1", 0, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return True
    return False


def name_hosts(names: Sequence[str], tag: str) -> None:
    """Make the names resolve to this machine; each line carries the tag, `names=()` removes what has it."""
    if not names and f"# {tag}\n" not in HOSTS_FILE.read_text(encoding="utf-8"):
        return
    # In place, not by rename: inside a container /etc/hosts is a mount.
    with HOSTS_FILE.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = [line for line in file.read().splitlines() if not line.endswith(f"# {tag}")]
        for start in range(0, len(names), 20):
            lines.append(f"127.0.0.1 {' '.join(names[start : start + 20])} # {tag}")
        file.seek(0)
        file.write("\n".join(lines) + "\n")
        file.truncate()


# ---- devices --------------------------------------------------------------------------------------------------


def make_device(path: Path) -> None:
    """A device like /dev/null; where the machine forbids that, a file, and jobs get no CUDA_VISIBLE_DEVICES."""
    if path.is_char_device():
        return
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()
    path.chmod(0o666)


def gpu_devices() -> list[Path]:
    """The device files of this machine's own GPUs, by their numbers; in a container they need not begin at 0."""
    found = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("nvidia")))


def link_devices(folder: Path, count: int) -> None:
    """nvidia0, nvidia1, ... in the folder are this machine's GPUs, numbered as CUDA numbers those it can open.

    A driver that has fewer device files than GPUs gets made ones for the rest: Slurm takes the numbers from them.
    """
    devices = gpu_devices()
    for number in range(count):
        path = folder / f"nvidia{number}"
        path.unlink(missing_ok=True)
        if number < len(devices):
            path.symlink_to(devices[number])
        else:
            make_device(path)


# ---- processes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon known by the pid file it wrote; a pid that now belongs to another program is not it."""

    program: str
    pid_file: Path

    def pid(self) -> int | None:
        """The id of the running process, or None."""
        try:
            pid = int(self.pid_file.read_text())
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if comm == self.program[:15] and is_alive(pid) else None

    def stop(self, patience_s: float = 15.0) -> None:
        """Ask it to end, wait, and only then kill it."""
        self._end(signal.SIGTERM, patience_s)

    def kill(self) -> None:
        """End it as a power failure would."""
        self._end(signal.SIGKILL, 5.0)

    def _end(self, how: signal.Signals, patience_s: float) -> None:
        pid = self.pid()
        if pid is not None:
            end_processes([pid], how, patience_s)
        self.pid_file.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def end_processes(pids: Iterable[int], how: signal.Signals = signal.SIGKILL, patience_s: float = 5.0) -> None:
    """Signal the processes and wait until they have ended; those that outlive the patience are killed."""
    left = list(pids)
    for step, patience in ((how, patience_s), (signal.SIGKILL, 5.0)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, step)
        end = time.monotonic() + patience
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < end:
            time.sleep(0.05)
        if not left:
            return


def processes_with(variables: Mapping[str, str]) -> Iterator[int]:
    """Ids of the processes that were started with all these environment variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    yield int(entry.name)


def parent_of(pid: int) -> tuple[int, str]:
    """Id and program name of the parent process; (0, "") when it is gone."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return parent, Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return 0, ""
