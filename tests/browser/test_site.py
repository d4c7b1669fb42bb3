"""Documentation site in a real browser, opened from its files: search, dark and light, phone width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.pages import page_names

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture
def index(browser: Browser, site_folder: Path) -> Iterator[Page]:
    """Yield the first page. At the end there must be no request to another host."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light", offline=True)
    page = context.new_page()
    page.set_default_timeout(10_000)  # ms
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site_folder / "index.html").as_uri())
    expect(page.get_by_role("heading", name="Learn it")).to_be_visible()  # index.html leads to docs/index.html
    page.wait_for_load_state("load")
    yield page
    context.close()
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_the_search_finds_a_symptom(index: Page) -> None:
    index.get_by_label("Search").fill("fused kernels")
    index.get_by_label("Search").press("Enter")
    first = index.locator("#search-results a").first
    expect(first).to_have_text("Troubleshooting")
    first.click()
    expect(index.get_by_role("heading", name="It hangs at the fused kernels")).to_be_visible()


def test_dark_follows_the_preference_and_can_be_chosen(index: Page) -> None:
    light = index.evaluate(BACKGROUND)
    index.emulate_media(color_scheme="dark")
    dark = index.evaluate(BACKGROUND)
    index.emulate_media(color_scheme="light")
    assert index.evaluate(BACKGROUND) == light != dark
    button = index.locator(".content-icon-container .theme-toggle")
    for _ in range(3):  # automatic, light, dark
        if index.evaluate(BACKGROUND) == light:
            button.click()
    assert index.evaluate(BACKGROUND) == dark


def test_no_page_is_wider_than_a_phone(index: Page, site_folder: Path) -> None:
    index.set_viewport_size({"width": 390, "height": 844})
    shown = [file for page in page_names() if (file := site_folder / page.replace(".md", ".html")).exists()]
    wide = []
    for file in shown:
        index.goto(file.as_uri(), wait_until="domcontentloaded")
        if index.evaluate("document.documentElement.scrollWidth") > 390:
            wide.append(file.name)
    assert wide == [] and len(shown) > 35


def test_a_link_to_a_file_outside_the_documentation_works(index: Page, site_folder: Path) -> None:
    index.goto((site_folder / "docs" / "tutorials" / "reviewer.html").as_uri())
    index.get_by_role("link", name="The measurements on H200").click()
    expect(index.get_by_role("img", name="Figure 13 on two H200")).to_be_visible()
    assert index.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
