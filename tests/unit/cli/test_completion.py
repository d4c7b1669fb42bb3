"""Tests of shell completion: the words that the tab key offers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.stand_in_site import REPRO
from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow


def complete(repro: Caller, line: str) -> list[str]:
    words = line.split(" ")
    with repro.monkeypatch.context() as patch:
        patch.setenv("_REPRO_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        return repro().stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("repro show figure-12", ["figure-12"]),
        ("repro plan atc", ["atc-32k", "atc-demo", "atc-figure-7", "atc-figure-9", "atc-table-8", "atc24"]),
        ("repro submit figure-13 --cluster he", ["here"]),
        ("repro show figure-13 --scale ", ["paper", "quad", "pair", "cpu"]),
        ("repro show figure-13 --where pp=1", ["pp=16"]),
        ("repro show figure-13 --scale quad --where pp=1", ["pp=1"]),
        ("repro plan figure-13 --cluster here --where pp=1", ["pp=1"]),
        ("repro images import --cluster eos pre", ["pretrain"]),
        ("repro retry figure-13 --class node-fail,timeo", ["node-fail,timeout"]),
        ("repro show figure-13 --where pp=8,g", ["pp=8,gbs=32", "pp=8,gbs=128"]),
        ("repro show no-such --where p", []),
    ],
)
def test_the_tab_key_completes_names_scales_and_cases(repro: Caller, line: str, expected: list[str]) -> None:
    assert complete(repro, line) == expected


def test_bash_completes_a_where_that_it_has_cut_at_every_equals_sign(repro: Caller) -> None:
    """The function that bash really calls, with the words as bash splits them; it replaces only the last."""
    script = """source <(_REPRO_COMPLETE=source_bash repro)
        offer() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _repro_completion repro; echo "${COMPREPLY[@]}"; }
        offer repro show figure-13 --where pp
        offer repro show figure-13 --where pp =
        offer repro show figure-13 --where pp = 1
        offer repro show figure-13 --where pp = 8,g
        offer repro show figure-13 --where pp = 8,gbs = 3
        offer repro show figure-13 --where pp = 8 --scale q"""
    path = f"{Path(REPRO).parent}:/usr/bin:/bin"
    environment = repro.site.environment | {"PATH": path}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "pp=2 pp=4 pp=8 pp=16 pp=32",
        "2 4 8 16 32",
        "16",
        "8,gbs=32 8,gbs=128",
        "32",
        "quad",
    ]


def test_the_tab_key_offers_the_jobs_that_were_submitted(repro: Caller) -> None:
    words = ("submit", "figure-13", "--cluster", "here", "--scale", "cpu", "--where", "pp=1,gbs=4", "--wait", "--json")
    (job,) = {row["job"] for row in json.loads(repro(*words).stdout)["cases"] if row["job"]}
    assert complete(repro, "repro logs ") == [job]
    assert job in complete(repro, "repro cancel ")


def test_the_tab_key_offers_the_programs(repro: Caller) -> None:
    assert complete(repro, "repro plan figure-13 --program pre") == ["pretrain"]
    assert complete(repro, "repro programs fetch megatron-20") == ["megatron-2021", "megatron-2026"]
    assert complete(repro, "repro programs fetch megatron-2021 --cluster sele") == ["selene"]
    offered = complete(repro, "repro submit figure-13 --cluster here --program ")
    assert {"pretrain", "megatron-2021", "megatron-kwai", "megatron-core-0.14"} <= set(offered)


def test_ctrl_c_while_the_shell_completes_prints_nothing(repro: Caller) -> None:
    def interrupted(_names: object) -> list[str]:
        raise KeyboardInterrupt

    repro.monkeypatch.setattr("orchestrator.api.experiment_names", interrupted)
    assert complete(repro, "repro show figure-12") == []
