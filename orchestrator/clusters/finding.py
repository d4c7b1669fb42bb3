"""One thing that a check of a profile found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Result = Literal["ok", "wrong", "open", "later", "unknown", "not checked"]
"""`open`: still to be filled in; `later`: before that is submitted which needs it. `unknown`: who was asked does not
say. `not checked`: it takes a job on a node, or hardware that the profile does not have."""

Place = Literal["login", "compute"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is the profile's field, or what else was looked at; `where` its file, line and column."""

    check: str
    place: Place
    result: Result
    found: str
    where: str | None = None
    mend: str | None = None

    @property
    def is_fault(self) -> bool:
        return self.result in ("wrong", "open")
