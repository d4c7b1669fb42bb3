"""Experiments for tests: the shipped figure 13, and small ones."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.paths import Folders

CHECKOUT = Path(__file__).resolve().parents[3]

BASE = """\
figure: Figure 1
title: t
workload: pretrain
gpus: 8
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
matrix:
  pp: [1, 2, 4]
  gbs: [8, 16]
rules:
  tp: gpus / pp
fixed: {mbs: 1}
axes:
  x: {label: x, of: [pp, tp]}
  y: {label: y, metric: iteration_ms}
  series: {label: s, of: gbs}
"""


def short(problem: object) -> str:
    """Return the text of a problem, with file names without their folder."""
    return re.sub(r"\S*experiments/p/", "", str(problem))


def shipped(name: str = "figure-13") -> Entry:
    return find_experiment(Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home"), name)


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


def find_case(experiment: str, name: str, scale: str = "paper") -> Case:
    """Return a case of a shipped experiment, by the text of `--where`."""
    return next(case for case in expand(shipped(experiment), scale) if case.name == name)
