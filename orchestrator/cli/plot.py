"""`repro plot`: the figure as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from orchestrator.cli.options import ClusterName, Database, MaybeExperiment, OnlyScale, OnlyWorkload, Where, as_typed
from orchestrator.cli.output import data, next_command
from orchestrator.cli.overwrite import require_leave
from orchestrator.errors import Problem, ReproError

OutputFile = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--output", "-o", help="Write to this file instead; its ending says png, svg or pdf."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file of -o if there is one.")]


def plot(
    experiment: MaybeExperiment = None,
    output: OutputFile = None,
    force: Force = False,
    scale: OnlyScale = None,
    where: Where = None,
    cluster: ClusterName = None,
    workload: OnlyWorkload = None,
    database: Database = None,
) -> None:
    """Draw the figure on the paper's axes; prints the picture's path. Without -o it replaces its earlier picture."""
    from orchestrator.atomic_write import require_place
    from orchestrator.results.plot.figure import known_format, require_matplotlib
    from orchestrator.results.plot.figure import plot as draw

    if output is not None:
        known_format(output)
        require_place(output)
        require_leave(output, force)
    from orchestrator.cli.outcome import outcome_now, print_claims

    now = outcome_now(experiment, scale, cluster, workload, database)
    found = now.having(where)
    if not any(result.is_verified for result in found):
        hint = f"repro status {now.entry.short_name}"
        raise ReproError(Problem(f"{now.entry.short_name} at scale {now.scale}: no case is verified yet", hint=hint))
    require_matplotlib()
    ran = f"-{found[0].case.workload}" if now.program else ""
    file = output or Path(f"{now.entry.short_name}-{now.scale}-{now.cluster}{ran}.png")
    require_place(file)
    draw(now.entry, now.scale, now.cluster, found, file)
    data(str(file))
    print_claims(now, to_stdout=False)
    next_command(f"repro collect --export csv{as_typed(workload)}", "the numbers behind it")
