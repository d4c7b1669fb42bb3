"""Files of experiments: a first version from a template, and the check of a file."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog.library import Entry
from orchestrator.catalog.names import is_path
from orchestrator.catalog.template import EXPERIMENT_TEMPLATE, PAPER_TEMPLATE
from orchestrator.errors import Problem, ReproError
from orchestrator.files import require_place
from orchestrator.paths import find_folders
from orchestrator.planning import experiment_check
from orchestrator.planning.experiment_check import CheckedScale
from orchestrator.text import printable_line


def new_experiment(file: Path | str) -> list[Path]:
    """Write a commented experiment, and `paper.yaml` beside it if there is none; return the written files."""
    file = Path(file).expanduser()
    if not is_path(file.name) or file.stem == "paper":
        raise ReproError(Problem("not the file of an experiment", f"{file}:", "for example my/figure-1.yaml"))
    if file.exists():
        raise ReproError(Problem("exists already", f"{file}:", "give another file"))
    if file.parent.exists():
        require_place(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    paper = file.parent / "paper.yaml"
    texts = {file: ("schema.json", EXPERIMENT_TEMPLATE)}
    if not paper.exists():
        texts[paper] = "paper.schema.json", PAPER_TEMPLATE
    schemas = find_folders().shipped / "experiments"
    for path, (schema, text) in texts.items():
        first = f"# yaml-language-server: $schema={printable_line(str(schemas / schema))}\n"
        path.write_text(first + text, encoding="utf-8")
    return list(texts)


def check_experiment(name: str) -> tuple[Entry, list[CheckedScale]]:
    """Return an experiment and its scales; ReproError has every problem of its file, scales and cases."""
    return experiment_check.check_experiment(find_folders(), name)
