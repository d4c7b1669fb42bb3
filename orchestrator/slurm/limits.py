"""How much Slurm takes at once."""

from __future__ import annotations

import re

from orchestrator.slurm.command import run_slurm

DEFAULT_MOST_IN_ARRAY = 1001
"""MaxArraySize where nobody has set it (slurm.conf(5))."""


def most_in_array() -> int:
    """How many elements an array may have. Unreachable where slurmctld does not answer.

    MaxArraySize is one more than the largest index, so that arrays that count from 0 have as many elements.
    """
    config = run_slurm(["scontrol", "show", "config"]).stdout
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
    return max(int(found[1]) if found else DEFAULT_MOST_IN_ARRAY, 1)
