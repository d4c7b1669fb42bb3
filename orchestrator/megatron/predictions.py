"""Rules and predictions of cases of the Megatron family on a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.catalog.case import Case
from orchestrator.megatron.case import TrainingCase, training_case
from orchestrator.megatron.memory import MemoryEstimate, solve_offload
from orchestrator.megatron.model import Training
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.base import MegatronProgram, has_local_layers
from orchestrator.megatron.rules import RuleContext, broken_rules, layout_warnings
from orchestrator.programs.record import ExactCase, PredictedMemory, PredictedTime, Prediction, Site

if TYPE_CHECKING:
    from orchestrator.megatron.time_model import Duration
    from orchestrator.planning.target import Target

LOCAL_LAYERS_WARNING = (
    "the program uses its own layers, without transformer-engine: three times were measured, on one host"
)


def as_run(case: TrainingCase, target: Target) -> TrainingCase:
    """Return the case with the arguments that its program gets from the profile and that change memory and time."""
    program = find_megatron(case.program)
    site = target.profile.programs.site(program.name) if target.profile else None
    added = () if site is None else program.costly_arguments(site)
    return replace(case, arguments=(*case.arguments, *added)) if added else case


def case_context(case: TrainingCase, target: Target) -> RuleContext:
    """Return the values of a case that the rules of Megatron-LM check."""
    program = find_megatron(case.program)
    return RuleContext(
        model=case.model,
        layout=case.layout,
        training=case.training,
        dialect=program.dialect,
        arguments=case.arguments,
        environment=target.profile.variables(target.nodes_of(case)) if target.profile else {},
        tokens=program.tokens(case.model, case.layout.tensor_parallel),
        gpu=target.hardware.gpu,
        gpus_per_node=target.hardware.gpus_per_node,
    )


def run_s(training: Training, iteration_ms: float, program: str) -> float:
    """Return the seconds of a complete job: start-up, iterations and evaluation."""
    runs = training.iterations + training.evaluation_iterations / 3  # forward only: a third of the work
    return find_megatron(program).time.start_up_s + runs * iteration_ms / 1e3


def memory_of(case: TrainingCase, target: Target | None = None) -> MemoryEstimate:
    """Return the memory by the closed form for the case's program, on any machine or as the target runs it."""
    return find_megatron(case.program).estimate_memory(case if target is None else as_run(case, target))


def time_of(case: TrainingCase, target: Target) -> Duration | None:
    """Return the time of an iteration of a case on GPUs; None if the peak of its dtype is unknown."""
    from orchestrator.megatron.time_model import predict  # not for `list`

    run = as_run(case, target)
    return predict(run.model, run.layout, run.training, target.hardware, run.program, run.arguments, target.site)


def usable_bytes(case: TrainingCase, target: Target) -> float | None:
    """Return the GPU memory that tensors of the case can use; None if the profile does not describe the GPU."""
    memory_gb = target.hardware.gpu_memory_gb
    return None if memory_gb is None else memory_gb * 1e9 * find_megatron(case.program).usable_share


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannedProgram(MegatronProgram[Site]):
    """A program of the Megatron family, with its rules and predictions."""

    predicts: bool = True
    exact_note: str | None = (
        "the real model is today's megatron-core; Megatron-LM of 2021 computes its loss in fewer bytes"
    )

    def check(self, case: Case, target: Target) -> Iterator[str]:
        """Yield every reason why the program cannot run the case: settings that it lacks, and broken rules."""
        unsupported = self.unsupported_settings(case)
        if unsupported:
            yield unsupported
        yield from (reason for _, reason in broken_rules(case_context(training_case(case), target)))

    def warn(self, case: Case, target: Target) -> Iterable[str]:
        """Return what a user should know of the layout of a case."""
        return layout_warnings(case_context(training_case(case), target))

    def predict(self, case: Case, target: Target) -> Prediction:
        """Return the predicted memory and time of a case that the target does not refuse."""
        case = training_case(case)
        notes = (LOCAL_LAYERS_WARNING,) if has_local_layers(as_run(case, target).arguments) else ()
        if case.device == "cpu":
            return Prediction(warnings=notes)
        memory, time = memory_of(case, target), time_of(case, target)
        predicted = PredictedMemory(memory.parameters, memory.total_bytes, memory.offloaded_bytes, memory.calibrated)
        iteration = None if time is None else _predicted_time(time, self.time_parts())
        return Prediction(predicted, usable_bytes(case, target), iteration, notes)

    def time_parts(self) -> tuple[str, ...]:
        """Return the names of the parts of a predicted time."""
        from orchestrator.megatron.time_model import DURATION_PARTS

        return DURATION_PARTS

    def run_s(self, case: Case, iteration_ms: float) -> float:
        """Return the seconds of a complete job with this time of an iteration; with 0 those of its start-up."""
        return run_s(training_case(case).training, iteration_ms, self.name)

    def absent_packages(self, *, exact: bool = False) -> tuple[Sequence[str], str]:
        """Return the packages that jobs on this machine lack, or `exact` plans, and the command that installs them."""
        from orchestrator.megatron.exact import absent_packages, install_command

        return (absent_packages(), install_command()) if exact or self.is_own else ((), "")

    def exact(self, jobs: Sequence[tuple[Case, Target]]) -> list[ExactCase | str]:
        """Plan jobs of the family with the real model. A text is the reason why a job has no plan."""
        from orchestrator.megatron.exact import plan_exactly

        return plan_exactly([as_run(training_case(case), target) for case, target in jobs])

    def offload_shares(self, case: Case) -> tuple[float, float] | None:
        """Return the offloaded share, and the smallest one that fits, if ATC'24 would offload the activations."""
        case = training_case(case)
        if case.model.family != "llama" or case.training.recompute not in ("none", "ours"):
            return None
        return case.training.offload, solve_offload(case.model, case.layout, case.training)


def _predicted_time(time: Duration, names: Sequence[str]) -> PredictedTime:
    parts = {part: getattr(time, part) for part in names}
    return PredictedTime(time.iteration_ms, time.uncertainty, time.basis.label, time.basis.about, parts)
