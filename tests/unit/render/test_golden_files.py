"""Golden files: a wrong line fails the comparison, a difference gives the rendered script, and updates are stable."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.render.golden_files import (
    GOLDEN,
    UPDATE_COMMAND,
    GoldenError,
    Rendered,
    golden_difference,
    read_golden,
    remove_files,
    stale_files,
    write_golden,
)
from tests.unit.render.site_scripts import SITES, rendered_site_script, runs

BASE = Rendered("selene/job.sh", "#!/bin/bash\nfi\necho one\nfi\necho two\nfi\necho three\n")
DERIVED = Rendered("eos/job.sh", "#!/bin/bash\nfi\necho one\nfi\necho 2\nfi\nnew\n\x0b\u2028\necho three\n", BASE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a golden folder with a script stored in full and one stored as a difference."""
    write_golden(BASE, tmp_path)
    write_golden(DERIVED, tmp_path)
    return tmp_path


def shown(folder: Path, name: str) -> str:
    return os.path.relpath(folder / name)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_unchanged_files_are_equal_to_the_rendered_scripts(folder: Path) -> None:
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")) == ["eos/job.diff", "selene/job.sh"]
    assert [golden_difference(rendered, folder) for rendered in (BASE, DERIVED)] == ["", ""]


def test_changed_line_of_a_full_script_fails_the_comparison(folder: Path) -> None:
    change(folder / "selene" / "job.sh", "echo one", "echo 1")
    message = golden_difference(BASE, folder)
    assert message.startswith(f"{shown(folder, 'selene/job.sh')}: the rendered text differs\n--- ")
    assert "\n-echo 1\n+echo one\n" in message and UPDATE_COMMAND in message


def test_changed_line_of_the_base_fails_the_comparison_of_a_difference(folder: Path) -> None:
    change(folder / "selene" / "job.sh", "echo one", "echo 1")
    assert "\n-echo 1\n+echo one\n" in golden_difference(DERIVED, folder)


def test_changed_line_of_a_difference_fails_the_comparison(folder: Path) -> None:
    change(folder / "eos" / "job.diff", "+echo 2", "+echo 22")
    message = golden_difference(DERIVED, folder)
    assert message.startswith(f"{shown(folder, 'eos/job.diff')}: the rendered text differs\n--- ")
    assert "\n-echo 22\n+echo 2\n" in message and UPDATE_COMMAND in message


@pytest.mark.parametrize("text", ["a\nb\n", "a", "a\n\n"])
def test_missing_or_additional_line_end_at_the_end_fails_the_comparison(text: str, tmp_path: Path) -> None:
    write_golden(Rendered("a.sh", "a\n"), tmp_path)
    (tmp_path / "a.sh").write_text(text)
    assert len(golden_difference(Rendered("a.sh", "a\n"), tmp_path).splitlines()) > 5


def test_changed_rendered_script_fails_the_comparison_with_the_changed_line(folder: Path) -> None:
    message = golden_difference(replace(DERIVED, text=DERIVED.text + "one more\n"), folder)
    assert "\n+one more\n" in message


def test_missing_file_fails_the_comparison(folder: Path) -> None:
    (folder / "eos" / "job.diff").unlink()
    assert golden_difference(DERIVED, folder).startswith(f"{shown(folder, 'eos/job.diff')}: no such golden file\n")
    write_golden(DERIVED, folder)
    (folder / "selene" / "job.sh").unlink()
    assert golden_difference(DERIVED, folder).startswith(f"{shown(folder, 'selene/job.sh')}: no such golden file\n")


def test_difference_that_does_not_fit_its_base_fails_the_comparison(folder: Path) -> None:
    change(folder / "selene" / "job.sh", "echo two", "echo three")
    message = golden_difference(DERIVED, folder)
    assert message.startswith(f"{shown(folder, 'eos/job.diff')}: hunk 1 does not fit selene/job.sh\n")
    assert UPDATE_COMMAND in message


def test_difference_from_another_difference_is_refused(folder: Path) -> None:
    change(folder / "eos" / "job.diff", "--- selene/job.sh", "--- eos/job.diff")
    with pytest.raises(GoldenError, match=r"eos/job.diff: the base is not a script stored in full"):
        read_golden(folder / "eos" / "job.diff", folder)


def test_difference_with_another_base_than_the_rendered_one_fails_the_comparison(folder: Path) -> None:
    write_golden(replace(BASE, name="alps/job.sh"), folder)
    change(folder / "eos" / "job.diff", "--- selene/job.sh", "--- alps/job.sh")
    message = golden_difference(DERIVED, folder)
    assert message.startswith(f"{shown(folder, 'eos/job.diff')}: the base must be selene/job.sh\n")


def test_line_inserted_in_base_and_script_changes_no_difference(folder: Path) -> None:
    before = (folder / "eos" / "job.diff").read_bytes()
    new_base = replace(BASE, text=BASE.text.replace("#!/bin/bash\n", "#!/bin/bash\nset -e\n"))
    new_script = DERIVED.text.replace("#!/bin/bash\n", "#!/bin/bash\nset -e\n")
    write_golden(new_base, folder)
    write_golden(Rendered(DERIVED.name, new_script, new_base), folder)
    assert (folder / "eos" / "job.diff").read_bytes() == before
    assert read_golden(folder / "eos" / "job.diff", folder) == new_script


@pytest.mark.parametrize(
    "text", [BASE.text, "x\n", "\n", BASE.text * 2, "fi\n" * 3, BASE.text.replace("two\nfi", "two")]
)
def test_any_script_is_rebuilt_from_its_difference(text: str, tmp_path: Path) -> None:
    script = Rendered("a/b.sh", text, BASE)
    write_golden(BASE, tmp_path)
    write_golden(script, tmp_path)
    assert read_golden(tmp_path / "a" / "b.diff", tmp_path) == text


def test_stale_file_is_found_and_removed_with_its_folder(folder: Path) -> None:
    for name in ("eos/job.sh", "old-site/job.diff"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    stale = stale_files({"selene/job.sh", "eos/job.diff"}, folder)
    assert [str(file.relative_to(folder)) for file in stale] == ["eos/job.sh", "old-site/job.diff"]
    remove_files(stale)
    assert stale_files({"selene/job.sh", "eos/job.diff"}, folder) == []
    assert not (folder / "old-site").exists() and (folder / "eos" / "job.diff").exists()


def test_update_of_unchanged_scripts_changes_no_file(tmp_path: Path) -> None:
    copy = tmp_path / "golden"
    shutil.copytree(GOLDEN, copy)
    for profile, program in SITES:
        if runs(profile, program):
            write_golden(rendered_site_script(profile, program), copy)
    files = sorted(str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*") if file.is_file())
    assert sorted(str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()) == files
    assert [name for name in files if (copy / name).read_bytes() != (GOLDEN / name).read_bytes()] == []


def test_difference_from_each_base_gives_the_rendered_script(tmp_path: Path) -> None:
    """The written file, not the one in the golden folder."""
    derived = [rendered_site_script(*site) for site in SITES if runs(*site)]
    derived = [script for script in derived if script.base is not None]
    assert len(derived) > 50
    for script in derived:
        assert script.base is not None
        write_golden(script.base, tmp_path)
        write_golden(script, tmp_path)
        assert read_golden(tmp_path / script.file, tmp_path) == script.text
