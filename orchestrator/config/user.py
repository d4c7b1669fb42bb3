"""The user's configuration: defaults of options, from the environment and from `config.yaml`."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from orchestrator.config.model import Strict, Text, optional, read_model
from orchestrator.config.yaml import Document, read_document
from orchestrator.errors import Problem
from orchestrator.identity import why_not_own
from orchestrator.paths import CONFIG_VARIABLE, DATABASE_VARIABLE, user_config_file

CLUSTER_VARIABLE = "REPRO_CLUSTER"
NOTIFY_VARIABLE = "REPRO_NOTIFY"
"""Environment variable with URLs, separated by blanks, that replaces `notify:`."""
VARIABLES: Mapping[str, str] = {"cluster": CLUSTER_VARIABLE, "database": DATABASE_VARIABLE}
"""Field of the configuration with one value -> environment variable that replaces it."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")


def _url(value: str) -> str:
    if not _URL.fullmatch(value):
        raise ValueError("must be a URL such as mailto://user@example.org")
    return value


class UserConfig(Strict):
    """Fields of the user's `config.yaml`."""

    cluster: Text | None = optional(
        "Default of `--cluster`: the name of a cluster, or the path of its profile.", "selene"
    )
    database: Text | None = optional("Default of `--database`: the ledger, a file or a URL.", "/shared/ada/results.db")
    notify: list[Annotated[str, AfterValidator(_url)]] = optional(
        "URLs that get a message when a command has waited.", ["mailto://ada@example.org"], default=[]
    )


@dataclass(frozen=True, slots=True)
class Address:
    """URL that gets messages. It is a secret. `origin` is an option, a variable or `file:line:column`."""

    url: str = field(repr=False)
    origin: str


@dataclass(frozen=True, slots=True)
class UserDefaults:
    """Defaults of options. `origins` has the variable or the `file:line:column` of each field with a value."""

    cluster: str | None = None
    database: str | None = None
    notify: tuple[Address, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def user_defaults() -> UserDefaults:
    """Read the environment and the configuration file. ReproError has every problem of the file.

    A variable replaces the field of the file. An empty variable removes it.
    """
    file = user_config_file()
    document = Document("", {}) if file is None else _document(file)
    config = read_model(UserConfig, document)
    given = [name for name in UserConfig.model_fields if getattr(config, name)]
    origins = {name: str(document.place((name,))) for name in given}
    folder, name, database = Path() if file is None else file.parent, config.cluster, config.database
    values = {
        "cluster": _based(folder, name, is_path="/" in (name or "") or (name or "").endswith(".yaml")),
        "database": _based(folder, database, is_path="://" not in (database or "")),
    }
    for field_name, variable in VARIABLES.items():
        if variable in os.environ:
            values[field_name] = os.environ[variable] or None
            origins[field_name] = variable
    notify = tuple(Address(url, str(document.place(("notify", i)))) for i, url in enumerate(config.notify))
    if NOTIFY_VARIABLE in os.environ:
        notify = tuple(Address(url, NOTIFY_VARIABLE) for url in os.environ[NOTIFY_VARIABLE].split())
        origins["notify"] = NOTIFY_VARIABLE
    return UserDefaults(values["cluster"], values["database"], notify, origins)


def _document(file: Path) -> Document:
    def refusal(status: os.stat_result) -> Problem | None:
        is_of_root = status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        why = None if is_of_root else why_not_own(status)
        hint = f"chmod go-w {shlex.quote(str(file))}, or set {CONFIG_VARIABLE} to a file of your own"
        return Problem(f"{why}, so it is not used", f"{file}:", hint) if why else None

    return read_document(file, refusal)


def _based(folder: Path, value: str | None, *, is_path: bool) -> str | None:
    """Return a path relative to the folder of the configuration file, with `~` expanded; other values unchanged."""
    return str(folder / Path(value).expanduser()) if value is not None and is_path else value
