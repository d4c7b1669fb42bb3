"""Where things lie: no case and no run can have a folder outside of the one that holds the runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.catalog.expand import expand
from orchestrator.catalog.settings import AXES, Value
from orchestrator.errors import ReproError
from orchestrator.folders import Folders
from tests.unit.catalog.entries import shipped

FOLDERS = Folders(shipped=Path("/checkout"), home=Path("/home/me"))
RUN = "20261121-092041-bd57"
TEXT = st.text(max_size=30) | st.text(st.sampled_from("./-_~$ \0\n\\"), max_size=6)
VALUE: st.SearchStrategy[Value] = (
    TEXT | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
)
POINT = st.lists(st.tuples(st.sampled_from(AXES), VALUE), max_size=4).map(tuple)


def folder_of(point: tuple[tuple[str, Value], ...]) -> Path:
    case = expand(shipped(), "cpu")[0]
    object.__setattr__(case, "point", point)
    return FOLDERS.job(RUN, case.slug)


@settings(deadline=None)
@given(point=POINT)
@example(point=(("case", ".."),))
@example(point=(("case", "."),))
@example(point=(("case", "../../../etc"),))
@example(point=(("case", "/etc/passwd"),))
@example(point=(("case", "a\0b"),))
@example(point=(("case", "-rf"),))
@example(point=(("case", "x" * 300),))
@example(point=(("case", "\ud800"),))
@example(point=())
def test_a_job_has_a_folder_of_its_own_in_the_runs_whatever_its_case_is_called(
    point: tuple[tuple[str, Value], ...],
) -> None:
    try:
        folder = folder_of(point)
    except ReproError as error:
        assert len(error.problems) == 1 and str(error).isprintable()
        return
    assert Path(os.path.normpath(folder)).parent == FOLDERS.runs / RUN
    assert len(os.fsencode(folder.name)) <= 255


NO_NAMES = ["", ".", "..", "a/b", "/", "../x", "a\0", "a\nb", "\x1b[2J", "x" * 256, "é" * 128, "\ud800"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_in_a_folder_is_refused_wherever_a_folder_is_made_from_it(name: str) -> None:
    makers: list[Callable[[], Path]] = [
        lambda: FOLDERS.job(RUN, name),
        lambda: FOLDERS.job(name, "pp8"),
        lambda: FOLDERS.run(name),
        lambda: FOLDERS.submissions(name),
        lambda: FOLDERS.image_import(name),
    ]
    for make in makers:
        with pytest.raises(ReproError) as refused:
            make()
        assert len(refused.value.problems) == 1 and str(refused.value).isprintable()


def test_names_as_they_are_made_stay_as_they_are() -> None:
    assert FOLDERS.job(RUN, "pp8-tp8-gbs32") == FOLDERS.runs / RUN / "pp8-tp8-gbs32"
    assert FOLDERS.image_import("pytorch-20.12.0a1b2c3d").parent == FOLDERS.runs / "images"
