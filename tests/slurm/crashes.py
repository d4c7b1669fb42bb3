"""Another try of a test that fails while a daemon of Slurm crashes. conftest.py imports the hooks.

When slurmd 22.05 starts several steps at once, it sometimes damages its memory and aborts. Then jobs fail without a
fault of `repro`.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest
from _pytest.runner import runtestprotocol

from tests.slurm.cluster import crashed_daemons

_CRASHED = pytest.StashKey[list[str]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Note the crashed daemons before a fixture stops the others."""
    item.stash[_CRASHED] = crashed_daemons()
    yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run the test. If it fails and a daemon has crashed, run it again with new fixtures, which start a new cluster."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    crashed = item.stash.get(_CRASHED, [])  # pytest calls this hook for the tests of other folders, too
    if crashed and any(report.failed for report in reports):
        warnings.warn(f"{item.nodeid} failed after a crash of {', '.join(crashed)}. It runs again", stacklevel=1)
        item.session._setupstate.teardown_exact(None)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
