"""Tests of plug-ins: a wheel that adds to every group of entry points, and packages that are broken."""

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
from orchestrator.programs.axes import MetricDefinition
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
CLAIMS = """
from typing import Literal

from orchestrator.catalog.claims import ClaimFields
from orchestrator.config.model import Text, required


class DoublesClaim(ClaimFields):
    judge = "toys.judge:judge_doubles"
    axis_fields = ("along",)
    kind: Literal["doubles"] = required("Kind of the claim.")
    along: Text = required("Axis whose first two values are compared.", "width")
"""
JUDGE = """
from orchestrator.results.evidence import Part, decide, in_order


def judge_doubles(claim, evidence):
    first, second, *_ = in_order(claim.along, evidence.measured())
    low, high = evidence.numbers([first, second])
    decision = decide([Part("second over first", [first, second], evidence.metric, high / low, 1.9)])
    return decision.because(f"{second.case.name} has {decision.part.number.value:.2f} times the score")
"""
BOX = """
from pathlib import Path

from orchestrator.clusters.container import ContainerRuntime, read_image

BOX = ContainerRuntime(
    name="box",
    options="toys.box:command",
    fields=("options",),
    pull="box pull",
    template=Path(__file__).with_name("box.sh.j2"),
)


def command(container, cluster, image, mounts):
    from orchestrator.launch.directives import Wrapping, field_lines
    from orchestrator.launch.templates import Line

    options = field_lines(cluster, "container", "options")
    return Wrapping(argv=(Line.of("box"), *options, Line.of(read_image(image.words[0]).for_docker, image.origin)))
"""
TEMPLATE = """{% extends "sbatch_container.sh.j2" %}
{% block needs %}bash, Slurm and box{% endblock %}
{% block container %}
{% for line in wrapping.argv %}
  {{ line|run }} \\
{% endfor %}
{% endblock %}
"""
BOXES = """
about: a machine of the tests with boxes
scheduler: slurm
hardware: {nodes: 4, gpus_per_node: 8}
slurm: {partition: main, time_limit: "1:00:00"}
container: {runtime: box, images: {points: registry.example/points:1}, options: [--fast]}
"""
DESCRIBED = f"""
figure: Figure 2
title: Score by width of a program in YAML
program:
  name: points
  command: [{sys.executable}, -c, "import sys; print('score', 2 * int(sys.argv[1]))", "{{width}}"]
  output: {{reader: toy-log}}
  metrics: {{score: {{better: higher}}}}
matrix: {{width: [1, 2, 4]}}
plot: {{x: {{label: Width, of: [width]}}, y: {{label: Score, metric: score}}}}
claims:
  - {{id: double, kind: doubles, says: Twice the width has twice the score., stated: derived, along: width}}
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
    "claim_raises": ("repro.claims", "sums = claim_raises:X", "raise OSError('no')", "OSError: no"),
    "claim_other": ("repro.claims", "means = claim_other:X", "X = 3", "is not a class of catalog.claims.ClaimFields"),
    "claim_thief": ("repro.claims", "trend = claim_thief:X", "X = 3", "the name trend is taken"),
    "runtime_raises": ("repro.runtimes", "crate = runtime_raises:X", "raise OSError('no')", "OSError: no"),
    "runtime_other": (
        "repro.runtimes",
        "bag = runtime_other:X",
        "X = 3",
        "is not a clusters.container.ContainerRuntime",
    ),
    "runtime_thief": ("repro.runtimes", "pyxis = runtime_thief:X", "X = 3", "the name pyxis is taken"),
    "reader_raises": ("repro.readers", "hpl-log = reader_raises:X", "raise OSError('no')", "OSError: no"),
    "reader_other": ("repro.readers", "fio-log = reader_other:X", "X = 3", "is no class of reading.reader.LogReader"),
    "reader_thief": ("repro.readers", "fio-log = reader_thief:X", "X = 3", "the name fio-log is taken"),
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


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a package that adds to every group."""
    entries = {
        "programs": "toy = toys.programs:TOY",
        "commands": "greet = toys.command",
        "claims": "doubles = toys.claims:DoublesClaim",
        "runtimes": "box = toys.box:BOX",
        "readers": "toy-log = toys.reader:ToyReader",
    }
    text = "".join(f"[repro.{group}]\n{entry}\n\n" for group, entry in entries.items())
    modules = {"programs": PROGRAMS, "reader": READER, "command": COMMAND, "claims": CLAIMS, "judge": JUDGE, "box": BOX}
    files = {"toys/__init__.py": "", "toys/box.sh.j2": TEMPLATE, "toys-1.0.dist-info/entry_points.txt": text}
    folder = tmp_path_factory.mktemp("wheels") / "packages"
    install(folder, "toys", files | {f"toys/{name}.py": text for name, text in modules.items()})
    return folder


def test_a_wheel_adds_a_program_and_a_command(site: Site, packages: Path, tmp_path: Path) -> None:
    listed = call(site, packages, "programs", "list")
    assert (listed.returncode, "note:" in listed.stderr) == (0, False), listed.stderr
    assert "toy " in listed.stdout and "pretrain " in listed.stdout
    shown = call(site, packages, "--help").stdout
    assert "Toys:\n  greet        Greet somebody.\n" in shown
    assert "repro greet Ada" in call(site, packages, "greet", "--help").stdout
    assert call(site, packages, "greet", "Ada").stdout == "hello Ada\n"
    assert "Did you mean 'greet'" in call(site, packages, "gret").stderr
    file = written(tmp_path, EXPERIMENT)
    planned = call(site, packages, "plan", file, "--cluster", "local")
    assert planned.returncode == 0 and "no prediction for toy" in planned.stderr
    assert_figure_is_reproduced(site, packages, file)


def test_a_wheel_adds_a_reader_and_a_kind_of_claim_to_yaml(site: Site, packages: Path, tmp_path: Path) -> None:
    file = written(tmp_path, DESCRIBED)
    assert_figure_is_reproduced(site, packages, file)
    judged = call(site, packages, "claims", file).stdout
    assert "width=2 has 2.00 times the score" in judged and "exceeds 1.9 by 5.3 %" in judged
    without = call(site, tmp_path, "experiments", "check", file)
    assert without.returncode == 2 and [line.split(" ", 2)[2] for line in without.stderr.splitlines()[:2]] == [
        "program.output.reader: toy-log: no such reader. Hint: there are: none",
        "claims.0.kind: no such kind, 'doubles'. Did you mean \"published\"?",
    ]


def test_mistakes_in_fields_of_a_package_are_reported_at_their_place(
    site: Site, packages: Path, tmp_path: Path
) -> None:
    wrong = DESCRIBED.replace("along:", "alng:").replace("reader: toy-log", "reader: toy-lg")
    done = call(site, packages, "experiments", "check", written(tmp_path, wrong + "  - {id: other, kind: double}\n"))
    assert [line.partition(" ")[2].partition(" ")[2] for line in done.stderr.splitlines()] == [
        'program.output.reader: toy-lg: no such reader. Did you mean "toy-log"?',
        'alng: unknown field. Did you mean "along"?',
        "claims.1.kind: no such kind, 'double'. Did you mean \"doubles\"?",
    ]


def test_a_wheel_adds_a_container_runtime(site: Site, packages: Path, tmp_path: Path) -> None:
    profile = site.folder / "clusters" / "boxes.yaml"
    profile.write_text(BOXES)
    file = written(tmp_path, DESCRIBED)
    rendered = call(site, packages, "render", file, "--cluster", "boxes", "--where", "width=2")
    assert (rendered.returncode, "  box \\\n  --fast \\\n  registry.example/points:1 \\\n" in rendered.stdout) == (
        0,
        True,
    )
    assert subprocess.run(["bash", "-n"], input=rendered.stdout, text=True, check=False).returncode == 0
    explained = call(site, packages, "render", file, "--cluster", "boxes", "--where", "width=2", "--explain").stdout
    assert f"{packages}/toys/box.sh.j2:5" in explained and "clusters/boxes.yaml:6" in explained
    asked = call(site, packages, "images", "import", "--cluster", "boxes")
    assert "type: box pull registry.example/points:1" in asked.stderr
    profile.write_text(BOXES.replace("runtime: box", "runtime: bax"))
    unknown = call(site, packages, "clusters", "show", "boxes")
    assert unknown.returncode == 2 and "got 'bax'. Did you mean \"box\"?" in unknown.stderr
    profile.write_text(BOXES.replace("options: [--fast]", "writable: true"))
    unsupported = call(site, packages, "clusters", "show", "boxes")
    assert "writable needs runtime pyxis or edf or apptainer, but runtime is box" in unsupported.stderr


def written(folder: Path, text: str) -> str:
    """Write an experiment of a folder, and return its path."""
    file = folder / "mine" / "toy.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return str(file)


def assert_figure_is_reproduced(site: Site, packages: Path, file: str) -> None:
    """Run the figure of a program that only the plug-in can read, from its check to the verified bundle."""
    bundle = f"{file}.tar.zst"
    checked = call(site, packages, "experiments", "check", file)
    assert "no problem found" in checked.stderr, checked.stderr
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
    programs = [name for name, (group, *_) in BROKEN.items() if group == "repro.programs"]
    assert unknown.returncode == 2 and len(unknown.stderr.splitlines()) == 1 + len(programs)


@pytest.mark.parametrize("name", ["claim_raises", "claim_other", "reader_raises", "reader_other"])
def test_an_experiment_that_names_a_broken_part_costs_one_line(
    name: str, site: Site, broken: Path, tmp_path: Path
) -> None:
    group, entry, _, why = BROKEN[name]
    used = entry.partition(" = ")[0]
    program = DESCRIBED.partition("claims:")[0].replace("reader: toy-log", "values: {score: 'score {number}'}")
    text = program + f"claims: [{{id: a, kind: {used}, says: b, stated: derived}}]\n"
    if group == "repro.readers":
        text = DESCRIBED.partition("claims:")[0].replace("toy-log", used)
    done = call(site, broken, "submit", written(tmp_path, text), "--cluster", "local")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"repro: {group}: {entry} of package {name}: ") and why in done.stderr


@pytest.mark.parametrize("name", ["runtime_raises", "runtime_other"])
def test_a_profile_that_names_a_broken_runtime_costs_one_line(name: str, site: Site, broken: Path) -> None:
    group, entry, _, why = BROKEN[name]
    text = BOXES.replace("runtime: box", f"runtime: {entry.partition(' = ')[0]}")
    (site.folder / "clusters" / "boxes.yaml").write_text(text)
    done = call(site, broken, "clusters", "show", "boxes")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith(f"repro: {group}: {entry} of package {name}: ") and why in done.stderr


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
