"""Machine of the test cluster: packages, ports, host names, devices, daemons with a pid file."""

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HOSTS_FILE = Path("/etc/hosts")


class ClusterUnavailable(Exception):
    """No Slurm cluster is available on this machine. The message is the reason, in one line."""


class PackagesMissing(ClusterUnavailable):
    """Debian packages are not installed. The message names them."""


may_install_packages = True
"""Whether missing packages are installed. In a run of pytest it is the option --install."""


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end. Raise ClusterUnavailable with its last line if it fails or hangs."""
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
    """Return the last line that is not empty, or ""."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


_INSTALL_LOCK = Path("/tmp/repro-tests-install.lock")
# ---- packages ------------------------------------------------------------------------------------------------


def require_root() -> None:
    """Raise ClusterUnavailable unless this process can run daemons as root."""
    if os.geteuid() != 0:
        raise ClusterUnavailable("a Slurm cluster can only be brought up as root")


def require_root_on_debian() -> None:
    """Raise ClusterUnavailable unless this process can install packages and run daemons as root."""
    require_root()
    if shutil.which("apt-get") is None:
        raise ClusterUnavailable("a Slurm cluster can only be brought up on Debian or Ubuntu (there is no apt-get)")


def install_packages(packages: Iterable[str]) -> None:
    """Install missing packages, from the present package lists first, else after an update.

    Processes that need packages at the same time install them one after another. Raise PackagesMissing if that is not
    allowed or not possible.
    """
    wanted = list(packages)
    if all(map(_is_installed, wanted)):
        return
    if not may_install_packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        names = " ".join(name for name in wanted if not _is_installed(name))
        raise PackagesMissing(f"not installed. Hint, as root: apt-get install {names}, or pass --install to pytest")
    with _INSTALL_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := [name for name in wanted if not _is_installed(name)]:
            _install(missing)


def _install(missing: Sequence[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt: tuple[str, ...] = ("apt-get", "-q", "-o", "DPkg::Lock::Timeout=300")
    install = [*apt, "install", "-y", "--no-install-recommends", *missing]
    try:
        run(install, env=env, timeout_s=600)
    except ClusterUnavailable:
        try:
            run([*apt, "update"], env=env, timeout_s=300)
            run(install, env=env, timeout_s=600)
        except ClusterUnavailable as reason:
            raise PackagesMissing(f"not installed: {' '.join(missing)} ({reason})") from None


def _is_installed(package: str) -> bool:
    if shutil.which("dpkg-query") is None:
        return False
    asked = subprocess.run(
        ["dpkg-query", "-W", "-f=${db:Status-Status}", package], capture_output=True, text=True, check=False
    )
    return asked.stdout == "installed"


# ---- network -------------------------------------------------------------------------------------------------


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free TCP ports, below the range of outgoing connections."""
    for _ in range(200):
        first = random.randrange(12_000, 32_000 - count)
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + count):
                    sockets.enter_context(socket.socket()).bind(("0.0.0.0", port))
            except OSError:
                continue
            return first
    raise ClusterUnavailable(f"no {count} free TCP ports in a row")


def own_name() -> str:
    """Return this machine's name, without a domain."""
    return socket.gethostname().split(".")[0]


def nameless(tag: str) -> list[str]:
    """Return this machine's names, with and without a domain, that have no address except by a line with the tag."""
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
    """Return whether this machine has no address except 127.0.0.1.

    The C library then has no IPv4 address for any name, its own included, if asked as Slurm asks it. If asked for
    either kind, it has one.
    """
    try:
        socket.getaddrinfo("127.0.0.1", 0, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return True
    return False


def name_hosts(names: Sequence[str], tag: str) -> None:
    """Make the names resolve to this machine. Each line has the tag; `names=()` removes these lines."""
    if not names and f"# {tag}\n" not in HOSTS_FILE.read_text(encoding="utf-8"):
        return
    # In place, not by rename: in a container /etc/hosts is a mount.
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
    """Create a device like /dev/null. If that is forbidden, create a file; jobs then get no CUDA_VISIBLE_DEVICES."""
    if path.is_char_device():
        return
    path.unlink(missing_ok=True)
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        path.touch()
    path.chmod(0o666)


def gpu_devices() -> list[Path]:
    """Return the device files of this machine's GPUs by number. In a container the numbers may not start at 0."""
    paths = [path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    return sorted(paths, key=lambda path: int(path.name.removeprefix("nvidia")))


def link_devices(folder: Path, count: int) -> None:
    """Link nvidia0, nvidia1, ... in the folder to this machine's GPUs, with CUDA's numbers of those it can open.

    If the driver has fewer device files than GPUs, the rest are simulated, because Slurm takes the numbers from them.
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
    """Daemon with a pid file. A pid that now belongs to another program does not count."""

    program: str
    pid_file: Path

    def pid(self) -> int | None:
        """Return the id of the running process, or None."""
        try:
            pid = int(self.pid_file.read_text())
            comm = Path(f"/proc/{pid}/comm").read_text().strip()
        except (OSError, ValueError):
            return None
        return pid if comm == self.program[:15] and is_alive(pid) else None

    def stop(self, patience_s: float = 15.0) -> None:
        """Ask the daemon to end, wait, then kill it."""
        self._end(signal.SIGTERM, patience_s)

    def kill(self) -> None:
        """Kill the daemon and its processes, as a power failure does."""
        self._end(signal.SIGKILL, 5.0)

    def _end(self, how: signal.Signals, patience_s: float) -> None:
        pid = self.pid()
        if pid is not None:
            end_processes([pid], how, patience_s)
        self.pid_file.unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    """Return whether the process runs. A zombie does not."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def end_processes(pids: Iterable[int], how: signal.Signals = signal.SIGKILL, patience_s: float = 5.0) -> None:
    """Signal the processes and wait until they have ended. Kill those that do not end in time."""
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
    """Return the ids of processes that were started with all these environment variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                    yield int(entry.name)


def parent_of(pid: int) -> tuple[int, str]:
    """Return id and program name of the parent process, or (0, "") if it has ended."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        return parent, Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return 0, ""
