"""Data set of a text, made by the program's own tools/preprocess_data.py."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clusters.needs import DATA_FILES, Item
from orchestrator.errors import Problem, ReproError

TOOL = "tools/preprocess_data.py"
_NEEDED = ("checkout", "vocab_file", "merge_file")


@dataclass(frozen=True, slots=True)
class Text:
    """Text to tokenize, a file with a JSON object with the key `text` in each line.

    `python` is a Python that has the program's packages (torch, numpy, six, nltk).
    """

    file: Path
    python: str

    @property
    def source(self) -> str:
        """Return the origin of the data for their record."""
        return f"{self.file}, by {TOOL}"


def require_usable_text(text: Text, workload: str, items: Sequence[Item]) -> None:
    """Raise ReproError if there is no such text or Python, or if the workload has no vocabulary for text."""
    problems = []
    if not text.file.is_file():
        problems.append(Problem("no such file", f"--text {text.file}:"))
    if shutil.which(text.python) is None:
        problems.append(Problem("no such program", f"--python {text.python}:", "name a Python that has torch"))
    fields = {item.source.need.field for item in items}
    if not {*_NEEDED, "data_path"} <= fields:
        hint = "leave it out, or make the data by hand: fetch accepts existing data"
        problems.append(Problem(f"{workload} cannot use a text as its data here", "--text:", hint))
    if problems:
        raise ReproError(*problems)


def tokenize_text(text: Text, items: Sequence[Item], part: Path) -> tuple[Path, ...]:
    """Run the tool; return the two files that it has written into the folder `part`.

    ReproError if the checkout or the vocabulary is missing, or if the tool fails.
    """
    paths = {item.source.need.field: item.path for item in items}
    missing = [field for field in _NEEDED if not paths[field].exists()]
    if missing:
        raise ReproError(Problem(f"{TOOL} needs {' and '.join(missing)}", f"{text.file}:", "repeat the command"))
    checkout = paths["checkout"]
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    command = [text.python, str(checkout / TOOL), "--input", str(text.file), "--output-prefix", str(part / "data")]
    command += ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(paths["vocab_file"])]
    command += ["--merge-file", str(paths["merge_file"]), "--append-eod", "--workers", "1"]
    # The tool looks for the program last, behind an installed megatron-core.
    search = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    made = tuple(part / f"data_text_document{ending}" for ending in DATA_FILES)
    if done.returncode != 0 or not all(file.is_file() for file in made):
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        what = f"{TOOL} failed: {lines[-1] if lines else f'exit code {done.returncode}'}"
        hint = f"--python names a Python with the program's packages; the command was: {shlex.join(command)}"
        raise ReproError(Problem(what, f"{text.file}:", hint))
    return made
