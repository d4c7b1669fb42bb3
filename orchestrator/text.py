"""Printable text, plurals and times for people and files.

Text from YAML files, logs and schedulers may contain control characters and characters without width. None of these
reaches a terminal or a page.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime

ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
"""A colour, a cursor movement and the like, as a terminal reads it."""


def _is_harmless(character: str) -> bool:
    """Return whether a character only prints; Python counts no space but U+0020 as printable."""
    return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"


def _symbol(character: str) -> str:
    """Return Unicode's picture of an ASCII control character, else the number of the character."""
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return chr(0x2421 if code == 0x7F else 0x2400 + code)
    return f"⟨U+{code:04X}⟩"


def printable(text: str) -> str:
    """Return the text for a terminal: `?` for each character that does not print, except line ends and tabs."""
    return "".join(character if _is_harmless(character) else "?" for character in text)


def printable_line(text: str) -> str:
    """Return the text as one line: no escape sequences, a space for each line end and tab, `?` as in `printable`."""
    line = " ".join(ESCAPE_SEQUENCE.sub("", text).splitlines()).replace("\t", " ")
    return line if line.isprintable() else printable(line)


def with_symbols(text: str) -> str:
    """Return the text for a page: a visible symbol for each character that does not print."""
    return "".join(each if _is_harmless(each) else _symbol(each) for each in text.replace("\r\n", "\n"))


def counted(number: int, noun: str) -> str:
    """Return `1 job`, `2 jobs`, `2 processes`."""
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"


def option_words(options: Mapping[str, object]) -> Iterator[str]:
    """Yield options of `repro` as words: none for None and False, a flag for True, a pair for each item of a list."""
    for name, value in options.items():
        option = "--set" if name == "settings" else f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if each is not None and each is not False:
                yield from [option] if each is True else [option, str(each)]


def utc_stamp(moment: datetime | None, timespec: str = "seconds") -> str | None:
    """Return `2026-01-01T12:00:07Z` for a time of the ledger, which is in UTC without a zone; None for None."""
    return None if moment is None else f"{moment.isoformat(timespec=timespec)}Z"


def shown_time(moment: datetime | None) -> str:
    """Return `2026-01-01 12:00:07` for a person, or nothing for None."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
