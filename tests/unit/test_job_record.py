"""What a job leaves beside its log, and what of it proves that it ran inside its image."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.job_dir import read_record

LINES = ("exit_code=3", "at=2026-11-21T16:00:00Z", "host=n1", "scheduler_id=8_1", "pid=77")


def record(folder: Path, *lines: str) -> Path:
    (folder / "end").write_text("".join(f"{line}\n" for line in lines))
    return folder / "end"


def test_a_record_is_read_back_as_the_script_wrote_it(tmp_path: Path) -> None:
    found = read_record(record(tmp_path, "event=end", *LINES))
    assert found is not None and (found.exit_code, found.scheduler_id, found.pid) == (3, "8_1", 77)
    assert (found.at, found.host, found.image, found.outside_image) == (datetime(2026, 11, 21, 16), "n1", None, None)


@pytest.mark.parametrize("missing", range(len(LINES)))
def test_half_a_record_is_none(tmp_path: Path, missing: int) -> None:
    assert read_record(record(tmp_path, *LINES[:missing], *LINES[missing + 1 :])) is None
    assert read_record(tmp_path / "start") is None


@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        ("2/2", None),
        ("1/2", "1 of 2 nodes ran it inside a=b.sqsh"),
        ("0/2", "0 of 2 nodes ran it inside a=b.sqsh"),
        ("", "none of its nodes ran it inside a=b.sqsh"),
    ],
)
def test_only_a_proof_from_every_node_is_complete(tmp_path: Path, inside: str, wrong: str | None) -> None:
    found = read_record(record(tmp_path, *LINES, "image=a=b.sqsh", f"inside_image={inside}"))
    assert found is not None and found.outside_image == wrong
