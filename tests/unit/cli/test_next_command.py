"""The last line of a command, `next: repro ...`, is a command that works and keeps the selection."""

from __future__ import annotations

import itertools
import json
import shlex

import pytest
from typer.main import get_command

from orchestrator.cli.main import app
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

KEPT = ("--cluster", "--scale", "--where", "--program", "--set", "--attempt", "--database")


class Walk:
    """Commands that are run for their next commands, which are run afterwards."""

    def __init__(self, repro: Caller) -> None:
        self.repro = repro
        self.open: list[str] = []

    def run(self, line: str, *codes: int) -> None:
        """Run a command, and require that its next command has the same options."""
        words = shlex.split(line)
        done = self.repro(*words)
        assert done.returncode in (codes or (0,)), (line, done.stderr)
        *_, last = done.stderr.splitlines()
        assert last.startswith("next: "), (line, done.stderr)
        following = last.removeprefix("next: ").partition("   #")[0]
        assert following != f"repro {line}", "it leads nowhere"
        self.open.append(following)
        if not following.startswith("repro "):
            return
        taken = options_of(shlex.split(following)[1:])
        given = [pair for pair in itertools.pairwise(words) if pair[0] in KEPT and pair[0] in taken]
        lost = [pair for pair in given if shlex.join(pair) not in following and not is_narrower(pair[0], following)]
        assert not lost, (line, following, lost)
        if "figure-13" in words and taken & {"experiment", "experiments", "names", "targets", "what", "arguments"}:
            assert "figure-13" in following, (line, following)

    def follow(self) -> None:
        """Run the next commands."""
        for line in dict.fromkeys(self.open):
            words = shlex.split(line)
            if words[0] == "repro":
                done = self.repro(*words[1:])
                assert done.returncode in (0, 1), (line, done.stderr)  # 1: a claim or a job failed
        self.open.clear()


def is_narrower(option: str, following: str) -> bool:
    """Return whether the next command is about one case of those that were selected."""
    return option == "--where" and " --where " in following


def options_of(words: list[str]) -> set[str]:
    """Return the options and arguments of the command that these words call."""
    if words[:2] == ["bundle", "verify"]:
        return set()
    command = get_command(app).get_command(None, words[0])  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        command = command.commands[words[1]]
    return {option for parameter in command.params for option in (*parameter.opts, parameter.name)}


@pytest.fixture
def walk(repro: Caller) -> Walk:
    return Walk(repro)


def test_the_next_command_of_plans_and_scripts_works(walk: Walk) -> None:
    here, some = "--cluster here --scale cpu", "--where gbs=4"
    for line in (
        "status",
        "list",
        "show figure-13",
        "show figure-13 --scale cpu --where pp=4",
        "show sc21",
        "show core-cp --script",
        "plan figure-13",
        "plan figure-13 --where pp=8",
        f"plan figure-13 {here} {some}",
        "plan figure-13 --cluster selene --scale quad --where pp=4 --time-budget 1h --example",
        "plan figure-13 figure-16 --cluster here --scale cpu",
        f"render figure-13 {here} {some}",
        f"render figure-13 {here} --where pp=4,gbs=4 --arg --lr=0.5 --set training.iterations=7 -o jobs",
        f"render figure-13 {here} --where pp=4,gbs=4 --set training.iterations=7 --explain",
        f"render figure-13 --cluster clusters/here.yaml --scale cpu {some} --explain",
        f"submit figure-13 {here} {some} --time 0:10:00 --dry-run",
        "submit figure-13 --cluster selene --scale quad --where pp=4 --time-budget 1h --example --dry-run",
        "clusters list",
        "clusters show here",
        "clusters check here",
        "nodes list",
        "nodes deny n7 --because ECC --cluster selene",
        "nodes list",
        "images list --cluster here",
        "programs list",
        "programs show megatron-2021",
        "config show",
        "experiments new my/figure-1.yaml",
        "experiments check my/figure-1.yaml",
    ):
        walk.run(line)
    walk.follow()
    file = walk.repro.site.folder / "my/figure-1.yaml"
    file.write_text(file.read_text().partition("scales:")[0])
    walk.run("experiments check my/figure-1.yaml")  # no scale fits this machine, and its paper has none
    walk.follow()


def test_the_next_command_of_failed_jobs_works(walk: Walk) -> None:
    site, here, some = walk.repro.site, "--cluster here --scale cpu", "--where gbs=4"
    site.behave("fail", "pp4-gbs4")
    walk.run(f"submit figure-13 {here} {some} --wait --database my.db", 1)
    for line, code in (
        (f"status figure-13 {here} {some} --database my.db", 0),
        ("claims figure-13 --scale cpu --database my.db", 1),
        ("compare figure-13 --scale cpu --database my.db", 1),
        ("report figure-13 -o report --database my.db", 0),
        ("wait figure-13 --scale cpu --database my.db", 1),
        (f"retry figure-13 {some} --class gpu-oom --dry-run --database my.db", 0),
        (f"retry figure-13 {some} --database my.db", 0),
    ):
        walk.run(line, code)
    site.behave("gated", "pp4-gbs4")  # the retry waits for the file `go`
    walk.follow()
    walk.run(f"status figure-13 {some} --database my.db")
    walk.run(f"wait figure-13 {some} --timeout 1s --database my.db", 124)
    walk.run(f"submit figure-13 {here} {some} --database my.db")
    (site.folder / "go").touch()
    walk.run(f"wait figure-13 {here} {some} --database my.db")
    walk.follow()

    site.behave("fail")
    walk.run(f"submit figure-12 {here} --canary --wait --database my.db", 1)
    walk.run("status figure-12 --where gbs=12 --database my.db")
    walk.follow()


def test_the_next_command_of_measured_jobs_works(walk: Walk) -> None:
    here, some = "--cluster here --scale cpu", "--where gbs=4"
    walk.run(f"submit figure-13 {here} {some} --wait")
    walk.run(f"submit figure-13 {here} {some}")
    walk.run("submit figure-13 figure-16 --cluster here --scale cpu --where gbs=16 --wait")
    walk.run("submit figure-13 figure-16 --cluster here --scale cpu --where gbs=16")
    walk.run(f"submit figure-13 {here} {some} --rerun --wait")
    job = json.loads(walk.repro("status", "figure-13", "--where", "pp=4,gbs=4", "--json").stdout)["jobs"][0]["job"]
    attempts = json.loads(walk.repro("history", job, "--json").stdout)["attempts"]
    runs = [attempt["run_id"] for attempt in attempts]
    for line in (
        f"status figure-13 {here} {some}",
        "status figure-13 --failed",
        "status figure-13 --state failed",
        "status figure-14",
        f"collect figure-13 {here} {some} --attempt 1",
        f"compare figure-13 {here} {some}",
        f"compare figure-13 {' '.join(runs)}",
        f"claims figure-13 {here} --attempt 1",
        f"plot figure-13 {here} {some}",
        f"history {job}",
        f"logs {job}",
        "sql",
        "sql 'select count(*) from v_results'",
        f"collect figure-13 {here} --without '{job}:1=a slow node'",
        f"cancel figure-13 {some}",
        f"retry figure-13 {some}",
        f"wait figure-13 {some}",
        "wait",
        "wait figure-13 figure-16 --scale cpu",
        f"bundle figure-13 {here} --force",
        "bundle verify figure-13-cpu-here.tar.zst",
        "report figure-13 -o report",
    ):
        walk.run(line)
    walk.follow()
    walk.run(f"submit figure-13 {here} --where pp=4,gbs=4 --rerun")
    walk.follow()
    walk.run(f"wait figure-13 {some}")
