"""Shell commands that fetch a workload's code and data on another machine with internet. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from orchestrator.clusters.needs import Item
from orchestrator.launch.checkouts import is_hash
from orchestrator.workloads.needs import PublicFile, Repository

SUMS = "sha256sums"


def offline_commands(name: str, items: Sequence[Item], again: str) -> str:
    """Return a shell text of two blocks: for the machine with internet, and for this one.

    Both blocks can be repeated. The last command is `again`: it checks what was copied, makes the data, and writes the
    records.
    """
    folder = f"repro-{name}"
    remote = [item for item in items if isinstance(item.source.need, (Repository, PublicFile))]
    if not remote:
        return f"# Nothing comes from the internet.\n{again}\n"
    archive = f"{folder}.tar.gz"
    return "\n".join(
        [
            "# 1. On a machine with internet, bash, git, curl and sha256sum:",
            _chain([f"mkdir -p {folder}", f"cd {folder}", *_fetch(remote), "cd ..", f"tar -czf {archive} {folder}"]),
            "",
            f"# 2. Copy {archive} to this machine, for example with scp.",
            "",
            f"# 3. On this machine, in the folder of {archive}:",
            _chain([f"tar -xzf {archive}", *_check(folder, remote), *_place(folder, remote), again]),
            "",
        ]
    )


def _chain(commands: Sequence[str]) -> str:
    """Return commands of which each one runs only if the one before succeeded. A shell stays open if one fails."""
    return " &&\n".join(commands)


def _fetch(items: Sequence[Item]) -> Iterator[str]:
    for item in items:
        source, name = item.source, shlex.quote(item.source.default_name)
        if isinstance(source.need, PublicFile):
            get = f"curl -fL --retry 3 -o {name}.part {shlex.quote(source.address)} && mv {name}.part {name}"
            yield f"{{ test -f {name} || {{ {get}; }}; }}"
            continue
        assert source.commit is not None
        commit = shlex.quote(source.commit)
        yield f"git init -q {name}"
        yield f"git -C {name} fetch -q --no-tags --depth 1 {shlex.quote(source.address)} {commit}"
        yield f"git -C {name} checkout -q --force --detach FETCH_HEAD"
        if is_hash(source.commit):
            yield f'test "$(git -C {name} rev-parse HEAD)" = {commit}'
        else:
            yield f"git -C {name} update-ref refs/remotes/origin/{commit} HEAD"
    files = [item for item in items if isinstance(item.source.need, PublicFile)]
    if files:
        yield f"printf '%s\\n' {' '.join(shlex.quote(_sum_line(item)) for item in files)} >{SUMS}"
        yield f"sha256sum -c {SUMS}"


def _sum_line(item: Item) -> str:
    assert isinstance(item.source.need, PublicFile)
    return f"{item.source.need.sha256}  {item.source.default_name}"


def _check(folder: str, items: Sequence[Item]) -> Iterator[str]:
    if any(isinstance(item.source.need, PublicFile) for item in items):
        yield f"(cd {folder} && sha256sum -c {SUMS})"


def _place(folder: str, items: Sequence[Item]) -> Iterator[str]:
    """Yield the commands that move each item to its place, unless something is there."""
    for parent in dict.fromkeys(str(item.path.parent) for item in items):
        yield f"mkdir -p {shlex.quote(parent)}"
    for item in items:
        target, name = shlex.quote(str(item.path)), shlex.quote(item.source.default_name)
        yield f"{{ test -e {target} || mv {folder}/{name} {target}; }}"
