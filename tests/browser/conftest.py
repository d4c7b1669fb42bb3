"""One Chromium, one report and one documentation site for the whole test run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright
from playwright.sync_api import Error as BrowserFault

from orchestrator.catalog.library import find_experiment
from orchestrator.paths import Folders
from orchestrator.results.report import report, write_report
from tests.browser.reports import SECRET, failing, hostile_experiment, in_turn
from tests.recorded_jobs import SCRIPT, START, new_ledger, record_figure
from tests.slurm.host import PackagesMissing, install_packages
from tests.unavailable import give_up
from tests.unit.catalog.entries import CHECKOUT, shipped

_HEADLESS = "chromium-headless-shell"
"""Debian's package and its program: Chromium without a window, which takes a third of the CPU time."""
_NAMES = (_HEADLESS, "chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a headless Chromium without network."""
    program = installed_chromium()
    with sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=program, args=sandbox())
        except BrowserFault as fault:
            give_up(f"no browser: {program} does not start ({str(fault).splitlines()[0]})")
        yield started
        started.close()


@pytest.fixture(scope="session")
def report_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report of three figures: reproduced, with failures and pending jobs, with hostile texts."""
    home = tmp_path_factory.mktemp("report")
    ledger = new_ledger(home)
    hostile_experiment(home)
    own = find_experiment(Folders(CHECKOUT, home), "p/figure-1")
    figures = [
        record_figure(ledger, shipped("figure-13"), "paper", in_turn, script=SCRIPT + f"export HF_TOKEN={SECRET}\n"),
        record_figure(ledger, shipped("table-1"), "paper", failing, at=START + timedelta(minutes=1)),
        record_figure(ledger, own, "paper", failing, at=START + timedelta(minutes=2)),
    ]
    text = report(ledger, figures, CHECKOUT / "templates")
    ledger.engine.dispose()
    return write_report(text, home / "page")


@pytest.fixture(scope="session")
def site_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the documentation site, built by the command of `make docs`, for which a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    recipe = re.search(r"^\tpython (-m sphinx .*)$", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe is not None and " -W " in recipe[1]
    words = [word.replace("build/", f"{folder}/") for word in shlex.split(recipe[1])]
    done = subprocess.run([sys.executable, *words], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "docs"


@pytest.fixture
def page(browser: Browser, report_file: Path) -> Iterator[Page]:
    """Yield the report, opened from its file. At the end there must be no console message and no request."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    opened = context.new_page()
    opened.set_default_timeout(10_000)  # ms
    complaints: list[str] = []

    def dismissed(dialog: Dialog) -> None:
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    opened.on("console", lambda message: complaints.append(f"console: {message.text}"))
    opened.on("pageerror", lambda fault: complaints.append(f"error: {fault}"))
    opened.on("dialog", dismissed)
    opened.on("request", lambda request: complaints.append(f"request: {request.url}"))
    opened.goto(report_file.as_uri())
    yield opened
    context.close()
    assert complaints == [f"request: {report_file.as_uri()}"]


def installed_chromium() -> str:
    """Return the path of Chromium. PackagesMissing if it is not there and cannot be installed."""
    program = _installed()
    if program is None:
        try:
            install_packages([_HEADLESS])
        except PackagesMissing:  # an older release of Debian has no such package
            install_packages(["chromium"])
        program = _installed()
    if program is None:
        raise PackagesMissing(f"no program of these names: {', '.join(_NAMES)}")
    return program


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def sandbox() -> list[str]:
    """Chromium's sandbox does not work as root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
