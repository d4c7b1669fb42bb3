"""Run folders of a ledger whose home was moved: the recorded path is absolute, and the folder may lie elsewhere now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath


class RunFolders:
    """Current paths of what was recorded in `runs/RUN_ID/...`; each run folder is looked for once."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self._runs = runs
        self._current: dict[PurePath, PurePath] = {}

    def current(self, recorded: str) -> str:
        """Return where the file or folder of a run is now: as recorded, or below this ledger's own runs.

        A path stays as recorded if its run folder exists there, or nowhere else.
        """
        path = PurePath(recorded)
        run = next((folder for folder in path.parents if folder.parent.name == "runs"), None)
        if run is None or run.parent in self._runs:
            return recorded
        if run not in self._current:
            self._current[run] = self._find(run)
        found = self._current[run]
        return recorded if found == run else str(found / path.relative_to(run))

    def _find(self, run: PurePath) -> PurePath:
        if _is_folder(Path(run)):
            return run
        return next((runs / run.name for runs in self._runs if _is_folder(runs / run.name)), run)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # may not be looked at: it is another user's
        return True
