"""Options that several commands share, declared once."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

Database = Annotated[
    Optional[str],  # noqa: UP045  typer reads these at run time, on Python 3.10 too
    typer.Option("--database", envvar="REPRO_DATABASE", help="A file or a SQLAlchemy URL; else results.db."),
]
Scale = Annotated[Optional[str], typer.Option("--scale", help="paper, quad, cpu, ...; else the largest that fits.")]  # noqa: UP045
Where = Annotated[Optional[str], typer.Option("--where", help="Only these cases, for example pp=8,gbs=32.")]  # noqa: UP045
ClusterName = Annotated[Optional[str], typer.Option("--cluster", help="A cluster's name or the path of its profile.")]  # noqa: UP045
Json = Annotated[bool, typer.Option("--json", help="The same rows as JSON.")]
