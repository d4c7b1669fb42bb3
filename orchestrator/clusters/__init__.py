"""Cluster profiles: the settings of a site, read from `clusters/*.yaml`, and their names."""

from __future__ import annotations

from pathlib import Path

from orchestrator.paths import Folders


def cluster_names(folders: Folders) -> dict[str, Path]:
    """Return the name and file of each cluster profile. Overlays are not clusters."""
    return {path.stem: path for path in folders.cluster_files() if not is_overlay(path)}


def is_overlay(path: Path) -> bool:
    """Return whether the file has private values of a profile."""
    return path.stem.endswith(".local")
