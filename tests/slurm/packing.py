"""Slurm, MUNGE and MariaDB from this machine's package sources, as one file for machines without them.

The file has the programs, Slurm's plug-ins, MariaDB's files of /usr/share, and all libraries that these need. It has
neither the C library, which must be as new on the other machine, nor other files of the packages. Each file finds its
libraries by a relative path, so LD_LIBRARY_PATH and ldconfig are not needed, and no other program uses them.
"""

from __future__ import annotations

import lzma
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.slurm.host import ClusterUnavailable, run

PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-mysql-plugin",
    "munge",
    "mariadb-server-core",
    "mariadb-client-core",
)
_PATCHELF = "patchelf"
"""Only used here: it writes into a program where its libraries are."""

_COMMANDS = (
    "sacct|sacctmgr|salloc|sattach|sbatch|sbcast|scancel|scontrol|sdiag|sinfo|sprio|squeue|sreport|srun|sshare|sstat"
    "|munge|unmunge|mariadb|mariadb-install-db|my_print_defaults"
)
_DAEMONS = "slurmctld|slurmd|slurmdbd|slurmstepd|munged|mariadbd"

# Debian's name ends in -wlm, for its alternatives: installing the package creates the link `slurmctld`.
_PLACES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(rf"usr/bin/({_COMMANDS})"), r"bin/\1"),
    (re.compile(rf"usr/sbin/({_DAEMONS})(?:-wlm)?"), r"sbin/\1"),
    # PMIx is a library that the plug-in opens itself, and that is not among the packages.
    (re.compile(r"usr/lib/[^/]+/slurm-wlm/((?!mpi_pmix)[^/]+\.so)"), r"slurm/\1"),
    (re.compile(r"usr/share/(?:mysql|mariadb)/((?:english|charsets)/.+|[^/]+\.sql)"), r"share/mysql/\1"),
)

# The libraries of Debian's package libc6, which only work together and with the kernel's loader.
_C_LIBRARY = re.compile(
    r"ld-linux.*\.so\..*"
    r"|lib(?:c|m|mvec|pthread|dl|rt|resolv|util|anl|nsl|thread_db|BrokenLocale|c_malloc_debug|nss_[a-z]+)\.so\..*"
)

# Relative paths from the file to the libraries and, for libslurmfull.so, to Slurm's plug-ins.
_LOOKS_IN = {
    "bin": "$ORIGIN/../lib:$ORIGIN/../slurm",
    "sbin": "$ORIGIN/../lib:$ORIGIN/../slurm",
    "slurm": "$ORIGIN/../lib:$ORIGIN",
    "lib": "$ORIGIN",
}


def place(path: str) -> str | None:
    """Return the place of a package's file (path without the first slash) in the archive; None if it is left out.

    Libraries are left out here: `needed_libraries` selects them by name.
    """
    for pattern, target in _PLACES:
        if match := pattern.fullmatch(path):
            return match.expand(target)
    return None


def is_of_the_c_library(name: str) -> bool:
    """Return whether a library of this name comes from the other machine's C library."""
    return _C_LIBRARY.fullmatch(name) is not None


def needed_libraries(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the libraries in `names` and their dependencies, sorted, without the C library's.

    `needs` has the dependencies of each available library. ClusterUnavailable for a library that is not available.
    """
    closure: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        if name in closure or is_of_the_c_library(name):
            continue
        if name not in needs:
            raise ClusterUnavailable(f"{name} is in none of the packages")
        closure.add(name)
        left.update(needs[name])
    return sorted(closure)


def pack(file: Path) -> None:
    """Download the packages and write the file (tar, xz), without changing this machine.

    Raise ClusterUnavailable with a reason of one line if this fails.
    """
    if shutil.which("apt-get") is None:
        raise ClusterUnavailable("packages can only be fetched on Debian or Ubuntu (there is no apt-get)")
    with tempfile.TemporaryDirectory(prefix="repro-pack-") as made:
        unpacked, tree = Path(made, "unpacked"), Path(made, "tree")
        _unpack_packages(Path(made, "packages"), unpacked)
        _carry(unpacked, tree)
        unfinished = file.with_name(f"{file.name}.new")
        with tarfile.open(unfinished, "w:xz", preset=9) as archive:
            archive.add(tree, arcname=".", filter=_of_root)
        unfinished.replace(file)


def unpack(file: Path, folder: Path) -> None:
    """Unpack the file of `pack` as this folder, completely or not at all. An existing folder remains."""
    if folder.is_dir():
        return
    unfinished = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with tarfile.open(file, "r:*") as archive:
            archive.extraction_filter = lambda member, _: member  # our own file
            archive.extractall(unfinished)
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise ClusterUnavailable(f"{file}: {error}") from None
    unfinished.rename(folder)


def _unpack_packages(downloads: Path, unpacked: Path) -> None:
    """Unpack the needed packages and all their dependencies into one tree."""
    for folder in (downloads, unpacked):
        folder.mkdir()
    # As if nothing were installed: the packages to install are then all dependencies.
    bare = ("-o", "Dir::State::status=/dev/null", "--no-install-recommends")
    plan = ("apt-get", "-q", *bare, "--simulate", "install", *PACKAGES, _PATCHELF)
    try:
        done = run(plan, timeout_s=120)
    except ClusterUnavailable:
        run(["apt-get", "-q", "update"], timeout_s=300)
        done = run(plan, timeout_s=120)
    names = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("Inst ")]
    run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *names], cwd=downloads, timeout_s=600)
    for package in sorted(downloads.glob("*.deb")):
        run(["dpkg", "-x", package, unpacked])


def _carry(unpacked: Path, tree: Path) -> None:
    """Copy the needed files into the tree, and set the library path of each program and library."""
    for path in sorted(unpacked.rglob("*")):
        target = place(str(path.relative_to(unpacked)))
        if target is not None and path.is_file():
            _copy(path, tree / target)
    patchelf = unpacked / "usr/bin/patchelf"
    libraries = {path.name: path for path in unpacked.rglob("lib*.so*") if path.is_file()}
    needs = {name: _needs(patchelf, path) for name, path in libraries.items() if not is_of_the_c_library(name)}
    programs = [path for path in tree.rglob("*") if _is_elf(path)]
    wanted = {name for path in programs for name in _needs(patchelf, path)}
    for name in needed_libraries(wanted, needs):
        if not (tree / "slurm" / name).exists():
            _copy(libraries[name], tree / "lib" / name)
    for path in tree.rglob("*"):
        if _is_elf(path):
            run([patchelf, "--set-rpath", _LOOKS_IN[path.parent.name], path])


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)  # the target of a link, not the link


def _is_elf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _needs(patchelf: Path, path: Path) -> list[str]:
    return run([patchelf, "--print-needed", path]).stdout.split() if _is_elf(path) else []


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
