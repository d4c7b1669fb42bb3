"""`python -m orchestrator.pretrain`: one rank, which another launcher such as srun has started."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr

from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.bytecode import keep_bytecode
from orchestrator.pretrain.place import find_place, set_environment


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 trained, 2 refused. Raise errors of the training, for the launcher to report."""
    place = find_place(os.environ)
    with _silent_unless(place.rank == 0):
        arguments = parse_arguments(argv)
    set_environment(os.environ, place)
    keep_bytecode()
    # torch reads the environment when it is imported, and a wrong flag is refused without waiting for it.
    from orchestrator.pretrain.rank import EXIT_REFUSED, is_refused, train_rank

    if is_refused(arguments, place, prints=place.rank == 0):
        return EXIT_REFUSED
    train_rank(arguments, place)
    return 0


@contextmanager
def _silent_unless(speaks: bool) -> Iterator[None]:
    """Drop argparse's message on all ranks but one: it is the same on each."""
    with nullcontext() if speaks else redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    sys.exit(main())
