"""What a job's script leaves in its folder beside the log: a record of its start, and one of its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.job_files import tail_bytes

LONGEST_RECORD = 1 << 16
"""Bytes; a script writes a few hundred."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """`inside_image` is "2/2" where both of two nodes ran the job's task inside `image`; None without a container.

    `commit` is what the program's checkout was at when the job began; None without one, or where nobody could tell.
    """

    exit_code: int
    at: datetime
    host: str
    scheduler_id: str
    pid: int
    image: str | None = None
    inside_image: str | None = None
    commit: str | None = None

    @property
    def outside_image(self) -> str | None:
        """What is wrong with that proof; None where it is complete, or none is due."""
        if self.inside_image is None:
            return None
        seen, _, due = self.inside_image.partition("/")
        if seen == due and seen.isdecimal():
            return None
        return f"{seen or 'none'} of {due or 'its'} nodes ran it inside {self.image}"

    @property
    def nodes_inside(self) -> int | None:
        """Number of nodes that ran the job's task inside the image; None where the record does not contain it."""
        nodes = (self.inside_image or "").partition("/")[0]
        return int(nodes) if re.fullmatch("[0-9]{1,9}", nodes) else None


def read_record(path: Path) -> JobRecord | None:
    """The record at `path`; None when there is none yet (they are renamed into place, so never half of one).

    Unreadable where it may not be read; ReproError where something else is in its place.
    """
    text = tail_bytes(path.parent, path.name, LONGEST_RECORD).decode(errors="replace")
    fields: Mapping[str, str] = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    try:
        return JobRecord(
            exit_code=int(fields["exit_code"]),
            at=datetime.strptime(fields["at"], "%Y-%m-%dT%H:%M:%SZ"),
            host=fields["host"],
            scheduler_id=fields["scheduler_id"],
            pid=int(fields["pid"]),
            image=fields.get("image"),
            inside_image=fields.get("inside_image"),
            commit=fields.get("commit") or None,
        )
    except (KeyError, ValueError):
        return None
