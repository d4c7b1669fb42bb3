"""A ledger of each database: a SQLite file, and a private PostgreSQL server or one line that says why there is none."""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy as sa

from orchestrator.ledger.database import Ledger, ledger_url, open_ledger
from tests.postgresql import PostgresqlServer, PostgresqlUnavailable
from tests.slurm.host import ClusterUnavailable, install_packages, run

_WHY_NOT = pytest.StashKey[dict[str, str]]()


def missing(config: pytest.Config, what: str, reason: str) -> NoReturn:
    """A test cannot run here: a failure in CI, elsewhere skipped and said once more at the end of the run."""
    config.stash.setdefault(_WHY_NOT, {})[what] = reason
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"no {what}: {reason}", pytrace=False)
    pytest.skip(f"no {what}: {reason}")


def compiled(config: pytest.Config, folder: Path, source: str, *words: str) -> Path:
    """A C source as a library for LD_PRELOAD."""
    try:
        if shutil.which("gcc") is None:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise ClusterUnavailable("it is not installed, and only root can install it, on Debian or Ubuntu")
            install_packages(("gcc", "libc6-dev"))
        (folder / "shim.c").write_text(source)
        run(["gcc", "-shared", "-fPIC", "-U_FORTIFY_SOURCE", *words, "-o", folder / "shim.so", folder / "shim.c"])
    except ClusterUnavailable as reason:
        missing(config, "C compiler", str(reason))
    return folder / "shim.so"


@pytest.fixture(scope="session")
def postgresql(pytestconfig: pytest.Config) -> Iterator[PostgresqlServer]:
    """A PostgreSQL server of this test run's own."""
    if importlib.util.find_spec("psycopg") is None:
        missing(pytestconfig, "PostgreSQL", "psycopg is not installed")
    server = PostgresqlServer(Path(tempfile.mkdtemp(prefix="repro-postgresql-")))
    server.folder.chmod(0o755)  # its user must reach it
    try:
        try:
            server.up()
        except PostgresqlUnavailable as reason:
            missing(pytestconfig, "PostgreSQL", str(reason))
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each thing that could not be had, and whose tests did not run."""
    for what, reason in config.stash.get(_WHY_NOT, {}).items():
        terminalreporter.write_line(f"some of tests/unit/ledger did not run, no {what}: {reason}")
