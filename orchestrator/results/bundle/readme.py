"""The bundle's own README: what it is, how to check it, how to run it again."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.results.bundle.contents import SCRIPT, Figure
from orchestrator.results.bundle.extract import Extract

_CONTENTS = (
    ("results/", "what came out: a row per case as CSV and JSON, and what became of each claim"),
    ("report.html", "the same as a page, with all that stands behind it; for any browser"),
    ("experiment/", "the figure as a program: cases, axes, published numbers and claims, with their sources"),
    ("jobs/", "of each job each attempt: its script, its logs, the records of its start and its end"),
    ("runs/", "of each `repro submit` the cluster's profile, and what the scheduler was given"),
    ("ledger/", "what was recorded: a file per table, a line of JSON per row"),
    ("environment.json", "versions, commits, images"),
    ("MANIFEST", "bytes, SHA-256 and path of each file"),
)


def readme(figure: Figure, extract: Extract, missing: Mapping[str, str], under_way: int) -> str:
    """Plain text, with every command filled in."""
    entry = figure.entry
    text = [
        f"{entry.paper.title} ({entry.paper.venue})",
        f"{entry.experiment.figure}: {entry.experiment.title}",
        "",
        f"At scale {figure.scale} on {figure.cluster}: {len(extract.attempts)} attempts of {len(extract.jobs)} jobs.",
    ]
    text += [f"Not final: {under_way} of the attempts were still under way."] if under_way else []
    text += ["", "To check it, without a cluster, a ledger or a network:", ""]
    text += [f"    repro bundle verify {figure.name}.tar.zst", "    sha256sum --check SHA256SUMS", ""]
    text += [
        "The first reads every number from the logs again, judges the claims again, and renders this page and the",
        "report again. The second, typed in this folder, compares each file with its checksum. Neither proves who made",
        "the bundle: a signature does (--allowed-signers).",
    ]
    text += ["", "To run it again, all of it or one job by hand:", "", f"    {figure.command}", *_by_hand(extract), ""]
    text += [f"Elsewhere than on {figure.cluster}, --cluster is another profile, and paths in a script are other ones."]
    text += ["", "What is in it:", "", *(f"    {path:<18}{what}" for path, what in _CONTENTS), ""]
    text += [
        "Scripts and logs are as they ran, with *** for what looks like a secret; script_sha256 is a script's before",
        "that. Times are UTC. Who submitted is left out; scripts and logs may still name somebody's folder.",
    ]
    if missing:
        text += ["", "What is missing:", "", *(f"    {path}: {why}" for path, why in missing.items())]
    return "\n".join(text) + "\n"


def _by_hand(extract: Extract) -> list[str]:
    """A script is complete; the paths in it are the site's."""
    if not extract.attempts:
        return []
    row = extract.attempts[-1]
    starts = "sbatch" if row["scheduler"] == "slurm" else "bash"
    return [f"    {starts} {row['folder']}/{SCRIPT} FOLDER   # its log goes there"]
