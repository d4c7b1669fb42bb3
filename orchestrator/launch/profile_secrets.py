"""Secrets that a cluster profile gives to its jobs: they are masked by value in everything that is recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from orchestrator.clusters.resolve import Cluster
from orchestrator.masking import hidden_values, secret_values


def profile_secrets(cluster: Cluster) -> frozenset[str]:
    """Return the values of variables with a secret's name, from `environment:` and, by `env_from:`, from this shell."""
    profile = cluster.layered.value
    found: set[str] = set()
    for name, value in (profile.get("environment") or {}).items():
        for text in _texts(value):
            found |= secret_values({str(name): text})
    for text in _texts(profile):
        found |= hidden_values(text)
    taken = {name: os.environ[name] for name in cluster.profile.env_from if name in os.environ}
    return frozenset(found | secret_values(taken))


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in JSON-like data except conditions on jobs (`when`)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if key != "when":
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
