"""Tests of the modules that a command loads: read-only commands must be fast on a slow file system."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.stand_in_site import Site

pytestmark = pytest.mark.slow

HEAVY = {"torch", "megatron", "matplotlib", "numpy", "pandas", "sqlalchemy", "submitit", "jinja2", "rich"}
# pydantic: typer 0.29 loads it by itself for every command with options, so what counts is whether we ask for more.
READS_YAML = {"yaml", "orchestrator.catalog", "orchestrator.clusters", "orchestrator.config"}

RUN = """
import json, sys
sys.argv = ["repro", *sys.argv[1:]]
from orchestrator.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
names = {".".join(name.split(".")[:depth]) for name in sys.modules for depth in range(1, 5)}
print(json.dumps(sorted(names)), file=sys.stderr)
"""


def loaded(site: Site, *words: str) -> set[str]:
    """Return the packages and modules in memory at the end of a command."""
    command = [sys.executable, "-c", RUN, *words]
    done = subprocess.run(command, cwd=site.folder, env=site.environment, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("words", ["--help", "--version", "submit --help", "plot --help"])
def test_help_loads_nothing_heavy(site: Site, words: str) -> None:
    assert loaded(site, *words.split()) & (HEAVY | READS_YAML) == set()


def test_the_first_help_loads_no_pydantic_either(site: Site) -> None:
    assert "pydantic" not in loaded(site, "--help")


def test_status_with_nothing_under_way_loads_the_database_and_nothing_else(finished: Site) -> None:
    parts = {"pydantic", "orchestrator.launch"}
    assert loaded(finished, "status") & (HEAVY | READS_YAML | parts) == {"sqlalchemy"}
    assert "pydantic" not in loaded(finished, "status", "--database", "results.db"), "text needs no conversion"


def test_status_without_jobs_loads_no_parser_and_no_patterns_of_secrets(site: Site) -> None:
    parser = {"orchestrator.megatron.logs.parse", "orchestrator.megatron.logs.iteration_lines"}
    others = {"orchestrator.masking"}
    assert loaded(site, "status") & (parser | others) == set()


def test_list_needs_neither_the_database_nor_the_scheduler_and_plans_nothing(site: Site) -> None:
    models = {"orchestrator.megatron.time_model", "orchestrator.megatron.exact", "orchestrator.megatron.meta_memory"}
    parts = {"orchestrator.planning", "orchestrator.slurm", "orchestrator.ledger"} | models
    assert loaded(site, "list") & (HEAVY | parts) == set()


def test_list_reads_a_ledger_without_the_modules_of_the_database(finished: Site) -> None:
    names = loaded(finished, "list")
    assert (names & HEAVY, "orchestrator.ledger" in names) == (set(), True)


@pytest.mark.parametrize(
    "words", ["programs list", "programs show megatron-2021 --cluster selene", "images list --cluster selene"]
)
def test_needs_and_images_are_listed_without_a_heavy_package(words: str, site: Site) -> None:
    assert loaded(site, *words.split()) & HEAVY == set()


def test_a_dry_run_loads_neither_database_nor_submitit_nor_torch(site: Site) -> None:
    names = loaded(site, "submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--dry-run")
    assert names & {*HEAVY, "http"} == set()  # http: for downloads


def test_collect_does_not_load_the_modules_for_plots(finished: Site) -> None:
    assert loaded(finished, "collect") & {"matplotlib", "numpy", "torch"} == set()
