"""Tests of plug-ins: a wheel that adds a program and a command, and packages that are broken."""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.cli.main import COMMANDS
from tests.stand_in_site import Site

pytestmark = pytest.mark.slow

PROGRAMS = """
import sys

from orchestrator.config.model import Strict
from orchestrator.fields import Column
from orchestrator.programs.axes import ProgramAxes, ProgramNames
from orchestrator.programs.command import BoundProgram
from orchestrator.programs.metric import MetricDefinition
from orchestrator.programs.record import Program


class Axes(Strict):
    width: int | None = None
    program: str | None = None


class Toy(Program):
    def bind(self, job):
        words = ("-c", "import sys; print('score', 2 * int(sys.argv[1]))", str(job.case.settings["width"]))
        return BoundProgram("toy", (sys.executable,), words, "1.0", python=sys.executable, launcher=None, data=None)


columns = {"width": Column("width", "integer", "the width"), "program": Column("program", "text", "the program")}
metrics = {"score": MetricDefinition("score", "", "the score", published=True)}
names = ProgramNames(ProgramAxes(Axes, columns), metrics)
TOY = Toy(name="toy", about="a toy", family="toys", names=names, reader="toys.reader:ToyReader")
"""
READER = """
import re
from dataclasses import replace
from pathlib import Path

from orchestrator.ledger.measurements import MeasuredMetric
from orchestrator.reading.reader import LogReader


class ToyReader(LogReader):
    def read(self, row, before, ending, stored, warnings):
        reading = super().read(row, before, ending, stored, warnings)
        found = re.search(r"score (\\d+)", (Path(row.folder) / "log.txt").read_text()) if reading else None
        return replace(reading, metrics=[MeasuredMetric("score", float(found[1]), "")]) if found else reading
"""
EXPERIMENT = """
figure: Figure 1
title: Score by width
program: toy
matrix: {width: [1, 2, 4]}
plot: {x: {label: Width, of: [width]}, y: {label: Score, metric: score}}
claims:
  - {id: wider, kind: trend, says: The score grows with the width., stated: derived, along: width, direction: rises}
"""
COMMAND = '''"""Greet somebody."""

import typer

PANEL = "Toys"
EXAMPLES = {"greet": ("repro greet Ada",)}
app = typer.Typer()


@app.command()
def greet(name: str) -> None:
    """Greet somebody."""
    print(f"hello {name}")
'''
BROKEN = {
    "raises": ("repro.programs", "raises = raises:X", "raise OSError('no such\\nlibrary')", "OSError: no such library"),
    "leaves": ("repro.programs", "leaves = leaves:X", "raise SystemExit(3)", "SystemExit: 3"),
    "other": ("repro.programs", "other = other:X", "X = 3", "is not a programs.record.Program"),
    "thief": ("repro.programs", "pretrain = thief:X", "X = 3", "the name pretrain is taken"),
    "gone": ("repro.programs", "gone = gone:X", None, "ModuleNotFoundError: No module named 'gone'"),
}
"""Package -> group, entry point, its module, and its problem. A package without a module is half uninstalled."""


def install(folder: Path, name: str, files: dict[str, str]) -> None:
    """Build a wheel of these files and install it into a folder."""
    info = f"{name}-1.0.dist-info"
    files |= {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    files |= {f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    files |= {f"{info}/RECORD": "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])}
    wheel = folder.parent / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True, timeout=120)


def write_broken(folder: Path, name: str, group: str, entry: str, module: str | None) -> None:
    """Write the files of a package that no installer has checked."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(f"[{group}]\n{entry}\n")
    if module is not None:
        (folder / f"{name}.py").write_text(module + "\n")


def call(site: Site, packages: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `repro` with these packages."""
    command = [sys.executable, "-m", "orchestrator.cli.main", *words]
    environment = {**site.environment, "PYTHONPATH": str(packages)}
    return subprocess.run(
        command, cwd=site.folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_wheel_adds_a_program_and_a_command(site: Site, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    entries = "[repro.programs]\ntoy = toys.programs:TOY\n\n[repro.commands]\ngreet = toys.command\n"
    files = {"toys/__init__.py": "", "toys/programs.py": PROGRAMS, "toys/reader.py": READER, "toys/command.py": COMMAND}
    install(packages, "toys", {**files, "toys-1.0.dist-info/entry_points.txt": entries})
    listed = call(site, packages, "programs", "list")
    assert (listed.returncode, "note:" in listed.stderr) == (0, False), listed.stderr
    assert "toy " in listed.stdout and "pretrain " in listed.stdout
    shown = call(site, packages, "--help").stdout
    assert "Toys:\n  greet        Greet somebody.\n" in shown
    assert "repro greet Ada" in call(site, packages, "greet", "--help").stdout
    assert call(site, packages, "greet", "Ada").stdout == "hello Ada\n"
    assert "Did you mean 'greet'" in call(site, packages, "gret").stderr
    assert_figure_is_reproduced(site, packages, tmp_path)


def assert_figure_is_reproduced(site: Site, packages: Path, folder: Path) -> None:
    """Run the figure of a program that only the plug-in knows, from its check to the verified bundle."""
    experiment = folder / "mine" / "toy.yaml"
    experiment.parent.mkdir()
    experiment.write_text(EXPERIMENT)
    file, bundle = str(experiment), str(folder / "toy.tar.zst")
    assert "no problem found" in call(site, packages, "experiments", "check", file).stderr
    planned = call(site, packages, "plan", file, "--cluster", "local")
    assert planned.returncode == 0 and "no prediction for toy" in planned.stderr
    rendered = call(site, packages, "render", file, "--cluster", "local", "--where", "width=2").stdout
    assert "int(sys.argv[1]))' 2" in rendered
    done = call(site, packages, "submit", file, "--cluster", "local", "--wait")
    assert (done.returncode, "3 of 3 cases verified" in done.stdout) == (0, True), done.stderr
    shown = call(site, packages, "status", file).stdout
    assert "TFLOPS_PER_GPU" not in shown and "METRIC" in shown and "score 8" in shown
    collected = call(site, packages, "collect", file, "--where", "width=4", "--columns", "case,score").stdout
    (row,) = csv.DictReader(collected.splitlines())
    assert (row["case"], float(row["score"])) == ("width=4", 8.0)
    assert "holds" in call(site, packages, "claims", file).stdout
    assert call(site, packages, "bundle", file, "-o", bundle).returncode == 0
    assert call(site, packages, "bundle", "verify", bundle).returncode == 0


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return a folder with all broken packages."""
    for name, (group, entry, module, _) in BROKEN.items():
        write_broken(tmp_path / "packages", name, group, entry, module)
    write_broken(tmp_path / "packages", "asks", "repro.commands", "asks = asks", "raise OSError('no')")
    write_broken(tmp_path / "packages", "lists", "repro.commands", "list = lists", "app = None")
    write_broken(tmp_path / "packages", "empty", "repro.commands", "empty = empty", '"""Nothing."""')
    return tmp_path / "packages"


def test_a_broken_program_costs_one_line_where_all_are_listed(site: Site, broken: Path) -> None:
    for words in ("list", "plan figure-13 --cluster here --scale cpu", "clusters show here", "status"):
        done = call(site, broken, *words.split())
        assert (done.returncode, "package" in done.stderr) == (0, False), (words, done.stderr)
    listed = call(site, broken, "programs", "list")
    notes = [line for line in listed.stderr.splitlines() if line.startswith("note:")]
    assert listed.returncode == 0 and "pretrain " in listed.stdout and len(notes) == len(BROKEN)
    for name, (group, entry, _, why) in BROKEN.items():
        (note,) = (line for line in notes if f"of package {name}:" in line)
        assert note.startswith(f"note: {group}: {entry} of package {name}: ") and why in note


def test_a_command_that_names_a_broken_program_ends_with_its_line(site: Site, broken: Path) -> None:
    done = call(site, broken, "plan", "figure-13", "--program", "raises")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(
        "repro: repro.programs: raises = raises:X of package raises: cannot be loaded: OSError"
    )
    unknown = call(site, broken, "plan", "figure-13", "--program", "nosuch")
    assert unknown.returncode == 2 and len(unknown.stderr.splitlines()) == 1 + len(BROKEN)


def test_a_broken_command_costs_one_line(site: Site, broken: Path) -> None:
    shown = call(site, broken, "--help")
    assert shown.returncode == 0 and all(f"  {name} " in shown.stdout for name in COMMANDS)
    assert [line.partition(". Hint")[0] for line in shown.stderr.splitlines()] == [
        "note: repro.commands: list = lists of package lists: the name list is taken"
    ]
    for name, why in (("asks", "cannot be loaded: OSError: no"), ("empty", "has no command empty: AttributeError")):
        done = call(site, broken, name)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert f"repro: repro.commands: {name} = {name} of package {name}: {why}" in done.stderr


def test_a_plug_in_that_blocks_at_its_import_blocks_no_other_command(site: Site, tmp_path: Path) -> None:
    endless = "import time\ntime.sleep(1000)"
    write_broken(tmp_path, "waits", "repro.programs", "waits = waits:X", endless)
    write_broken(tmp_path, "sleeps", "repro.commands", "sleeps = sleeps", endless)
    for words in ("--help", "list", "status"):
        assert call(site, tmp_path, *words.split()).returncode == 0
