"""Cases of the Megatron family: the training of a model in a layout."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace

from orchestrator.catalog.case import Case
from orchestrator.catalog.experiment import PublishedPoint
from orchestrator.errors import Problem, ReproError
from orchestrator.megatron.axes import WITHOUT_INFLUENCE
from orchestrator.megatron.model import Layout, ModelShape, Training, flops_per_iteration, training_days

_LENGTH_OF_RUN = ("iterations", "warmup_iterations", "log_interval", "evaluation_iterations")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase(Case):
    """A case of a program of the Megatron family: the training of a model in a layout."""

    model: ModelShape
    layout: Layout
    training: Training
    without_influence = WITHOUT_INFLUENCE

    @property
    def gpus(self) -> int:
        """Number of GPUs, or of processes on CPU cores."""
        return self.layout.gpus

    @property
    def iterations(self) -> int:
        """Number of planned iterations."""
        return self.training.iterations

    @property
    def equation(self) -> str:
        """Equation of the FLOPs behind its rates (`megatron.model.flops_per_iteration`)."""
        return "SC21 eq. 3" if self.training.recompute == "full" else "SC21's appendix, without recomputation"

    def training_days(self, tflops_per_gpu: float) -> float | None:
        """Return the days of the whole training by SC21's equation 4; None without `tokens_billion`."""
        tokens = self.settings.get("tokens_billion")
        if not isinstance(tokens, int) or tflops_per_gpu <= 0:
            return None
        return training_days(self.model.parameters(), tokens * 1e9, self.gpus, tflops_per_gpu)

    def runs_like(self, other: Case, compared: Collection[str]) -> bool:
        """Return whether both have the same kind of model, and the same training but for `compared` and its length."""
        if not isinstance(other, TrainingCase):
            return False
        if (self.model.family, self.model.positions) != (other.model.family, other.model.positions):
            return False
        free = {field.name for field in fields(Training)} & {*compared, *_LENGTH_OF_RUN}
        return replace(other.training, **{name: getattr(self.training, name) for name in free}) == self.training


def training_cases(cases: Iterable[Case]) -> list[TrainingCase]:
    """Return the cases; ReproError if the program of one is not of the Megatron family."""
    found = list(cases)
    other = next((case.workload for case in found if not isinstance(case, TrainingCase)), None)
    if other is not None:
        raise ReproError(
            Problem(f"{other}: no program of the Megatron family", hint="only those have layouts to search")
        )
    return [case for case in found if isinstance(case, TrainingCase)]


def published_time(case: TrainingCase, gpu: str | None) -> tuple[PublishedPoint, float] | None:
    """Return the published number that gives the time of an iteration most exactly, and that time in ms.

    Numbers of another GPU than `gpu` are left out. None if no number gives the time.
    """
    points = {point.metric: point for point in case.published if point.gpu is None or point.gpu in (gpu or "")}
    metric = next((name for name in _times_ms(case, 1.0) if name in points), None)
    return None if metric is None else (points[metric], _times_ms(case, points[metric].value)[metric])


def _times_ms(case: TrainingCase, value: float) -> dict[str, float]:
    """Return the time of an iteration in ms by the metric whose value is given, the one with the most digits first.

    FLOPs are those of SC21 eq. 3.
    """
    batch, gpus = case.layout.global_batch_size, case.gpus
    flops = flops_per_iteration(case.model, batch, case.training.recompute == "full")
    return {
        "iteration_ms": value,
        "aggregate_pflops": flops / (value * 1e12),
        "tflops_per_gpu": flops / gpus / (value * 1e9),
        "tokens_per_s_per_gpu": 1e3 * batch * case.model.seq / (value * gpus),
        "tokens_per_s": 1e3 * batch * case.model.seq / value,
        "sequences_per_s": 1e3 * batch / value,
    }
