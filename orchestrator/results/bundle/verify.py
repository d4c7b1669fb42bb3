"""Verification of a bundle: its checksums, and the checks of `rederive`.

It needs the file only. The file may come from anybody, so each part is validated before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import __version__
from orchestrator.errors import Problem, ReproError
from orchestrator.files import single_name
from orchestrator.results.bundle.archive import unpacked
from orchestrator.results.bundle.rederive import BROKEN, About, Check, rederive, text_of
from orchestrator.results.bundle.write import ABOUT, FORMAT, MANIFEST, SUMS

_SUM = re.compile(r"([0-9a-f]{64})  (.+)")


@dataclass(frozen=True, slots=True)
class Verified:
    """All checks, and the version of repro that made the bundle."""

    made_by: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Return whether no check found a difference."""
        return not any(check.differences for check in self.checks)

    @property
    def is_proven(self) -> bool:
        """Return whether every check could compare its files."""
        return all(check.is_proven for check in self.checks)


def verify(file: Path, templates: Path) -> Verified:
    """Return every check of a bundle. `templates` are the report's. ReproError where the file is no bundle."""
    with unpacked(file) as (folder, paths):
        about = _about(file, folder)
        checks = [Check("files", f"{len(paths)} of them", tuple(_changed(folder, paths)))]
        try:
            checks += rederive(folder, about, templates)
        except ReproError as error:
            problems = tuple(_without(folder, str(problem)) for problem in error.problems)
            checks.append(Check("contents", "not read to their end", problems))
        return Verified(about.made_by, tuple(checks))


class _OtherFormat(ReproError):
    """Error for a bundle of another format."""


def _about(file: Path, folder: Path) -> About:
    """Return the content of bundle.json; names that become parts of paths are checked."""
    try:
        about = json.loads(text_of(folder, ABOUT))
        made_by = str(about["repro"])[:20]
        if about["format"] != FORMAT:
            what = f"{file}: made by another repro ({made_by}; this is {__version__}), and of another format"
            raise _OtherFormat(Problem(what, hint="check it with that one"))
        paper, _, name = about["experiment"].partition("/")
        return About(
            made_by=made_by,
            experiment=f"{single_name(paper)}/{single_name(name)}",
            scale=about["scale"],
            workloads=tuple(about["workloads"]),
            missing={str(one["path"]): str(one["why"]) for one in about["missing"]},
            code_sha256=about.get("code_sha256"),
        )
    except _OtherFormat:
        raise
    except (*BROKEN, OSError, ReproError):
        raise ReproError(Problem(f"{file}: no bundle: it has no {ABOUT} that could be read")) from None


def _without(folder: Path, said: str) -> str:
    """Return the text without the temporary folder."""
    return said.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")


def _changed(folder: Path, paths: Sequence[str]) -> Iterator[str]:
    """Yield each file that differs from SHA256SUMS or MANIFEST."""
    try:
        lines = text_of(folder, SUMS).splitlines()
        sums = {found[2]: found[1] for line in lines if (found := _SUM.fullmatch(line))}
        sizes = dict(_sizes(text_of(folder, MANIFEST))) if MANIFEST in sums else {}
    except (OSError, ValueError):
        yield f"{SUMS} or {MANIFEST}: cannot be read"
        return
    if len(sums) != len(lines):
        yield f"{SUMS}: {len(lines) - len(sums)} of its lines say nothing, or the same file again"
    yield from (f"{path}: is missing" for path in sorted(sums.keys() - set(paths)))
    yield from (f"{path}: {SUMS} does not have it" for path in sorted(set(paths) - sums.keys() - {SUMS}))
    for path in sorted(sums.keys() & set(paths)):
        if _sha256(folder / path) != sums[path]:
            yield f"{path}: was changed"
        elif path != MANIFEST and sizes.get(path) != ((folder / path).stat().st_size, sums[path]):
            yield f"{path}: {MANIFEST} says otherwise"
    yield from (f"{path}: is in {MANIFEST} and not in {SUMS}" for path in sorted(sizes.keys() - sums.keys()))


def _sizes(manifest: str) -> Iterator[tuple[str, tuple[int, str]]]:
    for line in manifest.splitlines():
        size_bytes, digest, path = line.split("\t")
        yield path, (int(size_bytes), digest)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
