"""`repro bundle`: everything a reviewer needs, in one file; and whether such a file is what it says."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Optional

import typer

from orchestrator.cli import completion
from orchestrator.cli.options import ClusterName, Database, OnlyScale, OnlyWorkload
from orchestrator.cli.output import data, next_command, say
from orchestrator.cli.overwrite import require_leave
from orchestrator.errors import EXIT_FAILED, Problem, ReproError
from orchestrator.text import counted

VERIFY = "verify"

What = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|verify",
        help="figure-13, or in full sc21/figure-13; or the word verify.",
        autocompletion=completion.experiments,
    ),
]
BundleFile = Annotated[
    Optional[Path],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(metavar="FILE", help="With verify: the bundle to be checked."),
]
OutputFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--output", "-o", help="The file to write; else EXPERIMENT-SCALE-CLUSTER.tar.zst."),
]
Key = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--sign", metavar="KEY", help="Sign the bundle with this SSH key, into FILE.sig beside it."),
]
Signers = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(
        "--allowed-signers",
        metavar="FILE",
        help="With verify: require a signature by somebody in this file (its format: man ssh-keygen).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]


def bundle(
    what: What,
    file: BundleFile = None,
    output: OutputFile = None,
    scale: OnlyScale = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    sign: Key = None,
    allowed_signers: Signers = None,
    force: Force = False,
    database: Database = None,
) -> None:
    """Write everything a reviewer needs to one file; or verify such a file: its numbers, from its own logs."""
    if what != VERIFY:
        if file is not None:
            raise ReproError(Problem(f"{file}: only verify takes a file here", hint="-o names the one to write"))
        if allowed_signers is not None:
            raise ReproError(Problem("--allowed-signers: only verify takes it", hint="--sign KEY signs a bundle"))
        _make(what, output, scale, cluster, workload, sign, force, database)
    elif file is None or any((output, scale, cluster, workload, sign, force)):
        hint = "repro bundle verify FILE.tar.zst"
        raise ReproError(Problem("verify takes a file, and no option but --allowed-signers", hint=hint))
    else:
        _verify(file, allowed_signers)


def _make(
    experiment: str,
    output: Path | None,
    scale: str | None,
    cluster: str | None,
    workload: str | None,
    key: Path | None,
    force: bool,
    database: str | None,
) -> None:
    from orchestrator.cli.outcome import outcome_now
    from orchestrator.cli.selection import submitted_ledger
    from orchestrator.paths import find_folders
    from orchestrator.results.bundle.archive import require_key, sign, signature_of
    from orchestrator.results.bundle.contents import bundle_name
    from orchestrator.results.bundle.write import write_bundle

    if key is not None:
        require_key(key)
    if output is not None:
        require_leave(output, force)  # before all the work, and not after it
    now = outcome_now(experiment, scale, cluster, workload, database)
    file = output or Path(f"{bundle_name(now)}.tar.zst")
    if output is None:
        require_leave(file, force)
    folders = find_folders()
    made = write_bundle(submitted_ledger(folders, database, whole=True), now, folders.templates, file)
    signature_of(file).unlink(missing_ok=True)  # of the bundle that was there before
    data(str(file))
    if key is not None:
        say(f"signature: {sign(file, key)}")
    for one in made.missing:
        say(f"{'missing' if one.is_fault else 'note'}: {one.place}: {one.why}")
    if made.under_way:
        say(f"note: {counted(made.under_way, 'attempt')} under way: the bundle says that it is not final")
    say(f"{counted(made.attempts, 'attempt')}, {counted(made.files, 'file')}, {file.stat().st_size / 1e3:,.0f} kB")
    next_command(f"repro bundle verify {shlex.quote(str(file))}", "what a reviewer types")
    if any(one.is_fault for one in made.missing):
        raise typer.Exit(EXIT_FAILED)


def _verify(file: Path, allowed_signers: Path | None) -> None:
    from orchestrator import __version__
    from orchestrator.paths import find_folders
    from orchestrator.results.bundle.verify import verify

    is_signed = allowed_signers is None or _is_signed(file, allowed_signers)
    found = verify(file, find_folders().templates)
    for check in found.checks:
        said = f": {counted(len(check.differences), 'difference')}" if check.differences else ": no difference"
        data(f"{check.name:<8}  {check.what}{said if check.is_proven else ''}")
        for difference in check.differences:
            data(f"{'':<8}  {difference}")
    if found.holds:
        what = "numbers, claims, report and README" if found.is_proven else "numbers and claims"
        say(f"it is consistent with its own checksums and logs: {what} follow from the logs")
        if not found.is_proven:
            say("note: report.html and README.txt are not checked; read results/ instead")
        if allowed_signers is None:
            say("note: who made it is not checked; --allowed-signers FILE checks a signature")
        if is_signed:
            return
    elif found.made_by != __version__:
        say(f"note: made by repro {found.made_by}, and read by {__version__}, which may count otherwise")
    raise typer.Exit(EXIT_FAILED)


def _is_signed(file: Path, allowed_signers: Path) -> bool:
    """Print who signed the bundle, or why its signature is not accepted."""
    from orchestrator.results.bundle.archive import check_signature

    found = check_signature(file, allowed_signers)
    data(f"{'signature':<9} by {found.signer}: valid" if found.signer else f"{'signature':<9} {found.problem}")
    return found.signer is not None
