"""Readers of programs, by name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from orchestrator.errors import ReproError
from orchestrator.programs.plug_ins import called
from orchestrator.reading.reader import LogReader


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("nosuch.module:X", "the reader cannot be loaded: ModuleNotFoundError: No module named 'nosuch'"),
        ("toy_reader:Absent", "the reader cannot be loaded: AttributeError"),
        ("toy_reader:NUMBER", "the reader returns no LogReader"),
    ],
)
def test_a_reader_that_cannot_be_loaded_is_one_problem(value: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toy_reader")
    vars(module)["NUMBER"] = 3
    monkeypatch.setitem(sys.modules, "toy_reader", module)
    with pytest.raises(ReproError) as caught:
        called(value, "reader", LogReader)
    assert str(caught.value).startswith(f"{value}: {what}")
