"""Former entry point, for environments that were installed before `orchestrator.cli.main`."""

from orchestrator.cli.main import main

__all__ = ["main"]
