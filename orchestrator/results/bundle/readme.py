"""README of a bundle, and its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from orchestrator.ledger.tables import OPEN
from orchestrator.results.bundle.extract import Extract, compared_cases
from orchestrator.results.outcome import FigureOutcome

SCRIPT = "job.sh"


def bundle_name(outcome: FigureOutcome) -> str:
    """Return the name of a bundle and of the folder in it: `figure-13-cpu-local`, with the program if not the own."""
    program = outcome.workloads if outcome.replaced_workload else []
    name = "-".join([outcome.entry.short_name, outcome.scale, outcome.cluster, *program])
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")


def submit_command(outcome: FigureOutcome) -> str:
    """Return the command that runs the experiment again."""
    argv = ["repro", "submit", outcome.entry.name, "--scale", outcome.scale, "--cluster", outcome.cluster]
    program = ["--workload", *outcome.workloads] if outcome.replaced_workload else []
    changes = [word for change in outcome.argument_changes for word in change.split("=", 1)]
    return shlex.join([*argv, *program, *changes, "--wait"])


_README = """\
{paper} ({venue})
{figure}: {title}

Scale {scale} on {cluster}: {attempts} attempts of {jobs} jobs.
{others}{not_final}
To check the bundle without a cluster, a ledger or a network:

    repro bundle verify {name}.tar.zst
    sha256sum --check SHA256SUMS

The first command reads every number from the logs, judges the claims, renders this page and the report, and
compares the results with the bundle. The second command compares each file in this folder with its checksum.
Neither proves who made the bundle: a signature does (ssh-keygen -Y verify).

To run everything again, or one job by hand:

    {submit}
{by_hand}
On a cluster other than {cluster}, give another --cluster and change the paths in the script.

Contents:

    results/          a row per case as CSV and JSON, and the verdict of each claim
    report.html       the results as a page, with their provenance; for any browser
    experiment/       the figure as a program: cases, axes, published numbers and claims, with their sources
    jobs/             script, logs, start and end records of each attempt of each job
    runs/             for each `repro submit`: the cluster profile, and the files that the scheduler received
    ledger/           the recorded rows: a file per table, a line of JSON per row
    environment.json  versions, commits, images
    MANIFEST          bytes, SHA-256 and path of each file

Scripts and logs are as they ran, with *** in place of secrets; script_sha256 is the digest of the script
before. Times are UTC. The bundle leaves out who submitted; logs may still contain a user's folder.
{left_out}{missing}"""


def readme(outcome: FigureOutcome, extract: Extract, missing: Mapping[str, str]) -> str:
    """Return the README as plain text; `missing` are paths that the bundle lacks, each with the reason."""
    entry, attempts = outcome.entry, extract.attempts
    under_way = sum(row["phase"] in OPEN for row in attempts)
    absent = "".join(f"    {path}: {reason}\n" for path, reason in missing.items())
    left_out = "".join(f"    {attempt}\n" for attempt in outcome.left_out)
    by_hand = ""
    if attempts:
        start = "sbatch" if attempts[-1]["scheduler"] == "slurm" else "bash"
        by_hand = f"    {start} {attempts[-1]['folder']}/{SCRIPT} FOLDER   # its log goes there\n"
    return _README.format(
        paper=entry.paper.title,
        venue=entry.paper.venue,
        figure=entry.experiment.figure,
        title=entry.experiment.title,
        scale=outcome.scale,
        cluster=outcome.cluster,
        attempts=len(attempts),
        jobs=len(extract.jobs),
        others=_others_sentence(outcome),
        not_final=f"Not final: {under_way} attempts were still under way.\n" if under_way else "",
        name=bundle_name(outcome),
        submit=submit_command(outcome),
        by_hand=by_hand,
        left_out=f"\nAttempts that do not count in the results:\n\n{left_out}" if left_out else "",
        missing=f"\nMissing files:\n\n{absent}" if missing else "",
    )


def _others_sentence(outcome: FigureOutcome) -> str:
    """Return the cases of other experiments that are in the bundle, because claims compare with them."""
    cases = [f"{name} {case}" for name, cases in compared_cases(outcome).items() for case in sorted(cases)]
    return f"Claims compare with other experiments, whose jobs are included: {'; '.join(cases)}.\n" if cases else ""
