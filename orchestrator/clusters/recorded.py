"""The profile of a recorded run. Its path comes from the ledger, so another user may have written it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.clusters.resolve import Cluster, cluster_names, find_cluster
from orchestrator.errors import Problem, ReproError
from orchestrator.folders import Folders
from orchestrator.ownership import why_not_own_path


def recorded_cluster(folders: Folders, name: str, file: str | None) -> Cluster:
    """Return the profile of a run: of its recorded name where that is the recorded file, else of the file itself.

    ReproError where another user can change the file, or one that it is merged from.
    """
    named = cluster_names(folders).get(name)
    if named is not None and (file is None or _is_same(named, Path(file))):
        return find_cluster(folders, name)
    if file is None:
        raise ReproError(Problem(f"{name}: no such cluster", mend=_hint(name)))
    _require_own(Path(file), name)
    cluster = find_cluster(folders, file)
    for path in cluster.files:
        if not path.is_relative_to(folders.shipped):
            _require_own(path, name)
    return cluster


def _require_own(file: Path, name: str) -> None:
    for path in (file, file.parent):
        why = why_not_own_path(path)
        if why is not None:
            what = f"{why}, so the profile that the ledger names is not used"
            raise ReproError(Problem(what, f"{path}:", _hint(name)))


def _hint(name: str) -> str:
    return f"name the profile yourself: --cluster {name}, or --cluster FILE"


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
