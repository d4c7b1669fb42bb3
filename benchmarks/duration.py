"""The planner's time model against the two papers that print how fast each of many layouts ran.

    python benchmarks/duration.py

Fits the five constants of `orchestrator/planning/calibration.py` to the odd rows of SC21 table 1 and ATC'24 figure 9,
and judges the constants that ship on the even ones: a mean error of at most 8 %, and a fit that gives them again.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestrator.megatron.flops import flops_per_iteration
from orchestrator.megatron.hardware import Hardware
from orchestrator.megatron.layout import Layout
from orchestrator.megatron.model import ModelShape, padded_vocabulary
from orchestrator.megatron.training import Training
from orchestrator.planning.calibration import FITTED, Constants
from orchestrator.planning.duration import Duration, predict_with

MEAN_ERROR = 0.08
REFIT = 0.01
"""The shipped constants are rounded; a new fit may differ by this share."""
START = Constants(0.7, 0.7, 0.7, 0.7, 0.7)

# SC21 section 5: DGX A100, 300 GB/s of NVLink per direction, eight HDR InfiniBand cards of 200 Gb/s.
SELENE = Hardware(384, 8, "A100-SXM4-80GB", 80, {"fp16": 312, "bf16": 312}, 300, 25)
# ATC'24 artifact: H800 (NVLink 400 GB/s both ways), eight cards of 100 Gb/s; peak as its MFU implies.
KWAI = Hardware(32, 8, "H800", 80, {"bf16": 989.4}, 200, 12.5)

# SC21 table 1: name, layers, hidden, heads, tensor- and pipeline-parallel size, GPUs, batch, aggregate PFLOP/s; then
# from examples/sc21/run_table_1.sh at 6985e58938: virtual stages, microbatch size, DDP implementation.
TABLE_1 = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 4.4, 1, 16, "torch"),
    ("3.6B", 30, 3072, 32, 2, 1, 64, 512, 8.8, 1, 16, "torch"),
    ("7.5B", 36, 4096, 32, 4, 1, 128, 512, 18.2, 1, 16, "torch"),
    ("18B", 40, 6144, 48, 8, 1, 256, 1024, 34.6, 1, 8, "torch"),
    ("39B", 48, 8192, 64, 8, 2, 512, 1536, 70.8, 1, 4, "local"),
    ("76B", 60, 10240, 80, 8, 4, 1024, 1792, 143.8, 3, 2, "local"),
    ("145B", 80, 12288, 96, 8, 8, 1536, 2304, 227.1, 2, 2, "local"),
    ("310B", 96, 16384, 128, 8, 16, 1920, 2160, 297.4, 2, 1, "local"),
    ("530B", 105, 20480, 128, 8, 35, 2520, 2520, 410.2, 3, 1, "local"),
    ("1T", 128, 25600, 160, 8, 64, 3072, 3072, 502.0, 1, 1, "local"),
)

# ATC'24 artifact, examples/atc24/llama-*: layers, hidden, ffn, heads, key-value groups, and figure 9's sequence length.
LLAMA = {
    "175b": (96, 12288, 32768, 96, None, 4096),
    "65b": (80, 8192, 22016, 64, None, 4096),
    "70b": (80, 8192, 28672, 64, 8, 8192),
}
# ATC'24 artifact, README figure 9: model, GPUs, batch, tensor-, context- and pipeline-parallel size, layers per virtual
# stage, recomputation, offloaded share, tokens per second of all GPUs.
FIGURE_9 = (
    ("175b", 256, 256, 2, 2, 16, 1, "none", 0.522, 97577),
    ("175b", 240, 240, 4, 1, 12, 1, "none", 0.276, 85924),
    ("175b", 192, 240, 2, 2, 24, 1, "none", 0.41, 76130),
    ("175b", 160, 240, 4, 1, 8, 2, "ours", 0.334, 59169),
    ("175b", 144, 252, 4, 1, 6, 2, "ours", 0.746, 56637),
    ("175b", 128, 256, 2, 1, 16, 1, "ours", 0.751, 54968),
    ("175b", 120, 270, 4, 1, 6, 2, "ours", 0.851, 45761),
    ("175b", 96, 264, 4, 1, 12, 2, "ours", 0.324, 41048),
    ("175b", 64, 272, 4, 1, 8, 1, "ours", 0.979, 27708),
    ("175b", 48, 264, 4, 1, 12, 1, "ours", 0.999, 20685),
    ("65b", 256, 256, 2, 1, 8, 2, "none", 0.355, 233981),
    ("65b", 240, 240, 2, 1, 10, 2, "none", 0.302, 219415),
    ("65b", 200, 250, 4, 1, 5, 4, "none", 0.0, 179819),
    ("65b", 192, 240, 4, 1, 8, 2, "none", 0.0, 180303),
    ("65b", 160, 240, 2, 1, 10, 2, "none", 0.331, 158984),
    ("65b", 128, 256, 2, 1, 8, 2, "ours", 0.0, 132357),
    ("65b", 120, 240, 2, 1, 5, 2, "ours", 0.383, 121488),
    ("65b", 112, 252, 4, 1, 4, 4, "none", 0.0, 99046),
    ("65b", 96, 240, 2, 1, 8, 2, "ours", 0.035, 96758),
    ("65b", 80, 240, 2, 1, 10, 2, "ours", 0.0, 87396),
    ("65b", 64, 256, 2, 1, 8, 2, "ours", 0.162, 71884),
    ("65b", 56, 252, 2, 1, 4, 2, "ours", 0.945, 52219),
    ("65b", 48, 264, 2, 1, 8, 2, "ours", 0.29, 51124),
    ("65b", 40, 260, 2, 1, 5, 2, "ours", 0.815, 45716),
    ("65b", 32, 272, 2, 1, 8, 2, "ours", 0.544, 36740),
    ("70b", 256, 256, 2, 4, 8, 2, "none", 0.0, 229338),
    ("70b", 240, 270, 2, 4, 10, 2, "none", 0.0, 217316),
    ("70b", 224, 252, 2, 4, 4, 4, "ours", 0.352, 192634),
    ("70b", 200, 250, 2, 2, 5, 2, "ours", 0.368, 182038),
    ("70b", 192, 264, 2, 4, 8, 2, "none", 0.0, 177032),
    ("70b", 160, 260, 2, 4, 10, 2, "none", 0.0, 148456),
    ("70b", 144, 252, 2, 2, 4, 2, "ours", 0.755, 124599),
    ("70b", 128, 256, 2, 2, 8, 2, "ours", 0.012, 122265),
    ("70b", 120, 270, 2, 2, 5, 2, "ours", 0.46, 114817),
    ("70b", 112, 252, 2, 2, 4, 2, "ours", 0.811, 100242),
    ("70b", 96, 264, 2, 2, 8, 2, "ours", 0.08, 91488),
    ("70b", 80, 260, 2, 2, 10, 2, "ours", 0.024, 78698),
    ("70b", 64, 256, 2, 1, 8, 2, "ours", 0.654, 65302),
    ("70b", 48, 264, 2, 1, 8, 2, "ours", 0.722, 47755),
    ("70b", 40, 260, 2, 1, 10, 2, "ours", 0.713, 41182),
    ("70b", 32, 272, 2, 1, 8, 2, "ours", 0.858, 33262),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A published time. Rows 1, 3, 5, ... of a set are `fitted`."""

    name: str
    fitted: bool
    model: ModelShape
    layout: Layout
    training: Training
    hardware: Hardware
    program: str
    published_ms: float

    def predicted(self, constants: Constants) -> Duration:
        duration = predict_with(constants, self.model, self.layout, self.training, self.hardware, self.program)
        assert duration is not None
        return duration

    def error(self, constants: Constants) -> float:
        """Relative and signed."""
        return self.predicted(constants).iteration_ms / self.published_ms - 1


def rows() -> dict[str, list[Row]]:
    """Both sets in the order of their papers."""
    return {"SC21 table 1": table_1(), "ATC'24 figure 9": figure_9()}


def table_1() -> list[Row]:
    found = []
    for i, (name, layers, hidden, heads, t, p, gpus, batch, petaflops, v, micro, ddp) in enumerate(TABLE_1):
        # The paper counts FLOPs with V = 51,200; its script trains with GPT-2's vocabulary, padded.
        counted = ModelShape(layers, hidden, heads, 2048, 51200)
        published = flops_per_iteration(counted, batch, True) / (petaflops * 1e15) * 1e3
        model = replace(counted, vocab=padded_vocabulary(50257, t))
        layout = Layout(gpus, t, p, micro, batch, virtual_stages=v)
        training = Training("fp16", recompute="full", ddp=ddp)
        found.append(Row(name, i % 2 == 0, model, layout, training, SELENE, "megatron-2021", published))
    return found


def figure_9() -> list[Row]:
    found = []
    for i, (name, gpus, batch, t, c, p, chunk, recompute, offload, tokens_per_second) in enumerate(FIGURE_9):
        layers, hidden, ffn, heads, groups, seq = LLAMA[name]
        model = ModelShape(layers, hidden, heads, seq, padded_vocabulary(32005, t), ffn, groups, "llama")
        layout = Layout(gpus, t, p, 1, batch, layers // (p * chunk), c, sequence_parallel=True)
        training = Training("bf16", recompute=recompute, dropout=0, offload=offload)
        published = batch * seq / tokens_per_second * 1e3
        row = Row(f"{name} on {gpus}", i % 2 == 0, model, layout, training, KWAI, "megatron-kwai", published)
        found.append(row)
    return found


def fit(sets: Sequence[Sequence[Row]]) -> Constants:
    """Least squares of the relative errors, every set weighing the same."""
    scale = dataclasses.astuple(START)

    def constants(point: Sequence[float]) -> Constants:
        return Constants(*(factor * size for factor, size in zip(point, scale, strict=True)))

    def loss(point: Sequence[float]) -> float:
        if min(point) <= 0:
            return float("inf")
        return sum(statistics.fmean(row.error(constants(point)) ** 2 for row in fitted) for fitted in sets)

    return constants(nelder_mead(loss, [1.0] * len(scale)))


def nelder_mead(loss: Callable[[Sequence[float]], float], start: list[float], steps: int = 600) -> list[float]:
    """The simplex search of Nelder and Mead (1965)."""
    corners = [start] + [[x * (1.1 if i == j else 1) for j, x in enumerate(start)] for i in range(len(start))]
    found = sorted((loss(corner), corner) for corner in corners)
    for _ in range(steps):
        worst_loss, worst = found[-1]
        middle = [statistics.fmean(axis) for axis in zip(*(corner for _, corner in found[:-1]), strict=True)]

        away = [m - w for m, w in zip(middle, worst, strict=True)]
        reflected, expanded, contracted = (
            [m + share * a for m, a in zip(middle, away, strict=True)] for share in (1, 2, -0.5)
        )
        new = (loss(reflected), reflected)
        if new[0] < found[0][0]:
            new = min(new, (loss(expanded), expanded))
        elif new[0] >= found[-2][0]:
            new = min(new, (loss(contracted), contracted))
        if new[0] < worst_loss:
            found[-1] = new
        else:
            best = found[0][1]
            shrunk = [[(x + b) / 2 for x, b in zip(corner, best, strict=True)] for _, corner in found[1:]]
            found = [found[0], *((loss(corner), corner) for corner in shrunk)]
        found.sort()
    return found[0][1]


def main() -> int:
    sets = rows()
    missed = 0
    for title, published in sets.items():
        print(f"{title:<26}{'published ms':>14}{'predicted ms':>14}{'error %':>9}")
        for row in published:
            predicted = row.predicted(FITTED).iteration_ms
            mark = "fitted" if row.fitted else "judged"
            print(
                f"  {row.name:<16}{mark:<8}{row.published_ms:>14.0f}{predicted:>14.0f}{100 * row.error(FITTED):>9.1f}"
            )
        for fitted in (True, False):
            errors = [abs(row.error(FITTED)) for row in published if row.fitted is fitted]
            kind = "fitted" if fitted else "judged"
            mean = statistics.fmean(errors)
            print(f"  {kind} rows: mean error {100 * mean:.1f} %, largest {100 * max(errors):.1f} %")
            missed += not fitted and mean > MEAN_ERROR
    again = fit([[row for row in published if row.fitted] for published in sets.values()])
    print(f"{'constant':<26}{'shipped':>14}{'fitted again':>14}")
    for field in dataclasses.fields(Constants):
        shipped, fitted_again = getattr(FITTED, field.name), getattr(again, field.name)
        print(f"  {field.name:<24}{shipped:>14.4g}{fitted_again:>14.4g}")
        missed += abs(fitted_again / shipped - 1) > REFIT
    print(f"within {100 * MEAN_ERROR:.0f} % on the judged rows, constants as shipped: {'no' if missed else 'yes'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
