"""The picture as a part of a page: nothing of it reaches the rest of the page, and it takes the page's colours."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from orchestrator.results.plot.figure import picture
from orchestrator.results.plot.panels import BACKGROUND, INK, SERIES
from tests.unit.catalog.entries import figure_13, shipped
from tests.unit.results.drawing import made_up, nothing_ran, words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory) -> str:
    entry = figure_13()
    return picture(entry, "paper", "here", made_up(tmp_path_factory.mktemp("ledger"), entry), prefix="plot-7")


def test_it_is_one_svg_element_that_says_what_it_shows(drawing: str) -> None:
    svg = ElementTree.fromstring(drawing)
    assert svg.tag == "{http://www.w3.org/2000/svg}svg" and drawing.startswith("<svg ") and "<metadata" not in drawing
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"].startswith("SC21 Figure 13: ") and "scale paper on here" in svg.attrib["aria-label"]
    assert "(Pipeline-parallel size, Tensor-parallel size)" in words(drawing)


def test_every_id_is_its_own_and_every_reference_is_to_one_of_them(drawing: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', drawing)
    assert len(set(ids)) == len(ids) and all(one == "plot-7" or one.startswith("plot-7-") for one in ids)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', drawing))
    assert used and used <= set(ids)


def test_its_styles_are_bound_to_it(drawing: str) -> None:
    styles = re.findall(r"<style[^>]*>(.*?)</style>", drawing, flags=re.DOTALL)
    selectors = [selector for style in styles for selector in re.findall(r"([^{}]+)\{(?!\s*#)", style)]
    assert selectors and all(selector.strip().startswith("#plot-7") for selector in selectors)


def test_its_text_and_its_lines_have_the_colours_of_the_page(drawing: str) -> None:
    assert not [colour for colour in (INK, BACKGROUND, *SERIES) if colour in drawing]
    assert "fill: currentColor" in drawing and "stroke: var(--plot-1)" in drawing
    assert "fill: #ffffff" not in drawing  # nor a background of its own


def test_hatches_and_bars_take_the_colours_too() -> None:
    entry = shipped("alpa-gpt")
    body = picture(entry, "paper", "here", nothing_ran(entry))
    assert "<pattern" in body and not [colour for colour in SERIES if colour in body]
    assert len(body) < 100_000  # a hatch of dots is a megabyte


def test_a_name_cannot_leave_its_place() -> None:
    entry = figure_13()
    hostile = 'x"><script>alert(1)</script>'
    svg = picture(entry, "paper", hostile, nothing_ran(entry))
    ElementTree.fromstring(svg)
    assert "<script" not in svg
