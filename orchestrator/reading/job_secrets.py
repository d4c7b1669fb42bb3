"""Secrets of a job, from its script: they are masked by value in what is recorded of its logs."""

from __future__ import annotations

import contextlib
import os
import re
from functools import lru_cache
from pathlib import Path

from orchestrator.errors import ReproError
from orchestrator.job_dir import tail_bytes
from orchestrator.masking import hidden_values, secret_values

_SCRIPT = "job.sh"
_LONGEST_SCRIPT_BYTES = 1 << 22
_OF_REPEAT = re.compile(r"\.repeat-[0-9]+$")
_FROM_SHELL = re.compile(r"\$\{([A-Za-z_]\w*):\?must be exported", re.ASCII)


def job_secrets(folder: Path) -> frozenset[str]:
    """Return the secrets that the script of this job's folder sets, and those it takes from the submitting shell.

    Repeats of a case share the script of the first one. A script that this user may not read gives none.
    """
    text = ""
    for place in dict.fromkeys((folder, folder.with_name(_OF_REPEAT.sub("", folder.name)))):
        with contextlib.suppress(ReproError):
            text = text or tail_bytes(place, _SCRIPT, _LONGEST_SCRIPT_BYTES).decode("utf-8", "replace")
    set_there, taken = _of_script(text)
    return set_there | secret_values({name: os.environ[name] for name in taken if name in os.environ})


@lru_cache(maxsize=256)
def _of_script(text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    return hidden_values(text), tuple(_FROM_SHELL.findall(text))
