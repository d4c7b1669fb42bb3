"""A ledger of each database: a SQLite file, and a private PostgreSQL server."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from tests.postgresql import PostgresqlServer, PostgresqlUnavailable
from tests.slurm.host import install_packages, run
from tests.unavailable import give_up


def compiled(folder: Path, source: str, *words: str) -> Path:
    """A C source as a library for LD_PRELOAD."""
    if shutil.which("gcc") is None:
        install_packages(("gcc", "libc6-dev"))
    (folder / "shim.c").write_text(source)
    run(["gcc", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", *words, "-o", folder / "shim.so", folder / "shim.c"])
    return folder / "shim.so"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server of this test run's own."""
    if importlib.util.find_spec("psycopg") is None:
        give_up("no PostgreSQL: psycopg is not installed")
    server = PostgresqlServer(Path(tempfile.mkdtemp(prefix="repro-postgresql-")))
    server.folder.chmod(0o755)  # its user must reach it
    try:
        try:
            server.up()
        except PostgresqlUnavailable as reason:
            give_up(f"no PostgreSQL: {reason}")
        yield server
    finally:
        server.down()
        shutil.rmtree(server.folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.URL]:
    """A database that holds nothing yet: what a test asks of it must hold for both."""
    if request.param == "sqlite":
        yield ledger_url(None, tmp_path)
        return
    server: PostgresqlServer = request.getfixturevalue("postgresql")
    with server.new_database() as url:
        yield url


@pytest.fixture
def ledger(database_url: sa.URL) -> Iterator[Ledger]:
    """A ledger with nothing in it, in either database."""
    opened = open_ledger(database_url)
    assert opened is not None
    yield opened
    opened.engine.dispose()
