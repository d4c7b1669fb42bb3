"""Experiments for tests: the shipped figure 13, and small ones."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.catalog.claims import Claim
from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.megatron.case import TrainingCase
from orchestrator.paths import Folders
from tests.cases import expand

CHECKOUT = Path(__file__).resolve().parents[3]

BASE = """\
figure: Figure 1
title: t
program: pretrain
gpus: 8
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
matrix:
  pp: [1, 2, 4]
  gbs: [8, 16]
rules:
  tp: gpus / pp
fixed: {mbs: 1}
plot:
  x: {label: x, of: [pp, tp]}
  y: {label: y, metric: iteration_ms}
  series: {label: s, of: gbs}
"""

THREE_METHODS = """\
figure: Figure 1
title: t
program: pretrain
gpus: 4
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
cases:
  - {case: plain, recompute: none, expect: oom}
  - {case: theirs, recompute: full, published: {tokens_per_s: 100, mfu_percent: 40}}
  - {case: ours, recompute: ours, offload: 0.5, published: {tokens_per_s: 130}}
fixed: {mbs: 1, gbs: 8}
published_as: {how: printed, source: a table, gpu: H800}
plot:
  x: {label: Method, of: [case]}
  y: {label: Tokens per second, metric: tokens_per_s}
"""
"""Three methods as the rows of a table. One is published to run out of memory."""


def short(problem: object) -> str:
    """Return the text of a problem, with file names without their folder."""
    return re.sub(r"\S*experiments/p/", "", str(problem))


def shipped(name: str = "figure-13") -> Entry:
    return find_experiment(Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home"), name)


def figure_13() -> Entry:
    return shipped("figure-13")


def with_claims(entry: Entry, *claims: dict[str, Any]) -> Entry:
    """Return the experiment with these claims only."""
    every = {
        "says": "it is so",
        "source": "section 1",
        "stated": "printed",
        "judged_at": ["paper", *entry.experiment.scales],
    }
    read = [
        TypeAdapter(Claim).validate_python({"id": claim["kind"].replace(" ", "-")} | every | claim) for claim in claims
    ]
    return replace(entry, experiment=entry.experiment.model_copy(update={"claims": read}))


def of_cpus(entry: Entry) -> Entry:
    """Return the experiment as published on CPU cores, so that claims about rates are judged at scale cpu."""
    return replace(entry, experiment=entry.experiment.model_copy(update={"device": "cpu"}))


def write_experiment(folder: Path, text: str = BASE, name: str = "figure-1") -> Path:
    """Write and read `folder/experiments/p/NAME.yaml` and its paper."""
    paper = folder / "experiments" / "p"
    paper.mkdir(parents=True, exist_ok=True)
    (paper / "paper.yaml").write_text("title: t\nvenue: v\n")
    file = paper / f"{name}.yaml"
    file.write_text(text)
    return file


def entry_of(folder: Path, text: str = BASE) -> Entry:
    return read_experiment("p/figure-1", write_experiment(folder, text))


def find_case(experiment: str, name: str, scale: str = "paper") -> TrainingCase:
    """Return a case of a shipped experiment, by the text of `--where`."""
    return next(case for case in expand(shipped(experiment), scale) if case.name == name)
