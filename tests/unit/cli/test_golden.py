"""Golden texts of commands: stdout, stderr and exit code, in tests/unit/cli/golden.

If a change of a text is intended: python -m pytest tests/unit/cli/test_golden.py --update-golden
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.recorded_jobs import CRASHED, START, Outcome, new_ledger, record_results
from tests.stand_in_site import CHECKOUT, Site
from tests.unit.catalog.entries import figure_13, shipped
from tests.unit.cli.calling import Caller

GOLDEN = Path(__file__).with_name("golden")
RATES = {f"pp={pp},tp={4 // pp},gbs={gbs}": gbs / 32 + 4.0 / pp for pp in (1, 2, 4) for gbs in (32, 128)}
LATER: dict[str, Outcome | float] = {**RATES, "pp=1,tp=4,gbs=32": Outcome(columns=CRASHED), "pp=2,tp=2,gbs=32": 2.0}
COMMANDS = {
    "bundle-verify": "bundle verify CHECKOUT/experiments/results/h200/figure-16.tar.zst",
    "cancel": "cancel figure-13 --cluster eos",
    "claims": "claims figure-13 --cluster selene",
    "claims-failed": "claims figure-13 --cluster eos",
    "clusters-list": "clusters list",
    "clusters-show": "clusters show selene",
    "compare-published": "compare table-1",
    "compare-runs": "compare figure-13 selene eos",
    "collect": "collect figure-13 --cluster selene --export md",
    "experiments-check": "experiments check figure-13",
    "history": "history JOB",
    "images-list": "images list --cluster selene",
    "list": "list",
    "logs": "logs JOB",
    "nodes-list": "nodes list",
    "plan": "plan figure-13 --scale quad --cluster selene",
    "plot": "plot figure-13 --cluster selene -o HOME/figure-13.svg --force",
    "render": "render figure-13 --scale quad --cluster selene --where pp=2,gbs=32 --example",
    "report": "report figure-13 --cluster selene -o HOME/report.html --force",
    "retry": "retry figure-13",
    "show": "show figure-13 --scale quad",
    "sql": "sql",
    "status": "status figure-13 --cluster eos",
    "submit": "submit figure-13 --scale quad --cluster selene --dry-run",
    "wait": "wait figure-13 --cluster eos",
    "programs-list": "programs list",
    "programs-show": "programs show megatron-2021 --cluster selene",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A site with results of two clusters. No job runs."""
    site = Site.create(tmp_path_factory.mktemp("recorded") / "home")
    ledger = new_ledger(site.folder)
    record_results(ledger, figure_13(), "quad", RATES)
    record_results(ledger, figure_13(), "quad", LATER, at=START + timedelta(days=1), cluster="eos")
    table_1: dict[str, Outcome | float] = {
        "case=1.7B": 137.0,
        "case=3.6B": 100.0,
        "case=7.5B": Outcome(142.0, spread=20.0),
    }
    record_results(ledger, shipped("table-1"), "paper", table_1, at=START + timedelta(days=2))
    return site


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_of_a_command_is_its_golden_text(
    name: str,
    recorded: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    repro = Caller(recorded, monkeypatch, capsys)
    command = COMMANDS[name].replace("JOB", recorded.status()[0]["job"])
    done = repro(*command.replace("CHECKOUT", str(CHECKOUT)).replace("HOME", str(recorded.folder)).split())
    text = f"$ repro {COMMANDS[name]}\n{done.stdout}--- stderr, exit code {done.returncode}\n{done.stderr}"
    for path, word in ((str(recorded.folder), "HOME"), (str(CHECKOUT), "CHECKOUT")):
        text = text.replace(path, word)
    text = re.sub(r"\b[0-9a-f]{12}\b", "JOB-OR-CODE-", text)  # they change with the program's own code
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    file = GOLDEN / f"{name}.txt"
    if pytestconfig.getoption("--update-golden"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), "--update-golden writes it"


def test_each_golden_text_has_its_command() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(COMMANDS)
