"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from orchestrator.cli import completion

ExperimentName = Annotated[
    str, typer.Argument(help="figure-13, or in full sc21/figure-13.", autocompletion=completion.experiments)
]
MaybeExperiment = Annotated[
    Optional[str],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Argument(help="figure-13, or in full sc21/figure-13.", autocompletion=completion.experiments),
]
JobName = Annotated[str, typer.Argument(help="A job id, or enough of its start.", autocompletion=completion.job_ids)]
Database = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--database", envvar="REPRO_DATABASE", help="A file or a SQLAlchemy URL; else results.db."),
]
Scale = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--scale", help="paper, quad, cpu, ...; else the largest that fits.", autocompletion=completion.scales
    ),
]
ScaleOf = Annotated[
    str,
    typer.Option("--scale", help="paper as published; quad, cpu, ... are smaller.", autocompletion=completion.scales),
]
OnlyScale = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--scale", help="Only jobs of this scale.", autocompletion=completion.scales),
]
_NEWEST = {"megatron-core": "megatron-2026"}
"""What people call the newest Megatron-LM that is known, whatever its year."""


def _workload(name: str | None) -> str | None:
    return None if name is None else _NEWEST.get(name, name)


WorkloadName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--workload",
        help="Another program than the experiment's own; megatron-core is the newest Megatron-LM.",
        callback=_workload,
        autocompletion=completion.workloads,
    ),
]
OnlyWorkload = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--workload", help="Only jobs of this program.", callback=_workload, autocompletion=completion.workloads
    ),
]
Where = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--where", help="Only these cases, for example pp=8,gbs=32.", autocompletion=completion.cases),
]
ClusterName = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--cluster", help="A cluster's name or the path of its profile.", autocompletion=completion.clusters),
]
OnCluster = Annotated[
    str,
    typer.Option("--cluster", help="A cluster's name, or the path of its profile.", autocompletion=completion.clusters),
]
Targets = Annotated[list[str], typer.Argument(help="Experiments or job ids.", autocompletion=completion.jobs)]
MaybeTargets = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(help="Experiments or job ids; none means everything under way.", autocompletion=completion.jobs),
]
Json = Annotated[bool, typer.Option("--json", help="The same rows as JSON.")]


def as_typed(workload: str | None) -> str:
    """The option as it stands at the end of a command that is suggested."""
    return f" --workload {workload}" if workload else ""
