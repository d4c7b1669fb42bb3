"""`python -m orchestrator.pretrain`: refuse what cannot run with every reason, else train."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr

from orchestrator.pretrain.arguments import parse_arguments
from orchestrator.pretrain.layout import refusals
from orchestrator.pretrain.place import find_place, gpu_lacking, set_environment

EXIT_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the run: 0 trained, 2 refused. Errors while training are raised, for the launcher to see."""
    place = find_place(os.environ)
    with _silent_unless(place.rank == 0):
        arguments = parse_arguments(argv)
    set_environment(os.environ, place)
    # Imported only now: torch reads the environment, and a wrong flag is told without waiting for it.
    import torch

    from orchestrator.pretrain.devices import prepare_megatron, start_processes, stop_processes

    reasons = refusals(arguments, place.world_size, on_gpu=torch.cuda.is_available())
    if reasons:
        if place.rank == 0:
            print("\n".join(f"pretrain: error: {reason}" for reason in reasons), file=sys.stderr, flush=True)
        return EXIT_REFUSED
    if lacking := gpu_lacking(place, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES", "")):
        print(f"pretrain: error: {lacking}", file=sys.stderr, flush=True)
        return EXIT_REFUSED
    device = start_processes(place)
    prepare_megatron(device)
    from orchestrator.pretrain.train import pretrain

    pretrain(arguments, device)
    stop_processes(device)
    return 0


@contextmanager
def _silent_unless(speaks: bool) -> Iterator[None]:
    """Drop what argparse says on all ranks but one, as it says the same on each."""
    with nullcontext() if speaks else redirect_stderr(io.StringIO()):
        yield


if __name__ == "__main__":
    sys.exit(main())
