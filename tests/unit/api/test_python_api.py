"""The Python interface: the documented example runs as written, and the exported names exist."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator import api
from orchestrator.errors import ReproError
from tests.stand_in_site import CHECKOUT, Site

pytestmark = pytest.mark.slow

CLI = CHECKOUT / "orchestrator" / "cli"
PAGE = CHECKOUT / "docs" / "reference" / "python-api.md"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A project folder that is the working folder and home."""
    site = Site.create(tmp_path / "project")
    shutil.copy(site.folder / "clusters" / "here.yaml", site.folder / "clusters" / "local.yaml")
    monkeypatch.chdir(site.folder)
    monkeypatch.setenv("REPRO_HOME", str(site.folder))
    monkeypatch.delenv("REPRO_DATABASE", raising=False)
    yield site
    site.end_sleepers()


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.skipif(importlib.util.find_spec("pandas") is None, reason="needs pandas")
def test_the_documented_example_runs_as_written(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for example in examples():
        if "repro.plot" in example and importlib.util.find_spec("matplotlib") is None:
            continue
        exec(example, names)
    printed = capsys.readouterr().out
    assert "3 jobs, run " in printed and "pp=1,tp=4,gbs=4" in printed
    assert "3/3 verified" in printed
    if importlib.util.find_spec("matplotlib") is not None:
        assert (site.folder / "figure-13.png").stat().st_size > 1000


def test_every_exported_name_can_be_imported() -> None:
    assert len(dir(api)) > 150 and all(getattr(api, name) is not None for name in dir(api))


def test_the_commands_use_only_exported_names() -> None:
    used = {name for file in CLI.glob("*.py") for name in re.findall(r"(?<![\w.])api\.(\w+)", file.read_text())}
    assert len(used) > 100 and {name for name in used if not hasattr(api, name)} == set()


def test_the_table_of_the_page_names_functions_that_exist() -> None:
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([a-z_]+)", cell)]
    assert len(names) > 25 and [name for name in names if not hasattr(api, name)] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute submitt"):
        api.submitt  # noqa: B018


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("function", [api.submit, api.plan_run, api.render])
def test_a_wrong_keyword_of_a_plan_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match="sclae"):
        function("figure-13", "here", sclae="cpu")


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    "function",
    [
        api.collect,
        api.compare,
        api.claims,
        api.plot,
        api.outcomes,
        api.status,
        api.wait,
        api.cancel,
        api.retry,
    ],
)
def test_a_wrong_keyword_of_a_selection_is_refused(function: Callable[..., object]) -> None:
    api.submit("figure-13", "here", scale="cpu", where="pp=1,gbs=4")
    api.wait()
    with pytest.raises(TypeError, match="sclae"):
        function("figure-13", sclae="cpu")


@pytest.mark.usefixtures("site")
def test_the_recorded_command_can_be_typed_in_a_shell() -> None:
    submission = api.submit("figure-13", "here", scale="cpu", where="pp=1,gbs=4", repeat=2)
    typed = "repro submit figure-13 --cluster here --scale cpu --where pp=1,gbs=4 --repeat 2"
    assert list(submission.command) == typed.split()
    with api.query("select command from runs") as answer:
        assert [json.loads(str(command)) for (command,) in answer.rows] == [typed.split()]
    api.wait()


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("value", ["cpu\0", "cpu\udcff"])
def test_text_that_no_script_can_contain_is_refused(value: str) -> None:
    with pytest.raises(ReproError, match="NUL character|not UTF-8"):
        api.submit("figure-13", "here", scale=value)


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize("option", ["repeat", "max_parallel", "stop_after"])
def test_a_number_below_1_is_refused(option: str) -> None:
    numbers: dict[str, int] = {option: 0}
    with pytest.raises(ReproError, match=f"--{option.replace('_', '-')} 0: must be at least 1"):
        api.submit("figure-13", "here", scale="cpu", **numbers)  # type: ignore[arg-type]


@pytest.mark.usefixtures("site")
def test_errors_are_repro_errors_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert api.status().jobs == () and not api.status().is_submitted
    with pytest.raises(ReproError, match="no jobs in"):
        api.wait()
    with pytest.raises(ReproError, match="no such experiment"):
        api.submit("figure-133", "here")
    assert capsys.readouterr() == ("", "")
