"""Names of cases in file names: safe for every row name, and unique."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.files import single_name
from tests.unit.catalog.entries import shipped

CASE = expand(shipped(), "cpu")[0]


def named(name: str) -> Case:
    """Return a row with this name."""
    return replace(CASE, point=(("case", name),))


@pytest.mark.parametrize("name", ["gpt-1.3b", "a", "7b_fp16.v2", "x" * 100, "größe"])
def test_a_name_that_is_safe_is_its_own_folder(name: str) -> None:
    assert named(name).slug == name


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "/etc", "-rf", "--", ".hidden", "~", "x" * 300, "\0", "a\nb"])
def test_a_name_that_leads_elsewhere_is_an_option_or_is_too_long_becomes_one_that_does_not(name: str) -> None:
    slug = named(name).slug
    assert slug[:1].isalnum() and "/" not in slug and slug.isprintable() and len(slug) < 120
    assert re.search(r"-[0-9a-f]{6}$", slug)
    assert single_name(slug) == slug


@pytest.mark.parametrize("name", ["submissions", "submissions-2", "warm-up-0"])
def test_no_case_has_the_folder_of_something_else_of_its_run(name: str) -> None:
    assert named(name).slug.startswith(f"case-{name}-")


@pytest.mark.parametrize(
    ("name", "other"),
    [("a b", "a_b"), ("a/b", "a b"), ("a%b", "a b"), ("x" * 300, "x" * 301), ("", "_"), ("..", "case-..")],
)
def test_two_names_that_would_become_one_stay_two(name: str, other: str) -> None:
    assert named(name).slug != named(other).slug
    assert named(name).slug == named(name).slug


def test_the_digest_is_of_the_name_and_the_same_wherever_it_is_made() -> None:
    """Check that the name of an existing script does not change."""
    assert named("..").slug == "case-..-b7790b"


NAMES = st.text(max_size=200) | st.text(st.sampled_from("ab ./-_"), max_size=4)


@given(name=NAMES, other=NAMES)
@example(name="a b", other="a/b")
def test_rows_with_different_names_have_different_folders(name: str, other: str) -> None:
    slugs = [named(name).slug, named(other).slug]
    assert (slugs[0] == slugs[1]) is (name == other)
    for slug in slugs:
        assert slug[:1].isalnum() and not slug.startswith(("submissions", "warm-up-"))
