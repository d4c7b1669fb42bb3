"""Tables of docs/explanation/predictions.md: errors by class and by data set, and orders within a figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from benchmarks.left_out import Judged
from benchmarks.measured_times import (
    ATC24,
    H100,
    H100_LATER,
    H100_QUAD,
    H100_QUAD_AGAIN,
    H100_QUAD_LATER,
    H200,
    H200_AGAIN,
    H200_LATER,
    H200_QUAD,
    H200_QUAD_LATER,
    LOCAL_LAYERS,
    NOT_FITTED,
    SC21,
    TUTORIALS,
    Row,
    published,
    rows,
    schedules,
    tutorials,
)
from orchestrator.megatron.time_constants import FITTED, Basis

FIT, FORM, SPREAD, VALIDATION = "fit", "choice of form", "choice of uncertainty", "validation"
AGAIN = "repetition"
"""Uses of a data set: constants are fitted to it; the form of the model, or the uncertainty that `plan` prints, was
chosen with it in view; none of these; new times of cases that have another use."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows with one use. `is_published`: the times are those of papers and tutorials."""

    title: str
    use: str
    rows: Sequence[Row]
    is_published: bool = True


def data_sets() -> list[DataSet]:
    """Return all data sets that are compared with predictions, in the order of the page."""
    sets = rows()
    return [
        *_halves("SC21 table 1", sets[SC21]),
        *_halves("SC21 figures 12 and 18", schedules(), "batches 12, 36, 60", "batches 24, 48"),
        *_halves("ATC'24 figure 9", sets[ATC24]),
        *_halves("tutorials on H100", tutorials()),
        DataSet(f"tutorials on H100, {NOT_FITTED}", FORM, published(f"tutorials/{NOT_FITTED}")),
        *_halves("`pretrain` on one and two H200", sets[H200], is_published=False),
        *_halves("`pretrain` on four H200", sets[H200_QUAD], is_published=False),
        DataSet("cases of the last four rows, measured again", AGAIN, sets[H200_AGAIN], is_published=False),
        DataSet("`pretrain` on four H100, figures 13 and 15", FIT, sets[H100_QUAD], is_published=False),
        DataSet("figure 13 of the last row, measured again", AGAIN, sets[H100_QUAD_AGAIN], is_published=False),
        DataSet("`pretrain` on one and two H100", FORM, [*sets[H100], *sets[H100_LATER]], is_published=False),
        *_halves("Megatron-LM's own layers on H100", sets[LOCAL_LAYERS], "rows 1, 3", "row 2", is_published=False),
        *(DataSet(title, FORM, published(*names)) for title, names in _FORM),
        DataSet("ATC'24 demo and table 8", SPREAD, published("atc24/atc-demo", "atc24/atc-table-8")),
        DataSet("SC21 figure 14", SPREAD, published("sc21/figure-14")),
        *(DataSet(title, VALIDATION, published(*names)) for title, names in _VALIDATION),
        DataSet(
            "`pretrain` on one and two H200, measured after the fit", VALIDATION, sets[H200_LATER], is_published=False
        ),
        *_quad_later(sets[H200_QUAD_LATER]),
        DataSet("`pretrain` on four H100, figures 16 to 18", VALIDATION, sets[H100_QUAD_LATER], is_published=False),
    ]


def _quad_later(times: Sequence[Row]) -> Iterator[DataSet]:
    """Yield the later times on four H200. The uncertainty of jobs that offload was chosen after those of ATC'24."""
    offloading = [row for row in times if row.name.startswith("atc-figure-7")]
    others = [row for row in times if row not in offloading]
    yield DataSet("`pretrain` on four H200, measured after the fit", VALIDATION, others, is_published=False)
    yield DataSet("`pretrain` on four H200, ATC'24 figure 7", SPREAD, offloading, is_published=False)


_FORM = (
    ("SC21 figures 15 and 16", ("sc21/figure-15", "sc21/figure-16")),
    ("SC21 section 5.8, fused operators", ("sc21/fused-operators",)),
    ("Megatron-Core 0.8 on H100, weak scaling", ("megatron-core/weak-scaling",)),
    ("Alpa's Megatron-LM on V100", ("alpa/alpa-gpt",)),
    ("MLSys'23 table 5", ("mlsys23/table-5",)),
    ("SC21 table 2", ("sc21/table-2",)),
)
_VALIDATION = (("SC21 figures 11, 13 and 17", tuple(f"sc21/figure-{number}" for number in (11, 13, 17))),)


def _halves(
    title: str,
    both: Sequence[Row],
    fitted: str = "rows 1, 3, 5, ...",
    others: str = "rows 2, 4, 6, ...",
    is_published: bool = True,
) -> Iterator[DataSet]:
    yield DataSet(f"{title}, {fitted}", FIT, [row for row in both if row.fitted], is_published)
    yield DataSet(f"{title}, {others}", FORM, [row for row in both if not row.fitted], is_published)


def class_table(times: Sequence[Judged]) -> str:
    """Return the errors of each class of predictions and of its sources in Markdown."""
    lines = [
        "| class, source | printed | times | mean error | worst | inside |",
        "|---|---|---|---|---|---|",
    ]
    for basis in Basis:
        of_class = [time for time in times if time.basis is basis]
        lines.append(_judged(f"**{basis.about}**", f"±{100 * basis.uncertainty:.0f} %", of_class))
        for source in dict.fromkeys(time.source for time in of_class):
            lines.append(_judged(source, "", [time for time in of_class if time.source == source]))
    return "\n".join(lines)


def class_summary(basis: Basis, times: Sequence[Judged]) -> str:
    """Return the sentence of a class: `±10 % (...): mean error 3.0 %, worst +17 %, 268 of 272 inside`."""
    of_class = [time for time in times if time.basis is basis]
    mean = 100 * statistics.fmean(abs(time.error) for time in of_class)
    worst = 100 * max((time.error for time in of_class), key=abs)
    inside = sum(time.is_inside for time in of_class)
    printed = f"±{100 * basis.uncertainty:.0f} % ({basis.about})"
    return f"{printed}: mean error {mean:.1f} %, worst {worst:+.0f} %, {inside} of {len(of_class)} inside"


def _judged(title: str, printed: str, times: Sequence[Judged]) -> str:
    mean = 100 * statistics.fmean(abs(time.error) for time in times)
    worst = 100 * max((time.error for time in times), key=abs)
    inside = sum(time.is_inside for time in times)
    return f"| {title} | {printed} | {len(times)} | {mean:.1f} % | {worst:+.0f} % | {inside} of {len(times)} |"


def error_table(sets: Sequence[DataSet]) -> str:
    """Return the table of errors in Markdown, with sums over all validation rows and all published times."""
    lines = [
        "| data set | used for | rows | mean error | worst | inside the printed uncertainty |",
        "|---|---|---|---|---|---|",
        *(_errors(one.title, one.use, one.rows) for one in sets),
        _errors("**all validation rows**", "", [row for one in sets if one.use == VALIDATION for row in one.rows]),
        _errors("**all published times**", "", [row for one in sets if one.is_published for row in one.rows]),
    ]
    return "\n".join(lines)


def _errors(title: str, use: str, part: Sequence[Row]) -> str:
    errors = [row.error(FITTED) for row in part]
    worst = max(errors, key=abs)
    inside = sum(row.is_inside for row in part)
    mean = 100 * statistics.fmean(map(abs, errors))
    return f"| {title} | {use} | {len(part)} | {mean:.1f} % | {100 * worst:+.0f} % | {inside} of {len(part)} |"


_FIGURES = {
    "sc21/figure-12": FIT,
    "sc21/figure-13": VALIDATION,
    "sc21/figure-14": SPREAD,
    "sc21/figure-15": FORM,
    "sc21/figure-16": FIT,
    "sc21/figure-17": VALIDATION,
    "sc21/figure-18": FIT,
    "sc21/fused-operators": FORM,
    "atc24/atc-demo": SPREAD,
    "atc24/atc-table-8": SPREAD,
    "mlsys23/table-5": FORM,
    **{f"tutorials/{name}": FORM if name == NOT_FITTED else FIT for name in TUTORIALS},
}
"""Figures with comparable cases, and the use of their order. It is a fit if some of the cases were fitted."""


def order_table() -> str:
    """Return the table of Kendall's tau for each figure that has comparable cases, in Markdown."""
    figures = {name: combinations(published(name), 2) for name in _FIGURES}
    comparable = {name: [pair for pair in pairs if _are_one_task(*pair)] for name, pairs in figures.items()}
    comparable[_REVERSAL] = list(_schedules())
    lines = ["| figure | used for | pairs | Kendall's tau |", "|---|---|---|---|"]
    for figure, pairs in comparable.items():
        different = [pair for pair in pairs if _differ(*pair)]
        if different:
            use = _FIGURES.get(figure, FIT)
            lines.append(f"| {figure} | {use} | {len(different)} | {kendall_tau(different):.2f} |")
    return "\n".join(lines)


_REVERSAL = "section 5.3.2: figure 12 without virtual stages, figure 18 without scatter/gather"


def _schedules() -> Iterator[tuple[Row, Row]]:
    """Yield the default and the interleaved schedule without scatter/gather at each batch size (SC21 5.3.2)."""
    for default in published("sc21/figure-12"):
        for interleaved in published("sc21/figure-18"):
            same_batch = default.layout.global_batch_size == interleaved.layout.global_batch_size
            if same_batch and default.layout.virtual_stages == 1 and not interleaved.training.scatter_gather:
                yield default, interleaved


def _differ(first: Row, second: Row) -> bool:
    """Return whether the published values differ by more than their errors."""
    return abs(first.shown - second.shown) > first.shown_error + second.shown_error


def _are_one_task(first: Row, second: Row) -> bool:
    """Return whether two cases train the same model with the same batch size."""
    return (first.model, first.layout.global_batch_size) == (second.model, second.layout.global_batch_size)


def kendall_tau(pairs: Sequence[tuple[Row, Row]]) -> float:
    """Return the pairs that are predicted in the published order, less those in the reverse order, per pair."""
    total = 0
    for first, second in pairs:
        predicted = [row.predicted_shown(FITTED) for row in (first, second)]
        if not math.isclose(*predicted):
            total += 1 if (predicted[0] > predicted[1]) == (first.shown > second.shown) else -1
    return total / len(pairs)
