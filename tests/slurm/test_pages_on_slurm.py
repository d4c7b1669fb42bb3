"""Commands of the pages that need a Slurm, in the order of the page, at a profile that `repro clusters new` wrote.

The training program is a stand-in, and pyxis is simulated. tests/unit/test_page_commands.py has all other commands.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.pages import CHECKOUT, Command, missing_lines, typed_lines
from tests.slurm.cluster import SlurmCluster
from tests.slurm.pyxis import write_image
from tests.slurm.site import SlurmSite

ADMINISTRATOR = "docs/tutorials/administrator.md"
ENGINEER = "docs/tutorials/engineer.md"
GUIDES = (
    "README.md",
    "docs/how-to/accept-a-machine.md",
    "docs/how-to/add-a-site.md",
    "docs/how-to/submit.md",
    "docs/how-to/retry.md",
    "docs/how-to/programs.md",
    "docs/reference/cli.md",
    "docs/reference/commands.md",
    "docs/reference/exit-codes.md",
    "docs/reference/json.md",
    "docs/reference/ledger.md",
    "docs/troubleshooting.md",
)

# The Python of the jobs: the stand-in for training, which waits for the file `go`, and else the Python of the tests.
PYTHON = """\
#!/bin/bash
case $* in
  *--no-such-option*)
    echo "python -m orchestrator.pretrain: error: unrecognized arguments: --no-such-option" >&2
    exit 2 ;;
  *orchestrator.pretrain*)
    until [ -e {folder}/go ]; do sleep 0.1; done
    exec {folder}/train.sh "$@" ;;
esac
exec {python} "$@"
"""

# An image has its own /tmp, and this environment may be there.
PYTHON_MOUNTS = [path for path in (sys.prefix, *sys.path) if path.startswith("/tmp/")]

# Placeholders of the pages, and values of other sites.
REPLACED = {
    "selene": "here",
    "mine": "here",
    "h200": "here",
    "quad": "cpu",
    "timeout": "gpu-oom",
    "8": "2",
    "slurm.sbatch+=--nodelist=n7": "slurm.sbatch+=--nodelist=n3",
    "2026-12-31": "2998-12-31",
}


@dataclass
class Reader:
    """A reader of a page, who types its commands at the site."""

    site: SlurmSite
    typed: set[tuple[str, ...]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def overlay(self) -> Path:
        return self.site.folder / "clusters" / "here.local.yaml"

    def words(self, command: Command, step: Step) -> tuple[str, ...]:
        """Return the words of `repro` with the values of this site."""
        words = [REPLACED.get(word, word) for word in command.words]
        if {"JOB", "77a694"} & set(words):
            jobs = self.site.status()
            job = next((row for row in jobs if row["verdict"] == "failed"), jobs[0])
            words = [str(job["job"]) if word in ("JOB", "77a694") else word for word in words]
        if words[0] in ("submit", "render") and "--scale" not in words:
            words += ["--scale", "cpu"]
        return (*words, *step.added)

    def type(self, command: Command) -> None:
        """Run the command, and note what differs from the page. An equal one without an output runs once."""
        step = ON_SLURM[command.key]
        if command.program == "repro":
            words = self.words(command, step)
            if words in self.typed and not command.output:
                return
            self.typed.add(words)
        if step.before:
            step.before(self)
        if command.program == "repro":
            done = self.site.repro(*words)
        else:
            text = command.text.replace("pp8-tp8-gbs32", "pp1-tp4-gbs4")
            done = subprocess.run(
                text,
                shell=True,
                cwd=self.site.folder,
                env=self.site.environment,
                capture_output=True,
                text=True,
                check=False,
            )
        refused = any(line.startswith("repro: ") for line in command.output)
        code = step.code or (2 if refused else 0)
        printed = done.stdout + done.stderr
        if done.returncode != code:
            self.faults.append(f"{command}: exit code {done.returncode}, not {code}: {printed}")
        missing = [line for line in missing_lines(command, printed) if not line.startswith(step.differs)]
        self.faults += [f"{command}: does not print {line!r}, but: {printed}" for line in missing]


@dataclass(frozen=True)
class Step:
    """How a command of the pages runs here. Its exit code is 0, or 2 if the page shows an error."""

    code: int = 0
    added: tuple[str, ...] = ()
    before: Callable[[Reader], object] | None = None
    differs: tuple[str, ...] = ()
    """Beginnings of lines that differ at this site."""


def write_overlay(reader: Reader) -> None:
    """Write the overlay of the tutorial, with its wrong path, or correct the path."""
    if reader.overlay.exists():
        reader.overlay.write_text(reader.overlay.read_text().replace(".sqfs", ".sqsh"))
        return
    page = (CHECKOUT / ADMINISTRATOR).read_text(encoding="utf-8")
    (block,) = re.findall(r"(?m)^    container:\n(?:    .*\n)+", page)
    folder = str(reader.site.folder)
    text = textwrap.dedent(block).replace("/srv/shared", folder).replace("/opt/venv/bin", folder)
    mounts = "".join(f"    - {path}\n" for path in PYTHON_MOUNTS)
    reader.overlay.write_text(text.replace("mounts:\n", f"mounts:\n{mounts}"))


def wait_for_the_canary(reader: Reader) -> None:
    reader.site.wait_for(lambda rows: any(row["state"] == "RUNNING" for row in rows))


def start_jobs(reader: Reader) -> None:
    (reader.site.folder / "go").touch()


def fail_a_job(reader: Reader) -> None:
    """Submit a case that runs out of memory. The next attempt succeeds."""
    reader.site.behave("fail", "pp4-gbs4")
    done = reader.site.repro("submit", "figure-13", *CPU, "--where", "pp=4,gbs=4", "--wait")
    assert done.returncode == 1, done.stderr
    reader.site.behave("well", "pp4-gbs4")


def remove_the_profile(reader: Reader) -> None:
    (reader.site.folder / "clusters" / "here.yaml").unlink()


CPU = ("--cluster", "here", "--scale", "cpu")
ONE = ("--where", "pp=1,gbs=4")
NEW = Step(before=remove_the_profile)
PLAIN = Step()

ON_SLURM = {
    # the administrator's tutorial
    "clusters new here": NEW,
    "sed -n 22,33p clusters/here.yaml": PLAIN,
    "clusters check here": Step(before=write_overlay),
    "clusters check here --job": Step(differs=("here: 20 checks",)),
    "clusters check here --experiment figure-13 --scale cpu": PLAIN,
    "submit figure-13 --cluster here --scale cpu --canary --wait": Step(added=ONE, before=start_jobs),
    "nodes deny n4 --because GPU 2 has ECC errors --until 2026-12-31 --cluster here": PLAIN,
    "nodes list": PLAIN,
    "nodes allow n4": PLAIN,
    # the engineer's tutorial
    "submit figure-13 --cluster here --scale cpu --dry-run": PLAIN,
    "render figure-13 --cluster here --scale cpu --where pp=4,gbs=4 --explain": PLAIN,
    "submit figure-13 --cluster here --scale cpu --canary --max-parallel 1": PLAIN,
    "status figure-13": Step(before=wait_for_the_canary),
    "wait figure-13": Step(before=start_jobs),
    "submit figure-13 --cluster here --scale cpu": PLAIN,
    "submit figure-13 --cluster here --scale cpu --where pp=4,gbs=4 --arg --no-such-option --wait": Step(code=1),
    "status figure-13 --failed": PLAIN,
    "logs JOB": PLAIN,
    "history JOB": PLAIN,
    "claims figure-13": PLAIN,
    "compare figure-13": PLAIN,
    "collect figure-13 -o figure-13.csv": PLAIN,
    # the README and the guides
    "submit figure-16 --cluster here --dry-run": PLAIN,
    "submit figure-16 --cluster here --canary --wait": Step(added=("--where", "mbs=1"), before=start_jobs),
    "claims figure-16": PLAIN,
    "submit figure-13 --cluster here --canary --wait": Step(added=ONE),
    "claims --cluster here": PLAIN,
    "submit figure-16 --cluster here --where mbs=1 --repeat 8 --set slurm.sbatch+=--nodelist=n7": PLAIN,
    "clusters check here --experiment figure-13 --scale quad": PLAIN,
    "render figure-13 --cluster here --scale quad --explain": PLAIN,
    "submit figure-13 --cluster here --scale quad --dry-run": PLAIN,
    "clusters check h200 --job": PLAIN,
    "submit figure-16 --cluster h200 --scale quad --wait": Step(added=("--where", "mbs=1")),
    "submit figure-13 --cluster selene --canary --wait": Step(added=ONE),
    "retry figure-13 --class timeout --time +50% --dry-run": Step(before=fail_a_job),
    "retry figure-13 --class timeout --time +50% --wait": PLAIN,
    "clusters check selene --job": PLAIN,
    "logs 77a694 --rank 3 --attempt 1": PLAIN,
    "logs JOB --rank 3 --attempt 1": PLAIN,
    "cancel figure-13": PLAIN,
    "submit figure-13 --cluster selene --wait --json": Step(added=ONE),
    "clusters check mine --json": PLAIN,
    "render figure-13 --cluster selene -o jobs": Step(added=ONE),
    "sbatch jobs/figure-13-pp8-tp8-gbs32.sh": PLAIN,
    "adopt jobs": PLAIN,
    "submit figure-13 --cluster here --time 1:00:00": Step(added=ONE),
    "nodes deny n3 --cluster here --because ECC error --until 2026-12-31": PLAIN,
}

RUN_TWICE = {
    "cancel figure-13",
    "claims figure-13",
    "collect figure-13 -o figure-13.csv",
    "compare figure-13",
    "history JOB",
    "logs JOB",
    "nodes list",
    "status figure-13",
    "status figure-13 --failed",
    "wait figure-13",
}
"""Commands that the unit tests run as well, because they need no Slurm."""


@pytest.fixture(scope="module")
def profile(slurm_cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> str:  # noqa: ARG001  needs it up
    """Return the profile that `repro clusters new` writes here."""
    site = SlurmSite(tmp_path_factory.mktemp("new"))
    done = site.repro("clusters", "new", "here")
    assert done.returncode == 0, done.stderr
    return (site.folder / "clusters" / "here.yaml").read_text()


@pytest.fixture
def reader(tmp_path: Path, profile: str) -> Reader:
    """Return a reader whose site has the generated profile, an image and the stand-in."""
    folder = tmp_path / "shared"
    for path in (folder, folder / "clusters", folder / "images"):
        path.mkdir()
    site = SlurmSite(folder)
    site.write_program()
    (folder / "python").write_text(PYTHON.format(folder=folder, python=sys.executable))
    (folder / "python").chmod(0o755)
    write_image(folder / "images" / "pytorch.sqsh")
    (folder / "clusters" / "here.yaml").write_text(profile)
    return Reader(site)


def type_commands(reader: Reader, *pages: str) -> None:
    """Run the commands of the pages in their order."""
    for page in pages:
        for command in typed_lines(page):
            if command.key in ON_SLURM:
                reader.type(command)
    assert reader.faults == [], "\n".join(reader.faults)


def test_the_commands_of_the_administrators_tutorial_print_what_it_shows(reader: Reader) -> None:
    type_commands(reader, ADMINISTRATOR)


def test_the_commands_of_the_engineers_tutorial_print_what_it_shows(reader: Reader) -> None:
    write_overlay(reader)
    write_overlay(reader)
    type_commands(reader, ENGINEER)


def test_the_commands_of_the_readme_and_the_guides_succeed(reader: Reader) -> None:
    write_overlay(reader)
    write_overlay(reader)
    reader.overlay.write_text(
        f"hardware: {{gpu: }}  # the torch of the tests is made for CPUs\n{reader.overlay.read_text()}"
    )
    type_commands(reader, *GUIDES)
