"""A file is there whole or not at all, and is named in a line where it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.atomic_write import require_place, written_whole
from orchestrator.errors import ReproError


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ReproError("x"), OSError(28, "No space left on device")])
def test_what_is_cut_off_leaves_what_was_there_and_no_half_beside_it(tmp_path: Path, error: BaseException) -> None:
    file = tmp_path / "x.csv"
    file.write_text("before")
    with pytest.raises((KeyboardInterrupt, ReproError)) as found, written_whole(file) as part:
        part.write_text("half")
        raise error
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"] and file.read_text() == "before"
    if isinstance(error, OSError):
        assert str(found.value) == f"{file}: cannot be written (No space left on device)"


def test_what_is_written_takes_the_place_of_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("before")
    with written_whole(file) as part:
        part.write_text("after")
        assert file.read_text() == "before"
    assert file.read_text() == "after" and len(list(tmp_path.iterdir())) == 1


def test_where_no_file_can_stand_a_line_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("")
    said = {
        tmp_path: f"{tmp_path}: a folder, not a file. Hint: name a file in it",
        tmp_path / "taken" / "x.csv": f"{tmp_path}/taken/x.csv: {tmp_path}/taken is no folder",
        tmp_path
        / "no"
        / "x.csv": f"{tmp_path}/no/x.csv: there is no folder {tmp_path}/no. Hint: mkdir -p {tmp_path}/no",
        Path("/dev/null"): "/dev/null: no regular file. Hint: leave -o out, and redirect what is printed",
    }
    for file, line in said.items():
        with pytest.raises(ReproError) as found:
            require_place(file)
        assert str(found.value) == line
    require_place(tmp_path / "x.csv")
    require_place(tmp_path / "taken")
    monkeypatch.setattr("os.access", lambda _path, _how: False)
    with pytest.raises(ReproError, match="is read-only to you. Hint: name a file elsewhere$"):
        require_place(tmp_path / "x.csv")
