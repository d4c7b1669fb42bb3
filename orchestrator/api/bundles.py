"""Bundles of experiments for reviewers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.api import DEFAULT, Session
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.files import written_whole
from orchestrator.results.bundle.verify import Verified, verify
from orchestrator.results.bundle.write import Bundled, bundle_name, write_bundle
from orchestrator.results.outcome import FigureOutcome

_ENDING = ".tar.zst"


class UnprovenBundle(ReproError):
    """A bundle that does not verify, and was not written (exit code 1)."""

    exit_code = EXIT_FAILED


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle file and what it contains."""

    file: Path
    contents: Bundled


def bundle_file(figure: FigureOutcome) -> Path:
    """Return the default file of a bundle: `figure-13-cpu-local.tar.zst`."""
    return Path(f"{bundle_name(figure)}{_ENDING}")


def require_bundle_name(file: Path) -> None:
    """Raise ReproError if the name of a file promises another format than that of a bundle."""
    if not file.name.endswith(_ENDING):
        stem = re.sub(r"\.(?:tar|tgz|gz|xz|bz2|zip|zst|tar\..{1,9})$", "", file.name)
        what = f"a bundle is a tar file compressed with zstd, and its name ends with {_ENDING}"
        raise ReproError(Problem(what, f"{file}:", f"-o {file.with_name(stem + _ENDING)}"))


def bundle(figure: FigureOutcome, output: Path | None = None, *, session: Session = DEFAULT) -> Bundle:
    """Write everything a reviewer needs into one file. Replaces the file.

    Raise UnprovenBundle if the bundle does not verify. The file is then not written.
    """
    file = output or bundle_file(figure)
    require_bundle_name(file)
    ledger, templates = session.ledger(), session.folders.templates
    with written_whole(file) as part:
        contents = write_bundle(ledger, figure, templates, part)
        if problems := _unproven(file, contents, verify(part, templates)):
            again = f"repro submit {figure.entry.name} --rerun measures again"
            hint = f"{again}; --without JOB:NUMBER=REASON leaves an attempt out, and the bundle names it"
            raise UnprovenBundle(*problems, Problem("not written, because it does not verify", f"{file}:", hint))
    return Bundle(file, contents)


def _unproven(file: Path, contents: Bundled, verified: Verified) -> list[Problem]:
    """Return why a bundle does not verify. A missing file has its place on this machine."""
    differences = [difference for check in verified.checks for difference in check.differences]
    if not differences:
        return []
    absent = {f"{missing.path}: not in the bundle": missing for missing in contents.missing}
    places = {place: Problem(missing.why, f"{missing.place}:") for place, missing in absent.items()}
    return [places.get(difference.partition(" (")[0]) or Problem(difference, f"{file}:") for difference in differences]


def verify_bundle(file: Path) -> Verified:
    """Recompute the numbers and claims of a bundle from its own logs and compare them with what it stores."""
    return verify(file, DEFAULT.folders.templates)
