"""Predicted memory compared with the outcomes and the bytes that the sources publish, for all catalogued cases.

    python -m benchmarks.memory            # print the tables of docs/explanation/predictions.md
    python -m benchmarks.memory --write    # write them into the page

A case ran out of memory if its source says so. It ran if its source has a number of it, or plots it. Cases whose layout
no source has count as not published. Nothing is fitted here: FITTED names the data that a constant was fitted to.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.library import Entry, experiment_names, find_experiment
from orchestrator.paths import find_folders
from orchestrator.planning.plan import Fit, cost_of
from orchestrator.planning.target import Target

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "predictions.md"
BEGIN, END = "<!-- python -m benchmarks.memory -->", "<!-- end of benchmarks.memory -->"

Outcome = Literal["OOM", "ran"]

_RAN_OUT_PIPELINED = ("L202", "L203", "L204", "L206", "L208", "L210")

FITTED: Mapping[str, Callable[[Case], bool]] = {
    "alpa/alpa-search": lambda case: case.value("case") in _RAN_OUT_PIPELINED,
    "atc24/atc-figure-7": lambda _case: True,
    "tutorials/": lambda _case: True,
}
"""Cases whose outcome or bytes a constant was fitted to, by the start of the experiment's name.

The usable share of memory was fitted to six rows of Alpa's search and to ATC'24's figure 7, that inside one node to the
tutorials, the working memory of ATC'24's program to figure 7. The offload shares of ATC'24's figure 9 gave the limit of
--solve-alpha, which is not used here.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A case with its prediction and what its source publishes. Bytes; `outcome` is None if it is not published."""

    experiment: str
    case: Case
    needed_bytes: float
    usable_bytes: float
    fit: Fit
    outcome: Outcome | None
    confirmed: bool

    @property
    def fitted(self) -> bool:
        """Return whether a constant was fitted to the case."""
        return any(self.experiment.startswith(start) and used(self.case) for start, used in FITTED.items())

    @property
    def is_wrong(self) -> bool:
        """Return whether the published outcome differs from the predicted one. A tight case may have both."""
        return (self.outcome, self.fit) in (("OOM", "fits"), ("ran", "OOM"))


def rows() -> list[Row]:
    """Return all cases of the published scales that have a prediction of their memory."""
    folders = find_folders()
    all_rows: list[Row] = []
    for name in sorted(experiment_names(folders)):
        entry = find_experiment(folders, name)
        if entry.experiment.reference_only or entry.paper.machine is None:
            continue
        all_rows += _rows_of(name, entry)
    return all_rows


def _rows_of(name: str, entry: Entry) -> Iterator[Row]:
    target = Target.of_paper(entry)
    for case in cases_to_run(entry):
        cost = cost_of(case, target)
        if cost.memory is None or cost.usable_bytes is None or cost.fit is None:
            continue
        outcome, confirmed = _outcome(entry, case)
        yield Row(name, case, cost.memory.total_bytes, cost.usable_bytes, cost.fit, outcome, confirmed)


def _outcome(entry: Entry, case: Case) -> tuple[Outcome | None, bool]:
    """Return the published outcome of a case, and whether it is confirmed."""
    if case.expected is not None:
        return "OOM", case.expected.confirmed
    experiment = entry.experiment
    no_layout = any(
        difference.follows == "neither" and difference.where.items() <= case.settings.items()
        for difference in experiment.differences
    )
    is_plotted = experiment.matrix is not None
    if no_layout or not (is_plotted or case.published):
        return None, False
    return "ran", is_plotted or all(point.confirmed for point in case.published)


_COLUMNS = (
    "published OOM, predicted OOM",
    "published OOM, tight",
    "published OOM, predicted to fit",
    "ran, predicted to fit",
    "ran, tight",
    "ran, predicted OOM",
    "outcome not published",
    "used in a fit",
)


def _counts(rows: Iterable[Row]) -> list[int]:
    counts = [0] * len(_COLUMNS)
    for row in rows:
        if row.outcome == "OOM":
            counts[("OOM", "tight", "fits").index(row.fit)] += 1
        elif row.outcome == "ran":
            counts[3 + ("fits", "tight", "OOM").index(row.fit)] += 1
        else:
            counts[6] += 1
        counts[7] += row.fitted
    return counts


def outcome_table(rows: Sequence[Row]) -> list[str]:
    """Return the confusion table: a line for each experiment, all of them, and those that no constant was fitted to."""
    lines = [_line("data set", "cases", *_COLUMNS), _line("---", *["---:"] * (len(_COLUMNS) + 1))]
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.experiment, []).append(row)
    for name, own in by_name.items():
        lines.append(_line(name, len(own), *_counts(own)))
    free = [row for row in rows if not row.fitted]
    lines.append(_line("**all**", len(rows), *_counts(rows)))
    lines.append(_line("**all, without cases used in a fit**", len(free), *_counts(free)))
    return lines


def wrong_table(rows: Sequence[Row]) -> list[str]:
    """Return the cases whose published outcome is not the predicted one."""
    lines = [_line("case", "published", "predicted need (GB)", "usable (GB)"), _line("---", "---", "---:", "---:")]
    for row in rows:
        if row.is_wrong:
            how = row.outcome if row.confirmed else f"{row.outcome}, unconfirmed"
            needed, usable = f"{row.needed_bytes / 1e9:.1f}", f"{row.usable_bytes / 1e9:.1f}"
            lines.append(_line(f"{row.experiment} {row.case.name}", how, needed, usable))
    return lines


_METRICS = {
    "max_memory_allocated_bytes": ("allocated by the framework", 1.0),
    "gpu_memory_used_gb": ("in use on the whole GPU", 1e9),
}
"""Metrics of memory, each with its description and its unit in bytes."""
_FITTED_BYTES = "atc24/atc-figure-7"


def byte_table(rows: Sequence[Row]) -> list[str]:
    """Return the ratios of predicted and published bytes."""
    lines = [
        _line("data set", "published", "values", "mean ratio", "range", "used in a fit"),
        _line("---", "---", "---:", "---:", "---", "---:"),
    ]
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for point in row.case.published:
            if point.metric in _METRICS:
                what, unit = _METRICS[point.metric]
                ratios.setdefault((row.experiment, what), []).append(row.needed_bytes / (point.value * unit))
    for (name, what), values in ratios.items():
        span = f"{min(values):.3f} to {max(values):.3f}"
        used = len(values) if name == _FITTED_BYTES else 0
        lines.append(_line(name, what, len(values), f"{statistics.fmean(values):.3f}", span, used))
    return lines


def _line(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def section(rows: Sequence[Row]) -> str:
    """Return the tables of the page."""
    unconfirmed = sum(row.outcome is not None and not row.confirmed for row in rows)
    parts = [
        "Outcomes of all catalogued cases at their published size. OOM is out of GPU memory, tight is between the "
        "usable share and the whole GPU. "
        f"{unconfirmed} of the published outcomes are unconfirmed.",
        "\n".join(outcome_table(rows)),
        "Cases with a wrong prediction, in 10^9 bytes:",
        "\n".join(wrong_table(rows)),
        "Predicted need divided by published bytes. The memory in use on a whole GPU also contains the CUDA context, "
        "NCCL's buffers and free blocks of the allocator, so a ratio above 1 is an error of the prediction.",
        "\n".join(byte_table(rows)),
    ]
    return "\n\n".join(parts)


def on_page(page: str) -> str:
    """Return the tables that the page has; ValueError if it has none."""
    _, begin, rest = page.partition(BEGIN)
    tables, end, _ = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN} and {END}")
    return tables.strip()


def main() -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the tables into docs/explanation/predictions.md")
    tables = section(rows())
    if parser.parse_args().write:
        page = PAGE.read_text()
        PAGE.write_text(page.replace(on_page(page), tables))
    else:
        print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
