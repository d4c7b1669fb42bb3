"""Options and markers of all tests. pyproject.toml lists what a test with each marker needs."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples import register_profiles
from tests.slurm import host
from tests.unavailable import give_up

register_profiles()

_TESTS = Path(__file__).parent
_NO_CONFIGURATION = tempfile.TemporaryDirectory()
"""Folder without a configuration of `repro`: the developer's own one must not change a test."""
_MARKERS_OF_FOLDERS = {
    "slurm": ("slurm",),
    "training": ("torch",),
    "mpirun": ("mpi", "torch"),
    "browser": ("browser",),
    "gpu": ("gpu", "torch"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--install", action="store_true", help="install missing Debian packages (needs root)")
    parser.addoption("--update-golden", action="store_true", help="write the golden files from scripts and outputs")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until the tests are collected: their objects stay
    host.may_install_packages = config.getoption("--install")
    Path(_NO_CONFIGURATION.name).chmod(0o755)  # other users run `repro`, too
    os.environ["XDG_CONFIG_HOME"] = _NO_CONFIGURATION.name
    for name in ("REPRO_CONFIG", "REPRO_CLUSTER", "REPRO_NOTIFY"):
        os.environ.pop(name, None)
    # A shell's background process ignores SIGINT, and nohup's process SIGHUP. Children would inherit this, but tests
    # press Ctrl-C and close terminals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of slow tests before they are imported, if `-m` leaves out slow tests."""
    if collection_path.suffix != ".py" or "not slow" not in config.getoption("markexpr"):
        return None
    return "\npytestmark = pytest.mark.slow\n" in collection_path.read_text(encoding="utf-8") or None


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in _needs(item):
            item.add_marker(marker)


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their modules from garbage collections, and make these as rare as in `repro`."""
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


def _needs(item: pytest.Item) -> Iterator[str]:
    """Yield the marker of each thing that the test needs."""
    yield from _MARKERS_OF_FOLDERS.get(item.path.relative_to(_TESTS).parts[0], ())
    assert isinstance(item, pytest.Function)
    modules = [value.__name__ for value in vars(item.module).values() if isinstance(value, ModuleType)]
    if any(name.partition(".")[0] in ("torch", "megatron") for name in modules):
        yield "torch"
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if "postgresql" in (*item.fixturenames, *parameters):
        yield "postgresql"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip tests whose fixtures need packages that are not installed."""
    try:
        return (yield)
    except host.PackagesMissing as reason:
        give_up(str(reason))
