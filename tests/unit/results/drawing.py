"""Pictures to look at in tests: their words, and every shipped experiment with made-up numbers beside the published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry, experiment_names
from orchestrator.paths import Folders
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.plot.figure import plot
from orchestrator.results.plot.panels import published_number
from tests.recorded_jobs import job_row, measured_results
from tests.unit.catalog.entries import CHECKOUT, entry_of

EXPERIMENTS = experiment_names(Folders(CHECKOUT, CHECKOUT))

LINES = """\
figure: Figure 1
title: t
program: pretrain
gpus: 4
model: {layers: 8, hidden: 64, heads: 8, seq: 16, vocab: 64}
matrix:
  recompute: [full, none]
  gbs: [8, 1, 2]
fixed: {mbs: 1}
plot:
  x: {label: Batch size, of: [gbs], scale: log2}
  y: {label: y, metric: tflops_per_gpu}
  series: {label: Recomputation, of: recompute, names: {full: With it}}
expected:
  - {where: {recompute: none, gbs: 8}, outcome: oom, confirmed: true, source: the plot}
"""
"""Two lines of three cases, of which one is published to run out of memory."""


def words(svg: str) -> list[str]:
    """Every text of a picture, in the order in which it is drawn."""
    tree = ElementTree.fromstring(svg[svg.index("<svg") :])
    texts = ("".join(text.itertext()) for text in tree.iter("{http://www.w3.org/2000/svg}text"))
    return [text.replace("\N{NO-BREAK SPACE}", " ") for text in texts]


def draw_own(folder: Path, text: str, rates: dict[str, float], **how: Any) -> list[str]:
    """The words of a figure of one's own at the scale paper."""
    entry = entry_of(folder, text)
    plot(entry, "paper", "here", measured_results(folder, entry, "paper", rates, **how), folder / "figure.svg")
    return words((folder / "figure.svg").read_text())


def made_up(folder: Path, entry: Entry, scale: str = "paper", gpu: str | None = "H200") -> list[Result]:
    """A number of every metric for every case, 10 % off the published one where there is one; every seventh case is
    missing, every eleventh too noisy, and every other one that is published to run out of memory does."""
    base = job_row(folder)
    axes = entry.experiment.plot
    found: list[Result] = []
    for number, case in enumerate(expand(entry, scale)):
        row = replace(base, case_name=case.name, scale=scale, attempt_id=number + 1, job_id=f"job{number}")
        empty = Result(case=case, row=row, gpu=gpu)
        if case.expected is not None:
            failed = replace(row, state="FAILED", verdict="failed", failure="gpu-oom")
            found.append(replace(empty, row=failed if number % 2 else None))
        elif number % 7 == 6:
            found.append(replace(empty, row=None))
        else:
            shown: list[str] = [y.metric for y in (axes.y, *axes.also)]
            metrics = {metric: _near_published(entry, empty, metric, number) for metric in shown}
            noise = "spread 12 % of the median" if number % 11 == 10 else None
            found.append(replace(empty, metrics=metrics, noise=noise))
    return found


def nothing_ran(entry: Entry) -> list[Result]:
    return [Result(case=case) for case in expand(entry)]


def _near_published(entry: Entry, result: Result, metric: str, number: int) -> CaseMetric:
    point = published_number(entry, result, metric)
    value = (point.value if point else 100.0 + 7 * (number % 5)) * (0.9 if number % 2 else 1.05)
    return CaseMetric(metric, value, "", value / 50, 5)


def texts_of(figure: Any) -> Sequence[Any]:
    """Every text that is to be seen, once the figure is laid out; matplotlib has ticks beyond the axes as well."""
    from matplotlib.text import Text

    beyond = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        beyond |= {tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high}
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() and text not in beyond]
