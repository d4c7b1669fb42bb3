"""Example values for the open values of a profile, so that its scripts can be read before a site fills them in."""

from __future__ import annotations

import re
from copy import deepcopy
from dataclasses import replace
from typing import Any

from orchestrator.clusters.layers import Layered
from orchestrator.config.model import placeholders
from orchestrator.config.yaml import KeyPath

EXAMPLE = "EXAMPLE"
"""Part of every example value."""

_PATHS = ("checkout", "python", "data_path", "vocab_file", "merge_file", "benchmark", "hostfile", "staging_folder")


def with_examples(layered: Layered) -> Layered:
    """Return the profile with a visible example in place of each open value, such as `EXAMPLE-account`."""
    value: dict[str, Any] = deepcopy(layered.value)
    for path, text in list(placeholders(value)):
        block: Any = value
        for key in path[:-1]:
            block = block[key]
        block[path[-1]] = _example(layered, path, text)
    return replace(layered, value=value)


def _example(layered: Layered, path: KeyPath, text: str) -> str:
    named = [key for key in path if isinstance(key, str)]
    name = re.sub(r"[^A-Za-z0-9]+", "-", named[-1]).strip("-")
    if path[:2] == ("container", "images"):
        if layered.mapping("container").get("runtime") in ("shifter", "podman-hpc"):
            return f"{EXAMPLE.lower()}/{name.lower()}:latest"
        return f"/{EXAMPLE}/{name}.sqsh"
    if text.startswith("<") and (named[-1] in _PATHS or path[:2] == ("container", "mounts")):
        return f"/{EXAMPLE}/{name}"
    return re.sub(r"<[^<>]*>", f"{EXAMPLE}-{name}", text)
