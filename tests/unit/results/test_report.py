"""The page: what stands on it, that it is the same each time, and that nothing on it can do anything."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.catalog.case import Case
from orchestrator.catalog.library import find_experiment
from orchestrator.errors import Problem, ReproError
from orchestrator.ledger.database import Ledger
from orchestrator.ledger.tables import Attempt, Run
from orchestrator.paths import Folders
from orchestrator.results.cases import CaseMetric
from orchestrator.results.outcome import FigureOutcome, judge_stored
from orchestrator.results.plot.panels import SERIES, SERIES_ON_DARK
from orchestrator.results.report import (
    Counts,
    Page,
    page_of,
    rendered,
    report,
    require_folder,
    shown_hours,
    shown_number,
    with_spread,
    write_report,
)
from orchestrator.text import with_symbols
from tests.examples import examples
from tests.recorded_jobs import (
    GPU_OOM,
    PENDING,
    SCRIPT,
    START,
    Outcome,
    new_ledger,
    record_figure,
)
from tests.unit.catalog.entries import CHECKOUT, THREE_METHODS, figure_13, shipped, write_experiment

pytestmark = pytest.mark.slow

TEMPLATES = CHECKOUT / "templates"
TOKEN = "hf_" + "abcdefghij0123456789ABCDEF"


class Read(HTMLParser):
    """The tags of a page, and the text in each place."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def count(self, *tags: str) -> int:
        return sum(tag in tags for tag, _ in self.tags)


@pytest.fixture(autouse=True)
def drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longest, and is tested for itself."""
    monkeypatch.setattr("orchestrator.results.report.picture", lambda *_, prefix, **__: f'<svg id="{prefix}"/>')


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = new_ledger(tmp_path)
    yield ledger
    ledger.engine.dispose()


def as_the_plot_says(_place: int, case: Case) -> Outcome:
    return Outcome(100.0 + case.number("pp"), 1.25)


def made(tmp_path: Path, text: str) -> Any:
    write_experiment(tmp_path, text)
    return find_experiment(Folders(CHECKOUT, tmp_path), "p/figure-1")


def read(ledger: Ledger, *figures: FigureOutcome) -> Read:
    return Read(report(ledger, figures, TEMPLATES))


# ---- what stands on it -----------------------------------------------------------------------------------------


def test_the_same_ledger_gives_the_same_bytes(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says)
    assert report(ledger, [figure], TEMPLATES) == report(ledger, [figure], TEMPLATES)


def test_it_says_as_of_when_by_the_ledger_and_not_by_the_clock(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says)
    assert "As of 2026-01-02 03:04:05 UTC" in read(ledger, figure).text


def test_every_case_and_claim_is_counted_once(ledger: Ledger) -> None:
    def outcome(place: int, _case: Case) -> Outcome:
        return [Outcome(columns=GPU_OOM), Outcome(4.0), Outcome(columns=PENDING)][place]

    made_up = made(Path(str(ledger.url.database)).parent, THREE_METHODS)
    page = page_of(ledger, [record_figure(ledger, made_up, "paper", outcome, gpu="H800")])
    counts = page.counts
    assert (counts.cases, counts.as_published, counts.verified, counts.failed, counts.missing) == (3, 1, 1, 0, 1)
    assert page.counts.summary == "1 of 3 cases is verified, 1 ran out of memory as published, 1 is missing."


def test_two_figures_are_added_up(ledger: Ledger) -> None:
    figures = [
        record_figure(ledger, figure_13(), "paper", as_the_plot_says),
        record_figure(ledger, shipped("figure-14"), "paper", as_the_plot_says, at=START + timedelta(minutes=1)),
    ]
    page = page_of(ledger, figures)
    assert "2 experiments" in Read(rendered(page, TEMPLATES)).text
    assert page.counts.cases == sum(len(figure.results) for figure in figures)
    assert page.counts.summary == (
        f"All {page.counts.cases} cases are verified. None of 7 claims holds, 4 fail, 3 are not judged."
    )


def test_a_measured_number_stands_beside_the_published_one_with_how_that_is_known(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(150.0, 1.25))
    row = next(row for row in page_of(ledger, [figure]).figures[0].cases if row.number.case == "pp=8,tp=8,gbs=32")
    assert (row.used, row.number.published) == ("6 iterations", 140)
    source = "traced from the plot, ±0.5, figure 13"
    text = read(ledger, figure).text
    assert "150 ± 1 6 iterations" in text and f"140 {source} 1.071 ✓ within" in text
    assert row.tolerance == "± 10 %, default, no claim is about it"


def test_a_case_has_its_execution_mode_and_its_host_wait_and_a_mark_where_it_is_host_bound(ledger: Ledger) -> None:
    waits = {"pp=2,tp=32,gbs=32": 31.0, "pp=4,tp=16,gbs=32": 4.0}

    def outcome(_place: int, case: Case) -> Outcome:
        mode = "eager" if case.name in waits else None
        return Outcome(100.0, host_wait_percent=waits.get(case.name), execution=mode)

    page = page_of(ledger, [record_figure(ledger, figure_13(), "paper", outcome)])
    rows = {row.number.case: row for row in page.figures[0].cases}
    bound, quick, unknown = (rows[name] for name in (*waits, "pp=8,tp=8,gbs=32"))
    assert (bound.host_wait, quick.host_wait, unknown.host_wait) == ("3.1, 31 %", "0.4, 4 %", "")
    text = Read(rendered(page, TEMPLATES)).text
    assert "eager 0.4, 4 % " in text
    assert text.count("– host-bound") == 1
    assert "Mode Host wait, ms" in text and "eager 3.1, 31 % – host-bound" in text
    assert "is host-bound (its GPUs waited 31 % of the time for the host)" in text


def test_nothing_is_said_of_modes_and_waits_where_no_case_has_any(ledger: Ledger) -> None:
    text = read(ledger, record_figure(ledger, figure_13(), "paper", as_the_plot_says)).text
    assert not any(word in text for word in ("The mode is", "Host wait", "host-bound"))


def test_a_rate_stands_with_its_share_by_equation_3_the_computed_share_and_the_mfu(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(614.9, 1.5))

    def shown(**shares: float) -> str:
        known = {name: CaseMetric(name, value, "%") for name, value in shares.items()}
        results = [replace(one, metrics={**one.metrics, **known}) for one in figure.results]
        return page_of(ledger, [replace(figure, results=results)]).figures[0].cases[0].shares

    assert shown() == ""
    assert shown(percent_of_peak=62.17, mfu_percent=44.53) == "62.2 % of the peak by equation 3, MFU 44.5 %"
    three = shown(percent_of_peak=62.17, percent_of_peak_computed=54.06, mfu_percent=44.53)
    assert three == "62.2 % of the peak by equation 3, 54.1 % computed, MFU 44.5 %"


def test_a_claim_has_its_verdict_what_was_seen_and_the_numbers_behind_it(ledger: Ledger) -> None:
    figure = record_figure(
        ledger, figure_13(), "paper", lambda _, case: Outcome(100.0 if case.number("pp") == 8 else 90.0, spread=0.5)
    )
    peak, poor, *_ = figure.claims
    assert (peak.verdict, poor.verdict) == ("holds", "fails")
    text = read(ledger, figure).text
    assert "gbs=32 peaks at pp=8,tp=8,gbs=32; gbs=128 peaks at pp=8,tp=8,gbs=128" in text
    values = [with_spread(used.value, used.spread) for used in poor.used]
    assert values == ["90 ± 0.5"] * 4 + ["100 ± 0.5"] * 2 + ["90 ± 0.5"] * 4
    assert "Claims of the source ✓ holds Throughput peaks where" in text and "tflops_per_gpu 90 ± 0.5" in text


def test_a_failed_attempt_is_told_also_where_a_later_one_was_verified(ledger: Ledger) -> None:
    entry = figure_13()
    lost = {
        "state": "NODE_FAIL",
        "phase": "ended",
        "verdict": "failed",
        "failure": "node-fail",
        "verdict_reason": "NODE_FAIL",
        "deciding_line": "slurmstepd: error: Node failure on n7",
        "deciding_rank": 5,
    }
    figure = record_figure(
        ledger, entry, "paper", lambda place, _: Outcome(columns=lost) if place == 0 else Outcome(100.0)
    )
    again(ledger, figure.results[0].row.job_id if figure.results[0].row else "")
    page = page_of(ledger, [judge_stored(ledger, entry, "paper")])
    (failed,) = [attempt for attempt in page.figures[0].attempts if attempt.verdict == "failed"]
    assert page.counts.failed == 0 and page.counts.verified == 10
    assert (failed.number, failed.failure) == (1, "node-fail")
    line = "✗ node-fail slurmstepd: error: Node failure on n7 5 n[0-9] NODE_FAIL"
    assert f"{line} a node failed, not the job: retried on other nodes" in Read(rendered(page, TEMPLATES)).text


def again(ledger: Ledger, job_id: str) -> None:
    """A second attempt of the job, verified."""
    with ledger.writing() as session:
        first = session.scalars(sa.select(Attempt).where(Attempt.job_id == job_id)).one()
        columns = {column.key: getattr(first, column.key) for column in sa.inspect(Attempt).column_attrs}
        well = {"state": "COMPLETED", "verdict": "verified", "failure": None, "verdict_reason": None}
        session.add(Attempt(**columns | well | {"id": None, "number": 2, "deciding_line": None, "deciding_rank": None}))


def test_gpu_hours_are_gpus_times_time_of_what_has_ended(ledger: Ledger) -> None:
    def outcome(place: int, _case: Case) -> Outcome:
        return Outcome(columns=PENDING) if place < 5 else Outcome(columns=GPU_OOM) if place == 5 else Outcome(9.0)

    figure = record_figure(ledger, figure_13(), "paper", outcome)
    said = page_of(ledger, [figure]).figures[0].hours.summary
    assert said == "32.00 GPU-hours, 6.40 of them in attempts that failed"  # 5 x 64 GPUs x 6 minutes
    with ledger.writing() as session:
        price = {"price_per_gpu_hour": {"value": 2.5, "currency": "USD"}}
        session.execute(sa.update(Run).values(profile=price))
    page = page_of(ledger, [figure])
    assert page.figures[0].hours.summary == ("32.00 GPU-hours (80.00 USD), 6.40 of them in attempts that failed")
    assert [hours.money for hours in page.hours] == ["80.00 USD"]


def test_a_job_that_two_figures_share_is_paid_for_once(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says)
    page = page_of(ledger, [figure, figure])
    assert [one.hours.spent for one in page.figures] == ["64.00", "64.00"] and [one.spent for one in page.hours] == [
        "64.00"
    ]


def test_processes_on_a_cpu_are_no_gpus(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "cpu", as_the_plot_says, cluster="local")
    on_gpus = record_figure(ledger, figure_13(), "paper", as_the_plot_says, at=START + timedelta(minutes=1))
    said = [hours.summary for hours in page_of(ledger, [figure, on_gpus]).hours]
    assert said == ["2.40 process-hours on CPUs", "64.00 GPU-hours"]


def test_a_script_is_told_once_however_many_jobs_ran_it(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says, script="#!/bin/bash\nsrun the-one-script\n")
    page = report(ledger, [figure, figure], TEMPLATES)
    assert page.count("srun the-one-script") == 1
    anchors = re.findall(r'href="#(script-\d+)"', page)
    assert len(anchors) == 20 and set(anchors) <= set(re.findall(r'id="([^"]+)"', page))


def test_every_script_of_another_text_is_there(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says)
    page = report(ledger, [figure], TEMPLATES)
    assert page.count("srun python pretrain.py") == 10 and SCRIPT.count("srun") == 1


def test_what_ran_from_which_code_and_how_it_was_typed_is_told(ledger: Ledger) -> None:
    command = ["repro", "submit", "figure-13", "--where", "pp=8,gbs=32", "--note", "two words"]
    figure = record_figure(ledger, figure_13(), "paper", as_the_plot_says, command=command, git_dirty=True)
    text = read(ledger, figure).text
    for said in (
        "repro submit figure-13 --where pp=8,gbs=32 --note 'two words'",
        *("c0ffee1234 with changes", "me@login-1", "submitit 1.5.4", "clusters/selene.yaml", '"partition": "batch"'),
        *("megatron-2021, 6985e589, pytorch-20.12-py3.sqsh", "n[0-9]", "17_3"),
    ):
        assert said in text


def test_without_matplotlib_everything_else_is_there(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> str:
        raise ReproError(Problem("drawing needs matplotlib", hint="pip install '.[plot]'"))

    monkeypatch.setattr("orchestrator.results.report.picture", none)
    page = read(ledger, record_figure(ledger, figure_13(), "paper", as_the_plot_says))
    assert "No picture: drawing needs matplotlib. Hint: pip install '.[plot]'" in page.text
    assert page.count("tr") > 10


def test_a_figure_with_nothing_submitted_but_one_case_is_a_page_too(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(columns=PENDING))
    page = page_of(ledger, [replace(figure, claims=())])
    assert page.counts.summary == "0 of 10 cases are verified, 10 are missing."
    assert page.figures[0].cases[0].verdict.word == "pending" and page.figures[0].cases[0].why == "Priority"


# ---- that nothing on it can do anything ------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 71 * 71 }}</pre></details>"


def hostile(ledger: Ledger) -> Page:
    """A page of which every text says what it should not."""
    named = THREE_METHODS.replace("case: plain", f"case: '{HOSTILE.replace(chr(39), chr(39) * 2)}'").replace(
        "title: t", "title: <blink>t"
    )
    failed = {**GPU_OOM, "verdict_reason": HOSTILE, "deciding_line": HOSTILE, "reason": HOSTILE}
    entry = made(Path(str(ledger.url.database)).parent, named)
    figure = record_figure(
        ledger,
        entry,
        "paper",
        lambda *_: Outcome(columns=failed),
        script=HOSTILE.replace("{", "{{").replace("}", "}}"),
        command=["repro", HOSTILE],
        profile={HOSTILE: HOSTILE},
        user=HOSTILE,
    )
    return page_of(ledger, [figure])


def test_no_text_becomes_a_tag(ledger: Ledger) -> None:
    page = Read(rendered(hostile(ledger), TEMPLATES))
    assert page.count("script") == 1 and page.count("img", "blink") == 0
    assert page.text.count(HOSTILE) > 10 and "5041" not in page.text


@settings(max_examples=examples(60))
@given(text=st.text(max_size=60))
def test_any_text_is_read_as_it_is_shown(text: str) -> None:
    empty = Page("0", text, Counts(), (), ())
    shown = with_symbols(text)
    read_back = Read(rendered(empty, TEMPLATES))
    (said,) = (part for part in read_back.texts if part.startswith("As of "))
    assert said == f"As of {shown} UTC, the last entry of the ledger"
    assert with_symbols(shown) == shown
    assert all(character.isprintable() or character in "\n\t" or character.isspace() for character in shown)


def test_a_secret_stands_nowhere(ledger: Ledger) -> None:
    secret = {"deciding_line": f"401 for {TOKEN}", "verdict_reason": f"Authorization: Bearer {TOKEN}"}
    figure = record_figure(
        ledger,
        figure_13(),
        "paper",
        lambda *_: Outcome(columns=GPU_OOM | secret),
        script=f"export HF_TOKEN={TOKEN}\nexport MY_PASSWORD=hunter2hunter2\n",
        command=["repro", "submit", "--api-key", "sesame-sesame"],
        profile={"env": {"WANDB_API_KEY": "open-sesame-1", "HF_TOKEN": TOKEN}},
    )
    page = report(ledger, [figure], TEMPLATES)
    for secret_text in (TOKEN, "hunter2hunter2", "sesame-sesame", "open-sesame-1"):
        assert secret_text not in page
    assert "export HF_TOKEN=***" in page and "--api-key '***'" in Read(page).text


def test_the_lines_of_pictures_are_lighter_on_a_dark_page(ledger: Ledger) -> None:
    html = report(ledger, [record_figure(ledger, figure_13(), "paper", as_the_plot_says)], TEMPLATES)
    for number, (light, dark) in enumerate(zip(SERIES, SERIES_ON_DARK, strict=True), 1):
        assert f"--plot-{number}: light-dark({light}, {dark});" in html and f"--plot-{number}: {light};" in html


def test_what_would_steer_is_seen_instead(ledger: Ledger) -> None:
    line = "\x1b[31mred\x07\x00 \u202eright to left\u200b half \udc80"
    assert with_symbols(line) == "␛[31mred␇␀ ⟨U+202E⟩right to left⟨U+200B⟩ half ⟨U+DC80⟩"
    failed = GPU_OOM | {"deciding_line": line[:-1]}
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(columns=failed))
    assert "␛[31mred␇␀ ⟨U+202E⟩right" in report(ledger, [figure], TEMPLATES)


def test_the_browser_is_told_to_run_our_script_and_to_load_nothing(ledger: Ledger) -> None:
    page = rendered(hostile(ledger), TEMPLATES)
    script = page[page.index("<script>") + 8 : page.index("</script>", page.index("<script>"))]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    tags = Read(page).tags
    assert not any({"src", "srcset", "action", "style"} & attributes.keys() for _, attributes in tags)
    links = [attributes["href"] or "" for _, attributes in tags if "href" in attributes]
    assert links and all(link.startswith(("#", "https://doi.org/", "https://arxiv.org/", "data:,")) for link in links)


# ---- how it is made ---------------------------------------------------------------------------------------------


def test_every_table_has_a_caption_and_every_header_says_what_it_heads(ledger: Ledger) -> None:
    page = read(ledger, record_figure(ledger, figure_13(), "paper", as_the_plot_says))
    assert page.count("table") == page.count("caption") > 5
    assert {attributes.get("scope") for tag, attributes in page.tags if tag == "th"} == {"col", "row"}
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    named = [
        attributes[name] for _, attributes in page.tags for name in ("aria-labelledby", "for") if name in attributes
    ]
    assert len(identities) == len(set(identities)) and set(named) <= set(identities)


def test_headings_skip_no_level(ledger: Ledger) -> None:
    levels = [
        int(tag[1])
        for tag, _ in read(ledger, record_figure(ledger, figure_13(), "paper", as_the_plot_says)).tags
        if tag in ("h1", "h2", "h3", "h4")
    ]
    assert levels[0] == 1 and all(after <= before + 1 for before, after in pairwise(levels))


@pytest.mark.parametrize(
    ("value", "spread", "shown"),
    [
        (142.31, 1.234, "142.3 ± 1.2"),
        (14974.2, 244.8, "14,974 ± 245"),
        (533.0, 9.088, "533 ± 9"),
        (0.0123456, 0.0001, "0.01235 ± 0.00010"),
        (533.04, 0.004, "533 ± 0.004"),
        (42_345_678_901.0, 0.0, "42,345,678,901 ± 0"),
        (1.5, None, "1.5"),
        (float("nan"), 1.0, ""),
        (None, None, ""),
    ],
)
def test_a_number_reads_as_far_as_it_can_be_trusted(value: float | None, spread: float | None, shown: str) -> None:
    assert with_spread(value, spread) == shown
    assert shown.startswith(shown_number(value))


def test_a_second_of_a_gpu_is_not_nothing() -> None:
    assert [shown_hours(hours) for hours in (0.0, 1 / 3600, 0.26, 1234.5)] == ["0.00", "< 0.01", "0.26", "1,234.50"]
    assert [shown_hours(hours) for hours in (None, -64.0)] == ["", "0.00"]


def test_an_attempt_that_has_not_ended_has_no_hours_on_the_page(ledger: Ledger) -> None:
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(columns=PENDING))
    assert '<td data-label="Hours" class="num"></td>' in report(ledger, [figure], TEMPLATES)


# ---- where it is written ----------------------------------------------------------------------------------------


def test_an_earlier_page_and_what_was_left_of_one_are_written_over(tmp_path: Path, ledger: Ledger) -> None:
    text = report(ledger, [record_figure(ledger, figure_13(), "paper", as_the_plot_says)], TEMPLATES)
    folder = tmp_path / "new" / "page"
    require_folder(folder, force=False)
    file = write_report(text, folder)
    assert file == folder / "index.html" and file.read_text(encoding="utf-8") == text
    (folder / ".index.html.part.html").write_text("half of")
    require_folder(folder, force=False)


@pytest.mark.parametrize("other", ["index.html", "notes.txt", ".git/"])
def test_a_folder_with_something_else_is_left_alone_unless_forced(tmp_path: Path, other: str) -> None:
    path = tmp_path / other
    path.mkdir() if other.endswith("/") else path.write_text("<!doctype html><p>mine")
    with pytest.raises(ReproError, match=f"contains other files .{other.strip('/')}"):
        require_folder(tmp_path, force=False)
    require_folder(tmp_path, force=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("x")
    for force in (False, True):
        with pytest.raises(ReproError, match="a file, not a folder"):
            require_folder(tmp_path / "page", force)


def test_an_interrupted_command_leaves_the_earlier_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report("earlier", tmp_path)

    def stopped(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:3].encode(encoding))
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_report("later", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text() == "earlier"


def test_hours_of_a_clock_that_went_backwards_are_none(ledger: Ledger) -> None:
    backwards = GPU_OOM | {"phase": "ended", "ended_at": START - timedelta(hours=1)}
    figure = record_figure(ledger, figure_13(), "paper", lambda *_: Outcome(columns=backwards))
    with ledger.writing() as session:
        session.execute(sa.update(Attempt).values(ended_at=START - timedelta(hours=1)))
    assert page_of(ledger, [figure]).hours[0].spent == "0.00"
