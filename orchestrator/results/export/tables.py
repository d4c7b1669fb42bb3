"""A figure as a table for people: Markdown for a page, LaTeX for a paper. The telling columns, not all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.catalog.library import Entry
from orchestrator.results.export.columns import Row

_TIME, _NONE = "iteration_ms", "-"
_SHARES = {
    "percent_of_peak": "% of peak, eq. 3",
    "percent_of_peak_computed": "% of peak, computed",
    "mfu_percent": "MFU (%)",
}


@dataclass(frozen=True, slots=True)
class Table:
    """`caption` names figure, cluster and scale; the first `words` columns are text, the others numbers."""

    caption: str
    heading: tuple[str, ...]
    body: tuple[tuple[str, ...], ...]
    words: int
    label: str


def candidate_lines(entry: Entry, scale: str, cluster: str, rows: Sequence[Row]) -> Table:
    """Return case, verdict, time and the figure's own metric with their spreads, shares of the peak, published numbers.

    The shares stand beside a rate in TFLOP/s, where some case has them.
    """
    y = entry.experiment.axes.y
    shown = {_TIME: "Iteration time (ms)"} | ({y.metric: y.label} if y.metric != _TIME else {})
    heading = ["Case", "Verdict", *shown.values()]
    cells = [[str(row["case"]), _verdict(row), *(_measured(row, name) for name in shown)] for row in rows]
    shares = _SHARES if y.metric == "tflops_per_gpu" else {}
    for name, label in shares.items():
        if any(row[name] is not None for row in rows):
            heading.append(label)
            cells = [[*some, _number(row[name])] for some, row in zip(cells, rows, strict=True)]
    if any(row["published"] is not None for row in rows):
        heading += ["Published", "Ratio"]
        cells = [
            [*some, _beside(row), _number(row["ratio_to_published"])] for some, row in zip(cells, rows, strict=True)
        ]
    instead = {(row["workload"], row["published_workload"]) for row in rows if row["published_workload"]}
    program = f" with {' and '.join(f'{ours} instead of {theirs}' for ours, theirs in sorted(instead))}"
    return Table(
        caption=f"{entry.experiment.figure} ({entry.name}) on {cluster} at scale {scale}{program if instead else ''}; "
        "± is the spread over the iterations",
        heading=tuple(heading),
        body=tuple(map(tuple, cells)),
        words=2,
        label=re.sub(r"[^A-Za-z0-9-]+", "-", f"{entry.short_name}-{scale}-{cluster}"),
    )


def _verdict(row: Row) -> str:
    if row["verdict"] is None:
        return str(row["state"] or "not submitted").lower()
    marks = {"flag": "flagged", "noise": "noisy", "host_bound": "host-bound"}
    more = row["failure"] or next((mark for name, mark in marks.items() if row[name]), None)
    return f"{row['verdict']}, {more}" if more else str(row["verdict"])


def _measured(row: Row, metric: str) -> str:
    value, spread = row[metric], row[f"{metric}_spread"]
    return f"{_number(value)} ± {_number(spread)}" if value is not None and spread is not None else _number(value)


def _beside(row: Row) -> str:
    """With what keeps it from being compared: nobody confirmed it, or it is another GPU's."""
    if row["published"] is None:
        return _NONE
    notes = [] if row["published_confirmed"] else ["unconfirmed"]
    if row["gpu"] and row["published_gpu"] and row["published_gpu"] not in row["gpu"]:
        notes.append(row["published_gpu"])
    return _number(row["published"]) + (f" ({', '.join(notes)})" if notes else "")


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def as_markdown(table: Table) -> str:
    """A table as GitHub reads it, with its caption above."""
    rule = ["---"] * table.words + ["---:"] * (len(table.heading) - table.words)
    lines = [table.heading, *table.body]
    escaped = [[markdown_escaped(cell) for cell in line] for line in lines]
    rows = [escaped[0], rule, *escaped[1:]]
    return f"{markdown_escaped(table.caption)}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


_MARKDOWN = re.compile(r"[\\`*_\[\]{}|~$#]")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def markdown_escaped(text: str) -> str:
    """The text as it is, wherever it stands in a table: no column, no emphasis, no link, no HTML."""
    text = _MARKDOWN.sub(r"\\\g<0>", " ".join(text.splitlines()))
    return "".join(_HTML.get(character, character) for character in text)


def as_latex(table: Table) -> str:
    """A floating table of the package booktabs; nothing else is needed."""
    columns = "l" * table.words + "r" * (len(table.heading) - table.words)
    lines = [" & ".join(map(latex_escaped, line)) + r" \\" for line in (table.heading, *table.body)]
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex_escaped(table.caption)}}}",
            rf"  \label{{tab:{table.label}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


# * and [ would be arguments of the \\ that ends the row before; < > | are other signs in TeX's first encoding; two
# hyphens are a dash, two quotes a third kind, and one that babel may have another use for.
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in "*[]`"},
    **{sign: f"{sign}{{}}" for sign in "-'"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "±": r"$\pm$",
}
_SPECIAL = re.compile(r"-(?=-)|'(?=')|[&%$#_{}*\[\]`~^\\<>|\"±]")


def latex_escaped(text: str) -> str:
    """The text as it is, in a cell or a caption."""
    return _SPECIAL.sub(lambda found: _LATEX[found[0]], " ".join(text.splitlines()))
