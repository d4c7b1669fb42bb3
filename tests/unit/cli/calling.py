"""Call of `repro` in the process of the test: faster, and without the settings of a process that ends soon."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.cli.main import run
from tests.json_schema import require_valid
from tests.stand_in_site import Site


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str

    @property
    def complaints(self) -> list[str]:
        """The lines on stderr, less the suggestion at the end."""
        return [line for line in self.stderr.splitlines() if not line.startswith("next: ")]


@dataclass(frozen=True)
class Caller:
    site: Site
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    @property
    def no_jobs(self) -> str:
        """Start of the message that the site has no ledger."""
        ledger = self.site.folder / "results.db"
        hint = "if you submitted elsewhere, cd there or set REPRO_HOME"
        return f"repro: no jobs in {ledger}, which does not exist. Hint: {hint}"

    def __call__(self, *words: str, folder: Path | None = None) -> Done:
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            patch.chdir(folder or self.site.folder)
            patch.setenv("REPRO_HOME", str(self.site.folder))
            patch.setenv("XDG_CONFIG_HOME", str(self.site.folder / ".config"))
            patch.setattr(sys, "argv", ["repro", *words])
            code: object
            try:
                code = run(sys.argv[1:])
            except SystemExit as end:
                code = end.code or 0
        captured = self.capsys.readouterr()
        assert isinstance(code, int)
        if "--json" in words:
            require_valid(captured.out, code)
        return Done(code, captured.out, captured.err)


def everything_in(folder: Path) -> dict[str, bytes]:
    """All files below, to be compared with what is there later."""
    return {str(path): path.read_bytes() for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
