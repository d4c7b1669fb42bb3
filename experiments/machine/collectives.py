"""Sweep of one collective of torch.distributed over message sizes, printed in the columns of nccl-tests.

It needs only torch. Ranks come from Slurm, Open MPI or torchrun. Processes with a GPU use NCCL, others gloo.

Bus bandwidth is the size divided by the time, multiplied by a factor of the collective and of the number n of ranks:
2 (n-1)/n for all_reduce, (n-1)/n for all_gather and reduce_scatter (nccl-tests, doc/PERFORMANCE.md). The size is that
of the whole array: the output of all_gather, and the input of reduce_scatter.

all_reduce of torch.distributed works in place only, so its first four columns are N/A.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

BYTES = 4
"""Bytes of a float32, the type of all elements."""

CHUNK = 2**24
"""Elements that are compared at once."""

FIRST_COLUMNS = "{:>13}{:>14}{:>10}{:>8}{:>8}"
RESULT_COLUMNS = " {:>10} {:>9} {:>9} {:>7}"
"""Columns of an out-of-place or in-place result, with a space between two numbers of any length."""


def main() -> int:
    """Run the sweep; 1 if a result is wrong."""
    options = read_options()
    rank, ranks, local_rank = place()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=rendezvous(), rank=rank, world_size=ranks)
    sweep = Sweep(options.collective, device, options.warmup, options.repeats)
    sweep.print_head(options)
    wrong, bandwidths = 0, []
    size = options.smallest
    while size <= options.largest:
        row = sweep.row(size)
        wrong += row.wrong
        bandwidths += row.bandwidths
        size *= options.factor
    if rank == 0:
        print(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
        print(f"# Avg bus bandwidth    : {sum(bandwidths) / len(bandwidths):g}", flush=True)
    dist.destroy_process_group()
    return 1 if wrong else 0


def read_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collective", choices=sorted(FACTORS))
    parser.add_argument("--from", dest="smallest", type=int, required=True, help="smallest size in bytes")
    parser.add_argument("--to", dest="largest", type=int, required=True, help="largest size in bytes")
    parser.add_argument("--factor", type=int, default=2, help="factor between two sizes")
    parser.add_argument("--warmup", type=int, default=5, help="collectives of a size that are not measured")
    parser.add_argument("--repeats", type=int, default=20, help="collectives of a size that are measured")
    options = parser.parse_args()
    if options.factor < 2 or options.repeats < 1 or not 0 < options.smallest <= options.largest:
        parser.error("--factor must be 2 or more, --repeats 1 or more, and --from at most --to")
    return options


def place() -> tuple[int, int, int]:
    """Return the rank, the number of ranks, and the rank within the node."""
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        if all(name in os.environ for name in names):
            rank, ranks, local_rank = (int(os.environ[name]) for name in names)
            return rank, ranks, local_rank
    return 0, 1, 0


def rendezvous() -> str:
    """Return where the ranks meet: at the launcher's address, at Slurm's first node, or in a file of this folder."""
    if "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
        return "env://"
    if "SLURM_LAUNCH_NODE_IPADDR" in os.environ and "SLURM_JOB_ID" in os.environ:
        return f"tcp://{os.environ['SLURM_LAUNCH_NODE_IPADDR']}:{20000 + int(os.environ['SLURM_JOB_ID']) % 20000}"
    job = os.environ.get("PMIX_NAMESPACE", str(os.getpid()))
    return f"file://{Path.cwd()}/rendezvous-{re.sub('[^A-Za-z0-9]', '-', job)}"


class Row:
    """Result of one size: the number of wrong elements, and the bus bandwidths in GB/s."""

    def __init__(self) -> None:
        self.wrong = 0
        self.bandwidths: list[float] = []


class Sweep:
    """One collective on one device."""

    def __init__(self, collective: str, device: torch.device, warmup: int, repeats: int) -> None:
        self.collective, self.device = collective, device
        self.warmup, self.repeats = warmup, repeats
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def print_head(self, options: argparse.Namespace) -> None:
        """Print the versions, the device of each rank, and the head of the table."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        lines: list[object] = [None] * self.ranks
        dist.all_gather_object(
            lines, f"#  Rank {self.rank:2} Pid {os.getpid()} on {socket.gethostname()} device {name}"
        )
        if self.rank:
            return
        print(f"# {self.collective} of torch {torch.__version__}, backend {dist.get_backend()}, {self.ranks} ranks")
        print(f"# minBytes {options.smallest} maxBytes {options.largest} step: {options.factor}(factor)", end=" ")
        print(f"warmup iters: {self.warmup} iters: {self.repeats} validation: 1")
        print("#\n# Using devices", *lines, sep="\n")
        titles = RESULT_COLUMNS.format("time", "algbw", "busbw", "#wrong")
        units = RESULT_COLUMNS.format("(us)", "(GB/s)", "(GB/s)", "")
        space = len(FIRST_COLUMNS.format(*[""] * 5))
        print("#", f"#{'':{space - 1}}{'out-of-place':>{len(titles)}}{'in-place':>{len(titles)}}", sep="\n")
        print("#" + FIRST_COLUMNS.format("size", "count", "type", "redop", "root")[1:] + 2 * titles)
        print("#" + FIRST_COLUMNS.format("(B)", "(elements)", "", "", "")[1:] + (2 * units).rstrip())

    def row(self, size: int) -> Row:
        """Measure one size, and print its line."""
        whole = self.collective == "all_reduce"
        count = size // BYTES // (1 if whole else self.ranks)
        if count == 0:
            raise SystemExit(f"--from {size}: {self.ranks} ranks need at least {self.ranks * BYTES} bytes")
        size = count * BYTES * (1 if whole else self.ranks)
        redop = "none" if self.collective == "all_gather" else "sum"
        row = Row()
        line = FIRST_COLUMNS.format(size, count, "float", redop, -1)
        for in_place in (False, True):
            line += self._columns(row, size, count, in_place)
        if self.rank == 0:
            print(line, flush=True)
        return row

    def _columns(self, row: Row, size: int, count: int, in_place: bool) -> str:
        if self.collective == "all_reduce" and not in_place:
            return RESULT_COLUMNS.format(*["N/A"] * 4)
        sent, received, call = BUFFERS[self.collective](self, count, in_place)
        fill(sent, self.rank)
        call()
        wrong = self._sum(self._count_wrong(received))
        seconds = self._seconds(call)
        rate = size / seconds / 1e9
        row.wrong += int(wrong)
        row.bandwidths.append(rate * FACTORS[self.collective](self.ranks))
        return RESULT_COLUMNS.format(f"{seconds * 1e6:.2f}", f"{rate:.4g}", f"{row.bandwidths[-1]:.4g}", int(wrong))

    def _seconds(self, call: Callable[[], object]) -> float:
        """Return the mean time of a collective, over all ranks."""
        for _ in range(self.warmup):
            call()
        self._synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(self.repeats):
            call()
        self._synchronize()
        return self._sum(time.perf_counter() - start) / self.ranks / self.repeats

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.item()

    def _count_wrong(self, received: torch.Tensor) -> int:
        """Return how many elements of this rank's result are wrong."""
        wrong = 0
        for start in range(0, received.numel(), CHUNK):
            part = received[start : start + CHUNK]
            places = torch.arange(start, start + part.numel(), device=self.device)
            if self.collective == "all_gather":
                count = received.numel() // self.ranks
                expected = pattern(places % count, 0) + places // count
            else:
                first = self.rank * received.numel() if self.collective == "reduce_scatter" else 0
                expected = pattern(places + first, 0) * self.ranks + self.ranks * (self.ranks - 1) // 2
            wrong += int((part != expected).sum().item())
        return wrong


def pattern(places: torch.Tensor, rank: int) -> torch.Tensor:
    """Return what a rank sends at these places: small integers, whose sums a float32 has exactly."""
    return places % 251 + rank


def fill(sent: torch.Tensor, rank: int) -> None:
    """Write the pattern of a rank."""
    for start in range(0, sent.numel(), CHUNK):
        part = sent[start : start + CHUNK]
        part.copy_(pattern(torch.arange(start, start + part.numel(), device=sent.device), rank))


Buffers = tuple[torch.Tensor, torch.Tensor, Callable[[], object]]


def _all_reduce(sweep: Sweep, count: int, _in_place: bool) -> Buffers:
    data = torch.zeros(count, device=sweep.device)
    return data, data, lambda: dist.all_reduce(data)


def _all_gather(sweep: Sweep, count: int, in_place: bool) -> Buffers:
    received = torch.zeros(count * sweep.ranks, device=sweep.device)
    own = received[sweep.rank * count : (sweep.rank + 1) * count]
    sent = own if in_place else torch.zeros(count, device=sweep.device)
    return sent, received, lambda: dist.all_gather_into_tensor(received, sent)


def _reduce_scatter(sweep: Sweep, count: int, in_place: bool) -> Buffers:
    sent = torch.zeros(count * sweep.ranks, device=sweep.device)
    own = sent[sweep.rank * count : (sweep.rank + 1) * count]
    received = own if in_place else torch.zeros(count, device=sweep.device)
    return sent, received, lambda: dist.reduce_scatter_tensor(received, sent)


BUFFERS: dict[str, Callable[[Sweep, int, bool], Buffers]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}
FACTORS: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
}

if __name__ == "__main__":
    raise SystemExit(main())
