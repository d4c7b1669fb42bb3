"""A figure as a table for people: the telling columns, and nothing in a cell that the page or TeX would obey."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.catalog.library import Entry
from orchestrator.results.cases import CaseMetric, Result
from orchestrator.results.export.rows import (
    FigureTable,
    as_latex,
    as_markdown,
    export_rows,
    figure_table,
    latex_escaped,
    markdown_escaped,
)
from tests.recorded_jobs import measured_results
from tests.unit.catalog.entries import THREE_METHODS, entry_of, figure_13

CASE, BAD = "pp=8,tp=8,gbs=32", "pp=2,tp=32,gbs=32"


@pytest.fixture
def found(tmp_path: Path) -> list[Result]:
    return measured_results(
        tmp_path, figure_13(), "paper", {CASE: 71.25, BAD: 1.0}, failed=(BAD,), gpu="A100-SXM4-80GB"
    )


def table_of(entry: Entry, found: list[Result]) -> FigureTable:
    return figure_table(entry, found[0].case.scale, "selene", export_rows(entry, found))


def test_the_telling_columns_stand_beside_what_was_published(found: list[Result]) -> None:
    table = table_of(figure_13(), found)
    rate = "Achieved teraFLOP/s per GPU"
    assert table.heading == ("Case", "Verdict", "Iteration time (ms)", rate, "Published", "Ratio")
    lines = {line[0]: line[1:] for line in table.body}
    assert lines[CASE] == ("verified", "14.04 ± 0.1404", "71.25 ± 0.7125", "140 (±0.5)", "0.5089")
    assert lines[BAD] == ("failed, program", "-", "-", "103 (±0.5)", "-") and len(lines) == 10
    assert "not submitted" in {line[0] for line in lines.values()}


def test_a_rate_stands_with_the_shares_of_the_peak_that_are_known(found: list[Result]) -> None:
    rows = [dict(row) for row in export_rows(figure_13(), found)]
    for row in rows:
        if row["case"] == CASE:
            row |= {"percent_of_peak": 62.17, "mfu_percent": 44.53}
    table = figure_table(figure_13(), "paper", "selene", rows)
    rate = "Achieved teraFLOP/s per GPU"
    assert table.heading[3:] == (rate, "% of peak, eq. 3", "MFU (%)", "Published", "Ratio")
    lines = {line[0]: line[1:] for line in table.body}
    assert lines[CASE][3:5] == ("62.17", "44.53") and lines[BAD][3:5] == ("-", "-")


def test_a_number_of_another_gpu_is_marked_and_has_no_ratio(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "paper", {CASE: 71.25}, gpu="NVIDIA H200")
    lines = {line[0]: line for line in table_of(figure_13(), found).body}
    assert lines[CASE][-2:] == ("140 (±0.5, A100-SXM4-80GB)", "-")


def test_where_nothing_was_published_there_are_no_columns_for_it(tmp_path: Path) -> None:
    found = measured_results(tmp_path, figure_13(), "cpu", {})
    assert table_of(figure_13(), found).heading[-1] == "Achieved teraFLOP/s per GPU"


def test_a_verdict_says_what_is_wrong_with_it(found: list[Result]) -> None:
    cases = [one for one in found if one.row is not None]
    bad, good = cases if cases[0].case.name == BAD else cases[::-1]
    assert bad.row is not None
    out_of_memory = replace(bad, row=replace(bad.row, failure="out of GPU memory"))
    flagged, noisy = replace(good, flag="too fast"), replace(good, noise="spread 12 %")
    wait = CaseMetric("host_wait_percent", 31.0, "%")
    waited = replace(good, metrics={**good.metrics, "host_wait_percent": wait})
    table = table_of(figure_13(), [out_of_memory, flagged, noisy, waited])
    assert [line[1] for line in table.body] == [
        "failed, out of GPU memory",
        "verified, flagged",
        "verified, noisy",
        "verified, host-bound",
    ]


def test_a_figure_of_times_has_them_once(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, THREE_METHODS.replace("metric: tokens_per_s}", "metric: iteration_ms}"))
    found = measured_results(tmp_path, entry, "paper", {})
    assert table_of(entry, found).heading[2:] == ("Iteration time (ms)",)


def test_markdown_is_a_table_with_its_caption(found: list[Result]) -> None:
    lines = as_markdown(table_of(figure_13(), found)).splitlines()
    assert lines[0].startswith("Figure 13 (sc21/figure-13) on selene at scale paper; ") and lines[1] == ""
    assert lines[3] == "| --- | --- | ---: | ---: | ---: | ---: |" and len(lines) == 14
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:]} == {7}


def test_latex_is_a_booktabs_table_whose_caption_names_figure_cluster_and_scale(found: list[Result]) -> None:
    text = as_latex(table_of(figure_13(), found))
    assert r"\caption{Figure 13 (sc21/figure-13) on selene at scale paper; $\pm$ is" in text
    assert r"\label{tab:figure-13-paper-selene}" in text and r"\begin{tabular}{llrrrr}" in text
    rules = [text.index(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}", r"\end{table}")]
    assert rules == sorted(rules)
    body = text[rules[1] : rules[2]].splitlines()[1:-1]
    assert len(body) == 10 and all(line.endswith(r" \\") and line.count(" & ") == 5 for line in body)
    assert r"71.25 $\pm$ 0.7125" in text


def test_another_program_is_named_in_the_caption(found: list[Result]) -> None:
    other = [replace(one, instead_of="megatron-2021", case=replace(one.case, program="pretrain")) for one in found]
    assert " at scale paper with pretrain instead of megatron-2021; " in table_of(figure_13(), other).caption


SIGNS = st.text(st.sampled_from(list("&%$#_{}~^\\<>|\"*[]'`-±! ab1\n")), max_size=12)
LINES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)


@given(text=SIGNS | LINES)
@example(text="\\|")
@example(text="a\\")
def test_a_cell_of_markdown_is_one_cell_and_reads_as_it_was(text: str) -> None:
    cell = markdown_escaped(text)
    assert "\n" not in cell and "<" not in cell and ">" not in cell
    assert re.fullmatch(r"(?:\\[\\`*_\[\]{}|~$#]|[^\\`*_\[\]{}|~$#])*", cell)  # nothing is left that means something
    read = re.sub(r"\\(.)", r"\1", cell).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert read == " ".join(text.splitlines())


WRITTEN = {
    **{f"\\{sign}": sign for sign in "&%$#_{}"},
    **{f"{{{sign}}}": sign for sign in "*[]`"},
    **{f"{sign}{{}}": sign for sign in "-'"},
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textbackslash{}": "\\",
    r"$\pm$": "±",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    "{''}": '"',
}
"""What TeX is given for each sign."""
ONE_SIGN = re.compile("|".join(re.escape(written) for written in WRITTEN))


@given(text=SIGNS | LINES)
@example(text="--a---b")
@example(text="\\textbackslash{}")
def test_a_cell_of_latex_has_no_sign_that_tex_obeys_and_reads_as_it_was(text: str) -> None:
    cell = latex_escaped(text)
    assert not re.search(r"[&%$#_{}~^\\<>|\"*\[\]`]|--|''", ONE_SIGN.sub("x", cell))
    assert ONE_SIGN.sub(lambda found: WRITTEN[found[0]], cell) == " ".join(text.splitlines())


def test_a_row_that_begins_like_an_argument_does_not_end_up_in_the_row_before() -> None:
    text = as_latex(FigureTable("c", ("case", "x"), (("[2pt]", "*"), ("*", "1")), "l"))
    assert not re.search(r"(?:\\\\|rule)\s*[\[*]", text)
