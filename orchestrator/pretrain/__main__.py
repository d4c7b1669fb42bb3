"""`python -m orchestrator.pretrain`: one rank, which another launcher such as srun has started."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.imports import quick_imports
from orchestrator.pretrain.place import find_place, set_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 trained, 2 refused. Raise errors of the training, for the launcher to report."""
    place = find_place(os.environ)
    arguments = parse_arguments(argv, prints=place.rank == 0)
    set_environment(os.environ, place)
    with quick_imports():
        # torch reads the environment when it is imported, and a wrong flag is refused without waiting for it.
        from orchestrator.pretrain.rank import EXIT_REFUSED, import_megatron, is_refused, train_rank

        if is_refused(arguments, place, prints=place.rank == 0):
            return EXIT_REFUSED
        import_megatron()
    train_rank(arguments, place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
