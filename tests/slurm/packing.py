"""Slurm, MUNGE and MariaDB out of this machine's package sources, as one file for machines that have neither.

What is carried: the programs, Slurm's plug-ins, what MariaDB reads of /usr/share, and every library that any of these
needs in turn. What is not: the C library, which the other machine has (as new a one or newer), and all else that the
packages hold. Each file looks for its libraries beside itself, so neither LD_LIBRARY_PATH nor ldconfig is needed, and
nothing else on the machine finds them.
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

# Debian's name ends in -wlm, for its alternatives: `slurmctld` is a link that installing the package makes.
_PLACES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(rf"usr/bin/({_COMMANDS})"), r"bin/\1"),
    (re.compile(rf"usr/sbin/({_DAEMONS})(?:-wlm)?"), r"sbin/\1"),
    # PMIx is a library that the plug-in opens by itself, and that is not among the packages.
    (re.compile(r"usr/lib/[^/]+/slurm-wlm/((?!mpi_pmix)[^/]+\.so)"), r"slurm/\1"),
    (re.compile(r"usr/share/(?:mysql|mariadb)/((?:english|charsets)/.+|[^/]+\.sql)"), r"share/mysql/\1"),
)

# The libraries of Debian's package libc6. One is of no use without the others and the kernel's loader.
_C_LIBRARY = re.compile(
    r"ld-linux.*\.so\..*"
    r"|lib(?:c|m|mvec|pthread|dl|rt|resolv|util|anl|nsl|thread_db|BrokenLocale|c_malloc_debug|nss_[a-z]+)\.so\..*"
)

# Relative to the file itself: where it finds the libraries and, for libslurmfull.so, Slurm's plug-ins.
_LOOKS_IN = {
    "bin": "$ORIGIN/../lib:$ORIGIN/../slurm",
    "sbin": "$ORIGIN/../lib:$ORIGIN/../slurm",
    "slurm": "$ORIGIN/../lib:$ORIGIN",
    "lib": "$ORIGIN",
}


def place(path: str) -> str | None:
    """Where a file of a package (its path without the first slash) lies in what is carried; None: it is left out.

    Libraries are left out too: those that are needed come by their names, see `needed_libraries`.
    """
    for pattern, target in _PLACES:
        if found := pattern.fullmatch(path):
            return found.expand(target)
    return None


def is_of_the_c_library(name: str) -> bool:
    """Whether a library of this name is the other machine's own."""
    return _C_LIBRARY.fullmatch(name) is not None


def needed_libraries(names: Iterable[str], needs: Mapping[str, Sequence[str]]) -> list[str]:
    """The libraries among `names` and all that these need in turn, sorted, without the C library's.

    `needs` says of each library at hand what it needs; raises ClusterUnavailable for one that is not at hand.
    """
    found: set[str] = set()
    left = set(names)
    while left:
        name = left.pop()
        if name in found or is_of_the_c_library(name):
            continue
        if name not in needs:
            raise ClusterUnavailable(f"{name} is in none of the packages")
        found.add(name)
        left.update(needs[name])
    return sorted(found)


def pack(file: Path) -> None:
    """Download the packages, and write the file (tar, xz); this machine is left as it is.

    Raises ClusterUnavailable, with the reason in one line, where that cannot be.
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
    """Unpack what `pack` wrote as this folder, whole or not at all; one that is there stays."""
    if folder.is_dir():
        return
    unfinished = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with tarfile.open(file, "r:*") as archive:
            archive.extraction_filter = lambda member, _: member  # it is our own; later Pythons distrust it unasked
            archive.extractall(unfinished)
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise ClusterUnavailable(f"{file}: {error}") from None
    unfinished.rename(folder)


def _unpack_packages(downloads: Path, unpacked: Path) -> None:
    """All packages that ours need on a machine with nothing at all, one over the other."""
    for folder in (downloads, unpacked):
        folder.mkdir()
    # As if nothing were installed: what it would install is then everything.
    bare = ("-o", "Dir::State::status=/dev/null", "--no-install-recommends")
    plan = ("apt-get", "-q", *bare, "--simulate", "install", *PACKAGES, _PATCHELF)
    try:
        said = run(plan, timeout_s=120)
    except ClusterUnavailable:
        run(["apt-get", "-q", "update"], timeout_s=300)
        said = run(plan, timeout_s=120)
    names = [line.split()[1] for line in said.stdout.splitlines() if line.startswith("Inst ")]
    run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *names], cwd=downloads, timeout_s=600)
    for package in sorted(downloads.glob("*.deb")):
        run(["dpkg", "-x", package, unpacked])


def _carry(unpacked: Path, tree: Path) -> None:
    """Copy what is carried into the tree, and tell each program and library where the libraries are."""
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
    shutil.copy(source, target)  # what a link means, and not the link


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
