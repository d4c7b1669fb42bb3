"""Tests of the JSON documents. `Caller` validates each document that the other tests of commands print."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from typer.main import get_command

from orchestrator.cli.main import app
from tests.json_schema import DOCUMENTS, FILE, schema_text
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

HERE = ("figure-13", "--cluster", "here", "--scale", "cpu")
PRINTS_JSON_ANYWAY = {"clusters schema", "experiments schema"}
NEEDS_A_SITE = {
    "experiments new",
    "experiments check",
    "images import",
    "clusters new",
    "programs fetch",
    "nodes deny",
    "nodes allow",
}
"""Commands that their own tests call with --json."""


def test_the_schema_in_the_docs_is_that_of_the_documents() -> None:
    assert FILE.read_text() == schema_text(), "python -m tests.json_schema writes it"


def test_every_command_has_json_and_a_document() -> None:
    group = get_command(app)
    with group.make_context("repro", [], resilient_parsing=True) as context:
        commands = dict(_commands(group, context, ""))
    without = {name for name, command in commands.items() if not any("--json" in each.opts for each in command.params)}
    assert without == PRINTS_JSON_ANYWAY
    assert set(commands) - without == set(DOCUMENTS) - {"bundle verify"}


def _commands(group: Any, context: Any, prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        is_group = hasattr(command, "list_commands")
        found += _commands(command, context, f"{name} ") if is_group else [(f"{prefix}{name}", command)]
    return found


def test_every_command_prints_its_document_and_nothing_else(looking: Caller, tmp_path: str) -> None:
    job = json.loads(looking("status", "--json").stdout)["jobs"][0]
    assert job["experiment"] == "sc21/figure-13" and (job["iteration"], job["iterations"]) == (8, 8)
    calls: dict[str, tuple[str, str]] = {
        "list": ("list", "experiments"),
        "show": ("show figure-13", "cases"),
        "plan": (f"plan {' '.join(HERE)}", "cases"),
        "render": (f"render {' '.join(HERE)}", "scripts"),
        "status": ("status", "experiments"),
        "logs": (f"logs {job['job']}", "lines"),
        "history": (f"history {job['job']}", "attempts"),
        "sql": ("sql", "relations"),
        "submit": (f"submit {' '.join(HERE)} --wait", "claims"),
        "search": ("search figure-13 --where gbs=32 --simulate", "simulated"),
        "adopt": (f"adopt {tmp_path}/jobs", "not_submitted"),
        "wait": ("wait figure-13", "jobs"),
        "retry": ("retry figure-13", ""),
        "cancel": ("cancel figure-13", ""),
        "collect": (f"collect -o {tmp_path}/x.csv", "files"),
        "compare": ("compare", "numbers"),
        "claims": ("claims", "claims"),
        "plot": (f"plot -o {tmp_path}/x.svg", "files"),
        "report": (f"report -o {tmp_path}/page", "files"),
        "bundle": (f"bundle figure-13 -o {tmp_path}/x.tar.zst", "files"),
        "bundle verify": (f"bundle verify {tmp_path}/x.tar.zst", "checks"),
        "clusters list": ("clusters list", "clusters"),
        "clusters show": ("clusters show here", "fields"),
        "clusters check": ("clusters check here", "checks"),
        "images list": ("images list --cluster here", ""),
        "nodes list": ("nodes list", ""),
        "config show": ("config show", "settings"),
        "programs list": ("programs list", "programs"),
        "programs show": ("programs show megatron-2021", "needs"),
    }
    assert set(DOCUMENTS) - set(calls) == NEEDS_A_SITE
    looking("render", *HERE, "-o", f"{tmp_path}/jobs")
    for command, (words, rows) in calls.items():
        done = looking(*words.split(), "--json")
        document = json.loads(done.stdout)
        assert (document["command"], done.returncode) == (command, 0), (words, done.stderr)
        assert not rows or document[rows], words


@pytest.mark.parametrize(
    ("words", "command", "error"),
    [
        ("status --nosuch", "status", ("status:", "no such option: --nosuch", "repro status --help")),
        ("clusters show nosuch", "clusters show", (None, "nosuch: no such cluster", None)),
        ("bundle verify", "bundle verify", (None, "verify needs a file", "repro bundle verify FILE.tar.zst")),
    ],
)
def test_an_error_is_a_document_with_location_problem_and_hint(
    looking: Caller, words: str, command: str, error: tuple[str | None, str, str | None]
) -> None:
    done = looking(*words.split(), "--json")
    document = json.loads(done.stdout)
    (row,) = document["errors"]
    location, problem, hint = error
    assert (done.returncode, document["exit_code"], document["command"]) == (2, 2, command)
    assert problem in row["problem"] and location == row["location"] and hint in (None, row["hint"])
    assert done.stderr.startswith("repro: "), "people read it on stderr, too"


def test_the_example_of_the_docs_works(looking: Caller) -> None:
    page = FILE.with_name("json.md").read_text()
    (query,) = (line.partition("jq -r ")[2].strip("'\n") for line in page.splitlines() if "status --json | jq" in line)
    text = looking("status", "--json").stdout
    try:
        done = subprocess.run(["jq", "-r", query], input=text, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("jq is not installed")
    assert done.stdout.splitlines()[0].startswith("sc21/figure-13")
