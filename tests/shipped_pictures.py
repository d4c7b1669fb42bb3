"""Pictures beside the shipped bundles, drawn from the numbers in the bundles.

python -m tests.shipped_pictures    # writes experiments/results/*/*.png
"""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.catalog.library import Entry, find_experiment, read_experiment
from orchestrator.paths import Folders
from orchestrator.results.bundle.extract import memory_ledger, read_extract, read_rows, text_of, unpacked
from orchestrator.results.outcome import FigureOutcome, judge_stored, needs_losses
from orchestrator.results.plot.figure import plot

CHECKOUT = Path(__file__).parent.parent
RESULTS = CHECKOUT / "experiments" / "results"
_FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT / "no-such-home")


def bundles() -> list[Path]:
    """Return the shipped bundles."""
    return sorted(RESULTS.rglob("*.tar.zst"))


def beside(bundle: Path, suffix: str) -> Path:
    """Return the file beside a bundle with this suffix in place of `.tar.zst`."""
    return bundle.with_name(bundle.name.removesuffix(".tar.zst") + suffix)


def entry_of(experiment: str) -> Entry:
    """Return an experiment of the catalog, or one that is only for tests on GPUs."""
    edge = CHECKOUT / "tests" / "gpu" / f"{experiment}.yaml"
    return read_experiment(experiment, edge) if edge.exists() else find_experiment(_FOLDERS, experiment)


def bundled_outcome(bundle: Path) -> FigureOutcome:
    """Return the results in a bundle, as cases of today's experiment."""
    with unpacked(bundle) as (folder, _):
        about = json.loads(text_of(folder, "bundle.json"))
        entry = entry_of(about["experiment"])
        iterations = list(read_rows(folder, "iterations")) if needs_losses(entry) else ()
        ledger = memory_ledger(read_extract(folder), iterations, Path())
    return judge_stored(ledger, entry, about["scale"])


def draw(bundle: Path, file: Path) -> None:
    """Draw the picture of a bundle into a file."""
    outcome = bundled_outcome(bundle)
    plot(outcome.entry, outcome.scale, outcome.cluster, outcome.drawn(), file)


if __name__ == "__main__":
    for shipped in bundles():
        draw(shipped, beside(shipped, ".png"))
        print(beside(shipped, ".png").relative_to(CHECKOUT))
