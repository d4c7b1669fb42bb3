from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.user import UserConfig, user_defaults
from orchestrator.errors import ReproError
from orchestrator.paths import default_config_file, user_config_file


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file below XDG_CONFIG_HOME, not yet written."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    for name in ("REPRO_CONFIG", "REPRO_CLUSTER", "REPRO_DATABASE", "REPRO_NOTIFY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "xdg" / "repro").mkdir(parents=True)
    return tmp_path / "xdg" / "repro" / "config.yaml"


def test_the_file_is_in_the_users_configuration_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_config_file() is None and user_defaults().cluster is None
    file.write_text("cluster: selene\n")
    assert user_config_file() == file and user_defaults().cluster == "selene"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_config_file() == Path("/home/ada/.config/repro/config.yaml")


def test_a_variable_replaces_a_field_and_an_empty_one_removes_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("cluster: selene\ndatabase: postgresql://h/db\nnotify: [mailto://a@example.org]\n")
    monkeypatch.setenv("REPRO_CLUSTER", "eos")
    monkeypatch.setenv("REPRO_DATABASE", "")
    defaults = user_defaults()
    assert (defaults.cluster, defaults.database) == ("eos", None)
    assert [address.url for address in defaults.notify] == ["mailto://a@example.org"]
    assert defaults.notify[0].origin.endswith("config.yaml:3:10")
    assert defaults.origins["cluster"] == "REPRO_CLUSTER" and defaults.origins["database"] == "REPRO_DATABASE"
    assert defaults.origins["notify"].endswith("config.yaml:3:9")
    monkeypatch.setenv("REPRO_NOTIFY", "ntfy://one json://two/b")
    assert [address.url for address in user_defaults().notify] == ["ntfy://one", "json://two/b"]
    assert user_defaults().origins["notify"] == "REPRO_NOTIFY"
    monkeypatch.setenv("REPRO_NOTIFY", "")
    assert user_defaults().notify == ()


def test_paths_are_relative_to_the_file_and_names_and_urls_are_unchanged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    file.write_text("cluster: sites/mine.yaml\ndatabase: ~/results.db\n")
    assert user_defaults().cluster == str(file.parent / "sites/mine.yaml")
    assert user_defaults().database == "/home/ada/results.db"
    file.write_text("cluster: mine\ndatabase: sqlite:////tmp/x.db\n")
    assert (user_defaults().cluster, user_defaults().database) == ("mine", "sqlite:////tmp/x.db")


def test_every_problem_of_the_file_has_its_position(file: Path) -> None:
    file.write_text("clutser: selene\nnotify: [nobody]\ndatabase: 3\n")
    with pytest.raises(ReproError) as error:
        user_defaults()
    texts = sorted(str(problem) for problem in error.value.problems)
    assert [text.partition("config.yaml")[2] for text in texts] == [
        ':1:1 clutser: unknown field. Did you mean "cluster"?',
        ":2:10 notify.0: must be a URL such as mailto://user@example.org, got 'nobody'",
        ":3:11 database: must be text, got 3. Hint: default of `--database`: the ledger, a file or a URL",
    ]


def test_a_file_that_the_user_names_must_exist_and_only_the_user_may_write_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_CONFIG", str(file))
    with pytest.raises(ReproError, match="no such file"):
        user_defaults()
    file.write_text("cluster: selene\n")
    file.chmod(0o666)
    with pytest.raises(ReproError, match="is writable by everybody, so it is not used. Hint: chmod go-w"):
        user_defaults()


def test_each_field_has_a_description() -> None:
    assert all(field.description for field in UserConfig.model_fields.values())
