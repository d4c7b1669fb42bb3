"""Caches of what each process of `repro` makes once, and each test would make again.

SQL statements are compiled again for each ledger, because each has a new engine. Commands are built again for each
command line.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

from orchestrator.cli.main import LazyGroup

_get_command = LazyGroup.get_command


@cache
def _built_command(name: str) -> Any:
    return _get_command(LazyGroup(), None, name)


LazyGroup.get_command = lambda _self, _ctx, cmd_name: _built_command(cmd_name)  # type: ignore[method-assign,assignment]


class _CompiledStatements(dict[Any, Any]):
    """Compiled statements by dialect and statement. SQLAlchemy's keys begin with the dialect of one engine."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


_COMPILED = _CompiledStatements()


@sa.event.listens_for(sa.Engine, "engine_connect")
def _share_compiled_statements(connection: sa.Connection) -> None:
    connection.execution_options(compiled_cache=_COMPILED)
