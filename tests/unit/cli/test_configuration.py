from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.cli.calling import Caller

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


@pytest.fixture
def config(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of the site's user: the cluster `here`, and a ledger in another folder."""
    file = repro.site.folder / "config.yaml"
    file.write_text("cluster: here\ndatabase: other/my.db\nnotify: [mailto://ada:passw0rd@example.org]\n")
    monkeypatch.setenv("REPRO_CONFIG", str(file))
    return file


@pytest.mark.usefixtures("config")
def test_config_show_has_each_value_with_its_origin_and_no_secret(
    repro: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CLUSTER", "local")
    rows = {
        row["setting"]: (row["value"], row["origin"])
        for row in json.loads(repro("config", "show", "--json").stdout)["settings"]
    }
    home = repro.site.folder
    assert rows == {
        "configuration": ("config.yaml", "file"),
        "home": (str(home), "REPRO_HOME"),
        "cluster": ("local", "REPRO_CLUSTER"),
        "database": (str(home / "other/my.db"), "config.yaml:2:11"),
        "notify": (["mailto://***"], "config.yaml:3:9"),
    }
    text = repro("config", "show", "--database", "mine.db").stdout
    assert re.search(r"database +mine.db +--database", text) and "passw0rd" not in text


@pytest.mark.torch  # a submission to `local` checks that training is possible
@pytest.mark.usefixtures("config")
def test_the_configured_cluster_and_ledger_are_used_unless_an_option_names_others(repro: Caller) -> None:
    words = ("submit", "figure-13", "--scale", "cpu", "--dry-run")
    assert "to here; nothing was submitted" in repro(*words).stderr
    assert "to local; nothing was submitted" in repro(*words, "--cluster", "local").stderr
    assert "on here" in repro("plan", "figure-13", "--scale", "cpu").stderr
    assert f"no jobs in {repro.site.folder / 'other/my.db'}" in repro("status").stderr
    assert f"no jobs in {repro.site.folder / 'none.db'}" in repro("status", "--database", "none.db").stderr


@pytest.mark.usefixtures("config")
def test_an_empty_variable_switches_the_default_off(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRO_CLUSTER", "")
    done = repro("submit", "figure-13", "--dry-run")
    hint = "name a cluster, or set a default: REPRO_CLUSTER, or `cluster:` in "
    assert done.returncode == 2 and f"repro: submit: missing option '--cluster'. Hint: {hint}" in done.stderr
    done = repro("plan", "figure-13")
    assert "on here" not in done.stderr and "at most 64 GPUs" in done.stderr  # the machine of the paper


def test_a_wrong_default_is_reported_with_its_origin(
    repro: Caller, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("cluster: her\n")
    done = repro("submit", "figure-13")
    assert (done.returncode, done.stderr) == (
        2,
        'repro: config.yaml:1:10 cluster: her: no such cluster. Did you mean "here"?\n',
    )
    monkeypatch.setenv("REPRO_CLUSTER", "no/such.yaml")
    assert "repro: REPRO_CLUSTER: cluster: no/such.yaml: no such file. Hint:" in repro("plan", "figure-13").stderr


def test_the_example_of_the_documentation_is_valid(repro: Caller, config: Path) -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    config.write_text(example)
    done = repro("config", "show")
    assert done.returncode == 0 and re.search("cluster +selene +config.yaml:1:10", done.stdout), done.stderr
