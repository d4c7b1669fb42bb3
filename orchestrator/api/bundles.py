"""Bundles of experiments for reviewers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.api import DEFAULT, Session
from orchestrator.results.bundle.archive import Signature, check_signature, require_key, sign, signature_of
from orchestrator.results.bundle.readme import bundle_name
from orchestrator.results.bundle.verify import Verified, verify
from orchestrator.results.bundle.write import Bundled, write_bundle
from orchestrator.results.outcome import FigureOutcome


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle file, what it contains, and its signature file if it is signed."""

    file: Path
    contents: Bundled
    signature: Path | None = None


def bundle_file(figure: FigureOutcome) -> Path:
    """Return the default file of a bundle: `figure-13-cpu-local.tar.zst`."""
    return Path(f"{bundle_name(figure)}.tar.zst")


def bundle(
    figure: FigureOutcome,
    output: Path | None = None,
    *,
    key: Path | None = None,
    session: Session = DEFAULT,
) -> Bundle:
    """Write everything a reviewer needs into one file, signed if an SSH key is given. Replaces the file."""
    if key is not None:
        require_key(key)
    file = output or bundle_file(figure)
    ledger = session.ledger(whole=True)
    contents = write_bundle(ledger, figure, session.folders.templates, file)
    signature_of(file).unlink(missing_ok=True)  # the signature of an earlier bundle
    return Bundle(file, contents, None if key is None else sign(file, key))


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """Checks of a bundle, and of its signature if allowed signers were given."""

    checks: Verified
    signature: Signature | None

    @property
    def holds(self) -> bool:
        """Return whether every check passed and, if it was checked, the signature is valid."""
        return self.checks.holds and (self.signature is None or self.signature.signer is not None)


def verify_bundle(file: Path, allowed_signers: Path | None = None) -> BundleCheck:
    """Recompute the numbers and claims of a bundle from its own logs and compare them with what it stores."""
    signature = None if allowed_signers is None else check_signature(file, allowed_signers)
    return BundleCheck(verify(file, DEFAULT.folders.templates), signature)
