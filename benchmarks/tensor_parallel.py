"""Ways to hide the communication of tensor parallelism behind matrix products.

    python -m benchmarks.tensor_parallel                        # as many GPUs as the machine has
    python -m benchmarks.tensor_parallel --processes 2 --cpu    # checks the results only

A layer gathers its input before a column-parallel product, and scatters the sum of the results of a row-parallel one.
The sizes are those of figure 13 at scale `quad`: sequences of 2048 tokens and hidden size 4096. Each way runs in a CUDA
graph of REPEATS pairs; the time of a pair is the least of ROUNDS replays, of the slowest rank. Results are compared in
fp32 with those of the separate operations.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

SEQUENCE, HIDDEN = 2048, 4096
REPEATS, ROUNDS = 20, 10
Pair = Callable[[], torch.Tensor]


@dataclass
class Sizes:
    """A product of `rows` x `inner` by `inner` x `columns`; rows are those of all ranks."""

    name: str
    rows: int
    inner: int
    columns: int


class Ways:
    """Ways to run one pair of a product and its communication on this rank."""

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
        self.ranks = dist.get_world_size()
        self.group = _world()
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.share = torch.randn(sizes.rows // self.ranks, sizes.inner, generator=generator).to(device, dtype)
        self.whole = torch.randn(sizes.rows, sizes.inner, generator=generator).to(device, dtype)
        self.weight = (torch.randn(sizes.inner, sizes.columns, generator=generator) / sizes.inner**0.5).to(
            device, dtype
        )
        self.result = torch.zeros(sizes.rows, sizes.columns, device=device, dtype=dtype)
        self.second = torch.cuda.Stream() if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def product(self) -> torch.Tensor:
        product: torch.Tensor = self.whole @ self.weight
        return product

    def gather(self) -> torch.Tensor:
        whole = torch.empty_like(self.whole)
        dist.all_gather_into_tensor(whole, self.share)
        return whole

    def gather_and_product(self) -> torch.Tensor:
        product: torch.Tensor = self.gather() @ self.weight
        return product

    def scatter(self) -> torch.Tensor:
        return self._scattered(self.result)

    def product_and_scatter(self) -> torch.Tensor:
        return self._scattered(self.product())

    def chunked_gather_and_product(self, chunks: int) -> torch.Tensor:
        """Gather chunk after chunk on the second stream, and multiply each when it has arrived."""
        rows = self.share.size(0) // chunks
        result = self.whole.new_empty(self.ranks, self.share.size(0), self.weight.size(1))
        gathered = []
        with self._on_second():
            for chunk in self.share.split(rows):  # type: ignore[no-untyped-call]
                whole = chunk.new_empty(self.ranks * rows, chunk.size(1))
                dist.all_gather_into_tensor(whole, chunk)
                gathered.append((whole.view(self.ranks, rows, -1), self._event()))
        for number, (whole, event) in enumerate(gathered):
            self._wait(event)
            place = result[:, number * rows : (number + 1) * rows]
            torch.bmm(whole, self.weight.expand(self.ranks, -1, -1), out=place)
        return result.flatten(0, 1)

    def chunked_product_and_scatter(self, chunks: int) -> torch.Tensor:
        """Multiply chunk after chunk, and scatter each on the second stream during the next product."""
        rows = self.share.size(0) // chunks
        parts = self.whole.view(self.ranks, chunks, rows, -1)
        result = self.whole.new_empty(self.share.size(0), self.weight.size(1))
        kept = []
        for number in range(chunks):
            partial = torch.bmm(parts[:, number], self.weight.expand(self.ranks, -1, -1))
            kept.append(partial)
            with self._on_second():
                dist.reduce_scatter_tensor(result[number * rows : (number + 1) * rows], partial.flatten(0, 1))
        if self.second is not None:
            torch.cuda.current_stream().wait_stream(self.second)
        return result

    def fused_gather_and_product(self) -> torch.Tensor:
        """Torch's asynchronous tensor parallelism: shares arrive by copies through symmetric memory."""
        product: torch.Tensor
        _, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(self.share, [self.weight], 0, self.group.group_name)
        return product

    def fused_product_and_scatter(self) -> torch.Tensor:
        share: torch.Tensor = torch.ops.symm_mem.fused_matmul_reduce_scatter(
            self.whole, self.weight, "sum", 0, self.group.group_name
        )
        return share

    def _scattered(self, whole: torch.Tensor) -> torch.Tensor:
        share = whole.new_empty(whole.size(0) // self.ranks, whole.size(1))
        dist.reduce_scatter_tensor(share, whole)
        return share

    def _on_second(self) -> torch.cuda.StreamContext:
        if self.second is not None:
            self.second.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self.second)

    def _event(self) -> torch.cuda.Event | None:
        return None if self.second is None else self.second.record_event()

    def _wait(self, event: torch.cuda.Event | None) -> None:
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


def ways_of(ways: Ways, kind: str, symmetric: bool) -> dict[str, Pair]:
    """Return the ways by name; the second is the one that the others must equal."""
    gathers = kind == "gather"
    chunked = ways.chunked_gather_and_product if gathers else ways.chunked_product_and_scatter
    pairs: dict[str, Pair] = {
        "product alone": ways.product,
        "separate": ways.gather_and_product if gathers else ways.product_and_scatter,
        "communication alone": ways.gather if gathers else ways.scatter,
        "2 chunks": lambda: chunked(2),
        "4 chunks": lambda: chunked(4),
    }
    if symmetric:
        pairs["torch, fused"] = ways.fused_gather_and_product if gathers else ways.fused_product_and_scatter
    return pairs


def least_us(pair: Pair) -> float:
    """Return the least time of a pair of the slowest rank, in microseconds; negative if no graph could be recorded."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for _ in range(3):
            pair()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    graph: torch.cuda.CUDAGraph | None = recorded
    try:
        with torch.cuda.graph(recorded, stream=stream):
            for _ in range(REPEATS):
                pair()
    except RuntimeError:
        graph = None
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times_ms = []
    for _ in range(ROUNDS):
        dist.barrier()
        torch.cuda.synchronize()
        start.record()
        if graph is not None:
            graph.replay()
        else:
            for _ in range(REPEATS):
                pair()
        end.record()
        torch.cuda.synchronize()
        times_ms.append(start.elapsed_time(end))
    slowest = torch.tensor(min(times_ms), device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    us = float(slowest) * 1e3 / REPEATS
    return us if graph is not None else -us


def difference(pairs: dict[str, Pair], name: str) -> float:
    """Return the largest difference from the separate operations, relative to their largest number."""
    expected, found = pairs["separate"](), pairs[name]()
    return float((found - expected).abs().max() / expected.abs().max())


def measure(rank: int, ranks: int, cpu: bool) -> None:
    """Print the table on the first of the ranks."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29555")}
    device = torch.device("cpu" if cpu else f"cuda:{rank}")
    if not cpu:
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if cpu else "nccl", rank=rank, world_size=ranks)
    symmetric = not cpu and _use_symmetric_memory()
    rows, hidden = (64, 32) if cpu else (SEQUENCE, HIDDEN)
    products = [
        ("gather", Sizes("attention, first", rows, hidden, 3 * hidden // ranks)),
        ("scatter", Sizes("attention, second", rows, hidden // ranks, hidden)),
        ("gather", Sizes("feed-forward, first", rows, hidden, 4 * hidden // ranks)),
        ("scatter", Sizes("feed-forward, second", rows, 4 * hidden // ranks, hidden)),
    ]
    for kind, sizes in products:
        exact = ways_of(Ways(sizes, device, torch.float32), kind, symmetric)
        compared = {name: difference(exact, name) for name in exact if not name.endswith("alone")}
        pairs = ways_of(Ways(sizes, device, torch.bfloat16), kind, symmetric)
        times = {name: float("nan") if cpu else least_us(pair) for name, pair in pairs.items()}
        if rank == 0:
            print(f"{kind}, {sizes.name}: {sizes.rows} x {sizes.inner} x {sizes.columns}", flush=True)
            for name, us in times.items():
                eager = "  (no graph)" if us < 0 else ""
                wrong = f"  difference in fp32 {compared[name]:.1e}" if name in compared else ""
                print(f"  {name:22} {abs(us):8.1f} us{wrong}{eager}", flush=True)
    dist.destroy_process_group()


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def _use_symmetric_memory() -> bool:
    try:
        import torch.distributed._symmetric_memory as symmetric_memory

        symmetric_memory.enable_symm_mem_for_group(_world().group_name)
    except (ImportError, RuntimeError) as error:
        print(f"no symmetric memory: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ways to hide the communication of tensor parallelism")
    parser.add_argument("--processes", type=int, default=0, help="default: one for each GPU")
    parser.add_argument("--cpu", action="store_true", help="compare results on CPU cores; no times")
    given = parser.parse_args()
    count = given.processes or torch.cuda.device_count()
    spawn(measure, (count, given.cpu), nprocs=count)  # type: ignore[no-untyped-call]
