"""Report in a real browser: opened from its file it loads nothing, runs no planted script, and every control works."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.reports import SECRET

CASES = "table:has(#figure-13-paper-selene-1-all-cases)"
"""Those of the first figure."""


def column(page: Page, number: int, table: str = CASES) -> list[str]:
    """Return the first line of each cell of a column."""
    rows: list[list[str]] = page.locator(table).evaluate(
        "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText.split('\\n')[0]))"
    )
    return [row[number] for row in rows]


def numbers(texts: Sequence[str]) -> list[float]:
    return [float(text.partition(" ")[0].replace(",", "")) for text in texts]


def header(page: Page, label: str) -> Any:
    return page.locator(CASES).get_by_role("button", name=label, exact=True)


def test_page_loads_nothing_and_the_console_is_empty(page: Page) -> None:
    assert page.title() == "3 experiments · repro report"
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0


def test_planted_text_neither_runs_nor_becomes_an_element(page: Page) -> None:
    assert page.locator("script").count() == 1 and page.locator("img, [onerror], a[href^=javascript]").count() == 0
    shown = page.locator("body").text_content() or ""
    assert shown.count("<script>alert(1)</script>") > 5 and "␛[31m⟨U+202E⟩" in shown


def test_unescaped_scripts_would_not_run(browser: Browser, report_file: Path, tmp_path: Path) -> None:
    planted = (
        "<script>window.ran = 1</script><img src='data:,' onerror='window.ran = 2'><b onclick='window.ran = 3'>x</b>"
    )
    text = report_file.read_text(encoding="utf-8").replace("</main>", f"{planted}</main>")
    file = tmp_path / "planted.html"
    file.write_text(text, encoding="utf-8")
    page = browser.new_page()
    page.goto(file.as_uri())
    page.locator("b[onclick]").dispatch_event("click")
    assert page.evaluate("window.ran") is None and page.locator(".tools").is_visible()
    page.close()


def test_a_planted_secret_is_not_on_the_page(page: Page, report_file: Path) -> None:
    assert SECRET not in report_file.read_text(encoding="utf-8") and SECRET not in page.content()
    assert "export HF_TOKEN=***" in page.content()


def test_a_click_sorts_a_table_and_a_second_click_reverses_it(page: Page) -> None:
    before = numbers(column(page, 2))
    header(page, "Measured").click()
    assert numbers(column(page, 2)) == sorted(before) != before
    assert page.locator(f"{CASES} >> th[aria-sort]").evaluate_all("all => all.map(th => th.ariaSort)") == ["ascending"]
    header(page, "Measured").click()
    assert numbers(column(page, 2)) == sorted(before, reverse=True)
    header(page, "Case and job").click()
    assert column(page, 0)[:3] == ["pp=2,tp=32,gbs=32", "pp=2,tp=32,gbs=128", "pp=4,tp=16,gbs=32"]
    assert page.locator(f"{CASES} >> th[aria-sort]").count() == 1


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_table_sorts_by_the_keyboard(page: Page, key: str) -> None:
    header(page, "Case and job").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press(key)
    assert numbers(column(page, 2)) == sorted(numbers(column(page, 2)))
    assert page.evaluate("document.activeElement.innerText") == "Measured"  # and the focus does not move


def test_cells_without_a_number_are_last_in_both_orders(page: Page) -> None:
    table = "table:has(#table-1-paper-selene-2-all-cases)"
    button = page.locator(table).get_by_role("button", name="Iteration, ms", exact=True)
    orders = []
    for _ in range(2):
        button.click()
        orders.append(column(page, 4, table))
    count = orders[0].index("")
    assert all(set(texts[count:]) == {""} and "" not in texts[:count] for texts in orders)
    assert numbers(orders[0][:count]) == sorted(numbers(orders[0][:count])) == numbers(orders[1][:count])[::-1]


def test_the_filter_keeps_rows_that_have_every_word(page: Page) -> None:
    page.get_by_label("Filter rows").fill("PP=8 gbs=32")
    expect(page.locator("#matches")).to_have_text(re.compile(r"^\d+ of \d+ rows$"))
    left = page.locator(f"{CASES} >> tbody tr:visible >> th").all_inner_texts()
    assert [text.partition("\n")[0] for text in left] == ["pp=8,tp=8,gbs=32"]
    assert page.locator(".index tbody tr:visible").count() == 3
    page.get_by_label("Filter rows").fill("")
    expect(page.locator("#matches")).to_have_text("")
    assert page.locator(f"{CASES} >> tbody tr:visible").count() == 10


def test_dark_and_light_can_be_chosen(page: Page) -> None:
    button = page.get_by_role("button", name="Dark", exact=True)
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    button.press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light


def test_dark_preference_applies_until_light_is_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    button = page.get_by_role("button", name="Dark", exact=True, pressed=True)
    button.wait_for()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.click()
    page.get_by_role("button", name="Dark", exact=True, pressed=False).wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


# The contrast of every text with its background, by the formula of WCAG 2.2; the worst of each kind.
CONTRAST = """() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = channels(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const worst = {};
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || element.closest("svg, script")) continue;
    const [a, b] = [light(channels(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const kind = `${element.tagName}.${element.className}`;
    worst[kind] = Math.min(worst[kind] ?? 99, ratio);
  }
  return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_wcag_contrast(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
    contrasts: dict[str, float] = page.evaluate(CONTRAST)
    assert len(contrasts) > 15 and {kind: ratio for kind, ratio in contrasts.items() if ratio < 4.5} == {}


def test_keyboard_users_can_skip_to_the_results_and_see_the_focus(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.keyboard.press("Tab")  # the first picture of the gallery
    assert page.evaluate("document.activeElement.hash") == "#figure-13-paper-selene-1"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_controls_have_names_and_follow_the_reading_order(page: Page) -> None:
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, input, a, summary')].filter(e => !(e.textContent || e.labels?.length))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    assert page.locator("[tabindex]:not([tabindex='0'], [tabindex='-1'])").count() == 0
    for landmark in ("banner", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1


def test_on_a_phone_nothing_is_beyond_the_right_edge(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.add_style_tag(content=".figure { content-visibility: visible !important; }")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert page.locator(".box").evaluate_all(wide) == 0
    cell = page.locator(f"{CASES} >> tbody tr").first.locator("td:not(:empty)").nth(1)
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Measured"'
    header(page, "Measured").click()
    assert numbers(column(page, 2)) == sorted(numbers(column(page, 2)))


def test_the_page_opens_with_the_outcome_and_the_whole_picture_of_each_figure(page: Page) -> None:
    thumbnails = page.locator(".gallery svg")
    assert thumbnails.count() == 3
    assert page.locator(".gallery").evaluate("gallery => gallery.getBoundingClientRect().top") < 400
    first = page.locator(".gallery li").first
    assert "All 10 cases are verified." in first.inner_text() and "Scale paper on selene" in first.inner_text()
    # The picture is not cut off: its copy is as large as its view box.
    sizes = "all => all.map(svg => [svg.viewBox.baseVal.width, svg.firstElementChild.width.baseVal.value])"
    assert all(box == copy for box, copy in thumbnails.evaluate_all(sizes))
    first.get_by_role("link").click()
    assert page.evaluate("location.hash") == "#figure-13-paper-selene-1"
    order = page.locator(".figure").first.evaluate(
        "figure => [...figure.querySelectorAll('h2, figure, h3')].map(each => each.innerText.split('\\n')[0])"
    )
    assert [order[0], *order[2:]] == [
        "Pipeline- against tensor-parallel size",
        "Claims of the source",
        "Cases",
        "Provenance",
    ]


def test_a_link_to_a_script_opens_its_section(page: Page) -> None:
    page.locator("summary", has_text="Attempts").first.click()
    page.get_by_role("link", name="script-3", exact=True).click()
    script = page.locator("#script-3 > pre")
    script.wait_for(state="visible")
    assert "srun python pretrain.py" in script.inner_text()


def test_print_cuts_nothing_and_each_figure_starts_a_page(page: Page) -> None:
    header(page, "Measured").click()
    printed = page.pdf(prefer_css_page_size=True)
    pages = max(int(count) for count in re.findall(rb"/Count (\d+)", printed))
    assert printed.startswith(b"%PDF") and 4 <= pages <= 20
    page.set_viewport_size({"width": 703, "height": 1000})  # 186 mm: A4 without its margins
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("document.documentElement.scrollWidth") <= 703
    boxes: list[list[object]] = page.locator(".box").evaluate_all(
        "boxes => boxes.map(box => [getComputedStyle(box).overflow, getComputedStyle(box).maxHeight,"
        " box.scrollWidth > box.clientWidth])"
    )
    assert len(boxes) > 8 and {tuple(box) for box in boxes} == {("visible", "none", False)}
    breaks = page.locator(".figure").evaluate_all("all => all.map(one => getComputedStyle(one).breakBefore)")
    assert breaks == ["page"] * 3 and not page.locator(".bar").is_visible()
    # Chromium repeats the header on the next page unless it contains a button.
    assert page.locator("th > button").first.evaluate("one => getComputedStyle(one).display") == "contents"
    assert page.get_by_text("Each submission with its user, time, command and code.").first.is_visible()
    assert not page.locator("pre").first.is_visible()


def test_without_its_script_the_page_is_complete(browser: Browser, report_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report_file.as_uri())
    assert page.locator(".tools").is_hidden() and page.locator("th button").count() == 0
    assert page.locator(CASES).get_by_text("pp=8,tp=8,gbs=32").first.is_visible()
    page.locator("summary", has_text="Scripts").first.click()
    assert page.get_by_text("pp=2,tp=32,gbs=32 (").first.is_visible()
    context.close()
