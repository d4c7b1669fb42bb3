"""Signature of a bundle: an OpenSSH signature in a file beside it, made and checked by `ssh-keygen -Y`.

The signature covers every byte of the bundle, so it is checked before anything is unpacked.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Problem, ReproError
from orchestrator.results.atomic_write import written_whole

NAMESPACE = "repro-bundle"
"""What a key signs here. A signature that the same key made for git or for mail does not count for a bundle."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The result of a check: who signed, or why nobody did whom the reader allows."""

    signer: str | None
    problem: str | None


def signature_of(bundle: Path) -> Path:
    """Return the path of a bundle's signature."""
    return bundle.with_name(f"{bundle.name}.sig")


def require_key(key: Path) -> None:
    """Raise ReproError where the key cannot be read or ssh-keygen is missing."""
    _require_readable("--sign", key, "ssh-keygen -t ed25519 makes a key")
    _ssh_keygen(["-Y", "check-novalidate"], None)


def sign(bundle: Path, key: Path) -> Path:
    """Write a bundle's signature beside it and return its path. ssh-keygen may ask for the key's passphrase."""
    done = _ssh_keygen(["-Y", "sign", "-f", str(key), "-n", NAMESPACE], bundle)
    if done.returncode:
        what = f"--sign {key}: {bundle} is written and not signed ({_reason(done)})"
        raise ReproError(Problem(what, hint="check the key, then repeat with --force"))
    path = signature_of(bundle)
    with written_whole(path) as part:
        part.write_bytes(done.stdout)
    return path


def check_signature(bundle: Path, allowed: Path) -> Signature:
    """Check a bundle's signature against a file of allowed signers, as `man ssh-keygen` describes it.

    ReproError where that file cannot be read or ssh-keygen is missing.
    """
    _require_readable("--allowed-signers", allowed, "a line of it: NAME KEYTYPE KEY")
    signature = signature_of(bundle)
    if not signature.is_file():
        return Signature(None, f"{signature}: not there: the bundle is not signed")
    of_it = ["-n", NAMESPACE, "-s", str(signature)]
    done = _ssh_keygen(["-Y", "check-novalidate", *of_it], bundle)
    if done.returncode:
        return Signature(None, f"{signature}: no valid signature of {bundle.name} ({_reason(done)})")
    key = done.stdout.decode(errors="replace").strip().rpartition(" with ")[2]
    found = _ssh_keygen(["-Y", "find-principals", "-s", str(signature), "-f", str(allowed)], bundle)
    for name in found.stdout.decode(errors="replace").splitlines() if found.returncode == 0 else []:
        if not _ssh_keygen(["-Y", "verify", "-f", str(allowed), "-I", name, *of_it], bundle).returncode:
            return Signature(f"{name} ({key})", None)
    return Signature(None, f"{signature}: {allowed} does not allow its {key} to sign for {NAMESPACE}")


def _require_readable(option: str, file: Path, hint: str) -> None:
    try:
        if not file.is_file():
            raise ReproError(Problem(f"{option} {file}: no such file", hint=hint))
        file.open("rb").close()
    except OSError as error:
        raise ReproError(Problem(f"{option} {file}: cannot be read ({error.strerror})", hint=hint)) from None


def _ssh_keygen(words: Sequence[str], bundle: Path | None) -> subprocess.CompletedProcess[bytes]:
    """Run ssh-keygen with the bundle, or nothing, as its input."""
    try:
        if bundle is None:
            return subprocess.run(["ssh-keygen", *words], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        with bundle.open("rb") as file:
            return subprocess.run(["ssh-keygen", *words], stdin=file, capture_output=True, check=False)
    except FileNotFoundError as error:
        if error.filename != "ssh-keygen":
            raise ReproError(Problem(f"{bundle}: no such file")) from None
        raise ReproError(
            Problem("ssh-keygen: not found", hint="install OpenSSH's client, or leave the option out")
        ) from None
    except OSError as error:
        raise ReproError(Problem(f"{bundle}: cannot be read ({error.strerror})")) from None


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line that ssh-keygen printed as an error."""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
