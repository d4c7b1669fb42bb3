"""Entry point of `python -m orchestrator.pretrain`: one rank, started by a launcher such as srun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from orchestrator.pretrain import log_lines
from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.environment import find_place, quick_imports, set_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Train one rank. Return the exit code: 0 trained, 2 refused. Raise errors of the training for the launcher."""
    place = find_place(os.environ)
    if place.local_rank == 0:  # each node imports on its own
        print(log_lines.program(), flush=True)
    arguments = parse_arguments(argv, prints=place.rank == 0)
    set_environment(os.environ, place)
    with quick_imports():
        # Imported here: torch reads the environment at import, and a wrong flag is refused without this wait.
        from orchestrator.pretrain.rank import EXIT_REFUSED, import_megatron, is_refused, train_rank

        if is_refused(arguments, place, prints=place.rank == 0):
            return EXIT_REFUSED
        import_megatron()
    train_rank(arguments, place)
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # the communicators of a trained rank still exist
