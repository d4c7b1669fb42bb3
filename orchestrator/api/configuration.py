"""Settings that apply to every command: their values, and where each one comes from."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.clusters.resolve import profile_file
from orchestrator.config.user import UserDefaults, user_defaults
from orchestrator.config.yaml import shown
from orchestrator.errors import Problem, ReproError
from orchestrator.masking import masked, masked_address
from orchestrator.paths import default_config_file, find_folders, user_config_file


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """A setting that applies to every command. `origin` is an option, a variable, `file:line:column` or a default."""

    setting: str
    value: str | tuple[str, ...] | None
    origin: str


def default_cluster() -> str | None:
    """Return the default of `--cluster`; None if there is none. ReproError if the configured cluster does not exist."""
    defaults = user_defaults()
    if defaults.cluster is not None:
        _require_cluster(defaults)
    return defaults.cluster


def _require_cluster(defaults: UserDefaults) -> None:
    assert defaults.cluster is not None
    origin = defaults.origins["cluster"]
    location = origin if ":" in origin else f"{origin}:"
    try:
        file = profile_file(find_folders(), defaults.cluster)
    except ReproError as error:
        raise ReproError(*(Problem(f"cluster: {p.what}", location, p.hint) for p in error.problems)) from None
    if not file.is_file():
        hint = "correct the path, or give the name of a cluster: repro clusters list"
        raise ReproError(Problem(f"cluster: {shown(file)}: no such file", location, hint))


def config_rows(database: str | None = None) -> list[ConfigRow]:
    """Return the settings of every command, with secrets masked. ReproError has every problem of the configuration.

    `database` is the value of the option.
    """
    folders, file, defaults = find_folders(), user_config_file(), user_defaults()
    if defaults.cluster is not None:
        _require_cluster(defaults)
    ledger = database or defaults.database or str(folders.home / "results.db")
    origins = {"cluster": "not set", "database": "default", "notify": "not set", **defaults.origins}
    if database:
        origins["database"] = "--database"
    return [
        ConfigRow("configuration", shown(file or default_config_file()), "file" if file else "no such file"),
        ConfigRow("home", str(folders.home), folders.home_origin),
        ConfigRow("cluster", defaults.cluster, origins["cluster"]),
        ConfigRow("database", masked(ledger), origins["database"]),
        ConfigRow(
            "notify", tuple(masked_address(address.url) for address in defaults.notify) or None, origins["notify"]
        ),
    ]
