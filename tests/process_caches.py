"""Caches of what each process of `repro` makes once, and each test would make again.

SQL statements are compiled again for each ledger, because each has a new engine. Tables are created again for each
ledger, commands are built again for each command line.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sqlalchemy as sa

from orchestrator.cli.main import LazyGroup
from orchestrator.ledger import database
from orchestrator.ledger.tables import create_schema

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


_CREATION: dict[str, list[tuple[str, Any]]] = {}
"""Name of a dialect -> the statements that created the first ledger, with their parameters."""


def _create_again(connection: sa.Connection) -> None:
    statements = _CREATION.get(connection.dialect.name)
    if statements is not None:
        for statement, parameters in statements:
            connection.exec_driver_sql(statement, parameters)
        return
    made: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.lstrip().startswith(("CREATE", "INSERT")):
            made.append((statement, parameters))

    sa.event.listen(connection, "before_cursor_execute", note)
    try:
        create_schema(connection)
    finally:
        sa.event.remove(connection, "before_cursor_execute", note)
    _CREATION[connection.dialect.name] = made


database.create_schema = _create_again  # type: ignore[attr-defined]
