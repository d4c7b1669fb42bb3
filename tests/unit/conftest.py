"""Cache of compiled SQL statements. Each ledger has a new engine, and would compile all its statements again."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


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
