"""Tests of the recording in the README."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_recording_is_small_well_formed_and_of_the_session_in_its_script() -> None:
    file = CHECKOUT / "docs" / "pictures" / "session.svg"
    script = (CHECKOUT / "docs" / "pictures" / "record.py").read_text(encoding="utf-8")
    session = re.findall(r'^    "(repro .*)",$', script, re.MULTILINE)
    shown = "".join(ElementTree.parse(file).getroot().itertext())
    assert len(session) == 3 and [command for command in session if f"$ {command}" not in shown] == []
    assert "verified" in shown and file.stat().st_size <= 200_000


def test_the_readme_is_short_and_shows_the_recording() -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    shown = re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL)
    assert len(shown.splitlines()) <= 130 and "(docs/pictures/session.svg)" in text
