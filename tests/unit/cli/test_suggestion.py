from __future__ import annotations

import ast
import inspect
import itertools
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from orchestrator import cli
from orchestrator.cli import suggestion
from orchestrator.cli.main import app
from orchestrator.cli.output import message
from tests.unit.cli.calling import Caller

COMMANDS = Path(cli.__file__).parent
PRINTERS = {"suggest", "suggest_why", "next_command", "no_longer_waiting"}
KEPT = ("--cluster", "--scale", "--where", "--workload", "--set", "--attempt", "--database")

# (file, start of the call) of suggestions that need a scheduler, a registry or a network. Their tests are elsewhere.
NOT_DRIVEN = {
    ("options.py", "suggest(context, cancel"),  # Ctrl-C: test_run_wait.py
    ("run.py", "no_longer_waiting("),
    ("submission.py", "no_longer_waiting("),
    ("submission.py", "suggest(context, f\"or: {suggested(context, 'cancel'"),
    ("submission.py", "suggest(context, 'submit the queued jobs"),  # a full Slurm: test_run_submit.py
    ("run.py", "suggest(context, f'the events of"),  # a job that cannot start: test_run_wait.py
    ("sites.py", "suggest(context, purpose, 'clusters check'"),  # Slurm: test_sites_clusters.py
    ("sites.py", "suggest(context, 'import the images"),  # a registry: test_sites_images.py
    ("sites.py", "suggest(context, 'the imported images'"),
    ("sites.py", "suggest(context, 'after the cause"),
    ("sites.py", "suggest(context, 'what is right"),  # Slurm: tests/slurm/test_site_on_slurm.py
    ("sites.py", "next_command(f'cat"),
    ("workloads.py", "suggest(context, 'the profile and its paths', 'clusters check', cluster)"),  # test_workloads.py
    ("workloads.py", "suggest(context, 'fetch what is missing'"),
    ("watch.py", "suggest(context, 'its cases'"),  # more than 60 jobs: test_watch_status.py
    ("show.py", "suggest(context, 'the experiments that can"),  # without a case to run: test_catalog.py
    ("adopting.py", "suggest("),  # test_adopting.py
    ("search.py", "suggest("),  # test_search.py
}


def sites() -> dict[tuple[str, int, int], str]:
    """Return the calls that print a suggestion, by file and lines."""
    return {
        (file.name, node.lineno, node.end_lineno or node.lineno): ast.unparse(node)
        for file in COMMANDS.glob("*.py")
        if file.name not in ("suggestion.py", "job_table.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PRINTERS
    }


def lines_of_callers() -> Iterator[tuple[str, int]]:
    """Yield file and line of each function of the command line that is active now."""
    frame = inspect.currentframe()
    while frame is not None:
        if Path(frame.f_code.co_filename).parent == COMMANDS:
            yield Path(frame.f_code.co_filename).name, frame.f_lineno
        frame = frame.f_back


class Walk:
    """Commands that are run for their suggestions, which are run afterwards."""

    def __init__(self, repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repro = repro
        self.lines: set[tuple[str, int]] = set()
        self.open: list[str] = []
        monkeypatch.setattr(suggestion, "message", self._record)

    def _record(self, text: str) -> None:
        self.lines |= set(lines_of_callers())
        message(text)

    def run(self, line: str, *codes: int, narrower: bool = False) -> None:
        """Run a command, and require that its suggestion has the options. `narrower`: it selects one case of them."""
        words = shlex.split(line)
        done = self.repro(*words)
        assert done.returncode in (codes or (0,)), (line, done.stderr)
        *_, last = done.stderr.splitlines()
        assert last.startswith("next: "), (line, done.stderr)
        suggested = last.removeprefix("next: ").partition("   #")[0]
        self.open.append(suggested)
        if not suggested.startswith("repro "):
            return
        taken = options_of(shlex.split(suggested)[1:])
        lost = [
            f"{option} {value}"
            for option, value in itertools.pairwise(words)
            if option in KEPT and option in taken and shlex.join([option, value]) not in suggested
        ]
        if narrower:
            lost = [option for option in lost if not option.startswith("--where") or "--where" not in suggested]
        assert not lost, (line, suggested, lost)
        if "figure-13" in words and taken & {"experiment", "experiments", "names", "targets", "what", "arguments"}:
            assert "figure-13" in suggested, (line, suggested)

    def follow(self) -> None:
        """Run the suggestions."""
        for line in dict.fromkeys(self.open):
            words = shlex.split(line)
            if words[0] == "repro":
                done = self.repro(*words[1:])
                assert done.returncode in (0, 1), (line, done.stderr)  # 1: a claim or a job failed
        self.open.clear()


def options_of(words: list[str]) -> set[str]:
    """Return the options and arguments of the command that these words call."""
    if words[:2] == ["bundle", "verify"]:
        return set()
    command = get_command(app).get_command(None, words[0])  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        command = command.commands[words[1]]
    return {option for parameter in command.params for option in (*parameter.opts, parameter.name)}


def test_every_suggested_command_works_and_keeps_what_was_selected(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, site = Walk(repro, monkeypatch), repro.site
    here, some = "--cluster here --scale cpu", "--where gbs=4"
    walk.run("status")
    walk.run("list")
    walk.run("show figure-13")
    walk.run("show figure-13 --scale cpu --where pp=4")
    walk.run("show sc21")
    walk.run("show core-cp --script")
    for words in (
        "plan figure-13",
        "plan figure-13 --where pp=8",
        f"plan figure-13 {here} {some}",
        "plan figure-13 --cluster selene --scale quad --where pp=4 --time-budget 1h --example",
        "plan figure-13 figure-16 --cluster here --scale cpu",
        f"render figure-13 {here} {some}",
        f"render figure-13 {here} --where pp=4,gbs=4 --arg --lr=0.5 --set training.iterations=7 -o jobs",
        f"render figure-13 {here} --where pp=4,gbs=4 --set training.iterations=7 --explain",
        f"render figure-13 --cluster clusters/here.yaml --scale cpu {some} --explain",
    ):
        walk.run(words)
    walk.run(f"submit figure-13 {here} {some} --dry-run", narrower=True)
    walk.run("submit figure-13 --cluster selene --scale quad --where pp=4 --time-budget 1h --example --dry-run")
    walk.follow()

    site.behave("fail", "pp4-gbs4")
    walk.run(f"submit figure-13 {here} {some} --wait", 1)
    for words, code in (
        (f"status figure-13 {here} {some}", 0),
        ("claims figure-13 --scale cpu", 1),
        ("compare figure-13 --scale cpu", 1),
        ("report figure-13 -o report", 0),
        ("wait figure-13 --scale cpu", 1),
        (f"retry figure-13 {some} --class gpu-oom --dry-run", 0),
        (f"retry figure-13 {some}", 0),
    ):
        walk.run(words, code)
    site.behave("gated", "pp4-gbs4")  # the suggested retry waits for the file `go`
    walk.follow()
    walk.run(f"status figure-13 {some}")
    walk.run(f"wait figure-13 {some} --timeout 1s", 124)
    walk.run(f"submit figure-13 {here} {some}")
    (site.folder / "go").touch()
    walk.run(f"wait figure-13 {here} {some}")
    walk.follow()

    job = json.loads(repro("status", "figure-13", "--where", "pp=4", "--json").stdout)["jobs"][0]["job"]
    walk.run(f"submit figure-13 {here} {some} --wait")
    walk.run(f"submit figure-13 {here} {some}")
    walk.run("submit figure-13 figure-16 --cluster here --scale cpu --where gbs=16 --wait")
    walk.run("submit figure-13 figure-16 --cluster here --scale cpu --where gbs=16")
    runs = repro("sql", "select id from runs order by id limit 2", "--csv").stdout.split()[1:]
    for words in (
        f"status figure-13 {here} {some}",
        "status figure-13 --failed",
        f"collect figure-13 {here} {some} --attempt 1",
        f"compare figure-13 {here} {some}",
        f"compare figure-13 {' '.join(runs)}",
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
        "clusters list",
        "clusters show here",
        "clusters check here",
        "nodes list",
        "nodes deny n7 --because ECC --cluster selene",
        "nodes list",
        "images list --cluster here",
        "workloads list",
        "workloads show megatron-2021",
        "workloads show megatron-2021 --cluster here",
        "config show",
        "experiments new my/figure-1.yaml",
        "experiments check my/figure-1.yaml",
    ):
        walk.run(words, 0, 1)  # 1: the first attempt has failed
    walk.open.remove(next(line for line in walk.open if "workloads fetch" in line))  # needs a network
    walk.follow()  # allows the node again
    assert repro("nodes", "deny", "n7", "--because", "ECC", "--cluster", "selene").returncode == 0
    walk.run("nodes allow n7 --cluster selene")
    (site.folder / "go").unlink()
    walk.run(f"submit figure-13 {here} --where pp=4,gbs=4 --rerun")
    walk.open.clear()  # it would wait
    walk.run("cancel figure-13 --where pp=4,gbs=4")
    walk.follow()

    site.behave("fail")
    site.behave("fail", "pp4-gbs4")
    walk.run(f"submit figure-12 {here} --canary --wait", 1)
    walk.run("status figure-12 --where gbs=12")
    walk.follow()

    not_driven = {
        (file, text)
        for (file, first, last), text in sites().items()
        if not any(name == file and first <= line <= last for name, line in walk.lines)
    }
    unexpected = {
        (file, text)
        for file, text in not_driven
        if not any(file == name and text.startswith(start) for name, start in NOT_DRIVEN)
    }
    assert not unexpected, f"drive these suggestions above: {unexpected}"


def test_the_options_that_a_suggestion_keeps_are_options_of_the_suggested_command() -> None:
    options = suggestion._OPTIONS
    for command, taken in suggestion.TAKEN.items():
        real = options_of(command.split())
        assert taken == {name for name, option in options.items() if option in real}, command
    assert sys.modules["orchestrator.cli.suggestion"] is suggestion
