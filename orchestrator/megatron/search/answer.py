"""Answer of a search: the fastest measured case, its margin, and every candidate with what became of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from orchestrator.fields import Field
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.programs import megatron_named
from orchestrator.megatron.search.candidates import OUT_OF_MEMORY, Candidate, LeftOut, Reason
from orchestrator.programs.record import programs


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """Job of a candidate that has ended.

    `iteration_ms` is the median time of an iteration, infinity if the job ran out of memory, None if it failed for
    another reason; `spread_ms` is half the range of the middle half of its iterations. `job_s` is the time of the job,
    `hours` that time of all its GPUs, or processes on CPU cores. `is_repeatable` is true if it failed for an
    external reason; a search that is started again repeats it.
    """

    name: str
    job_id: str
    iterations: int
    iteration_ms: float | None
    spread_ms: float | None
    sequences_per_s: float | None
    job_s: float
    hours: float
    why: str | None = None
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """Case with its prediction and its best trial; `state` is `measured`, `out of memory`, `failed` or `not run`.

    `why` is the reason why it was not run, or failed. A case that is left out is no candidate and has no prediction.
    """

    case: TrainingCase
    predicted_ms: float | None
    memory_gb: float | None
    state: str
    trial: EndedTrial | None = None
    why: Reason | None = None
    is_candidate: bool = True

    @property
    def measured_ms(self) -> float | None:
        """Return the time of an iteration; None unless it was measured."""
        return self.trial.iteration_ms if self.trial and self.state == "measured" else None


@dataclass(frozen=True, slots=True)
class SearchedCase:
    """A case of a search; `state` is measured, out of memory, failed or not run, `why` the reason.

    A case of the space that is no candidate has no `predicted_ms`. `detail` is the part of the reason that other cases
    do not share.
    """

    case: Annotated[str, Field(of="case.name")]
    state: str
    job: Annotated[str | None, Field(of="trial.job_id")]
    iterations: Annotated[int | None, Field(of="trial.iterations")]
    iteration_ms: Annotated[float | None, Field(of="measured_ms")]
    spread_ms: Annotated[float | None, Field(of="trial.spread_ms")]
    sequences_per_s: Annotated[float | None, Field(of="trial.sequences_per_s")]
    predicted_ms: float | None
    memory_gb: float | None
    why: Annotated[str | None, Field(of="why.kind")]
    detail: Annotated[str | None, Field(of="why.detail")]


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """A search so far. `stopped` is the reason why no more cases are measured, null in a dry run.

    `hours` are those of GPUs, or of processes on CPU cores. `exhaustive_hours` are those of complete jobs of all
    candidates: predicted, on CPU cores at the mean time of the complete jobs.
    """

    experiment: str
    cluster: str
    candidates: int
    measured: int
    jobs: int
    hours: float
    exhaustive_hours: float | None
    stopped: str | None


@dataclass(frozen=True, slots=True)
class NotRunReason:
    """A reason why cases were not run, and their number."""

    reason: str
    cases: int


@dataclass(frozen=True, slots=True)
class SearchWinner:
    """The fastest measured candidate, with its arguments by program.

    `margin` is how much longer the second one takes, as a share.
    """

    case: Annotated[str, Field(of="case.name")]
    iteration_ms: Annotated[float | None, Field(of="trial.iteration_ms")]
    spread_ms: Annotated[float | None, Field(of="trial.spread_ms")]
    sequences_per_s: Annotated[float | None, Field(of="trial.sequences_per_s")]
    margin: float | None
    arguments: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """Result of a search so far. `hours` are those of GPUs, or of processes on CPU cores, in `jobs` jobs.

    `exhaustive_hours` are those of complete jobs of all candidates: predicted, or on CPU cores at the mean time of the
    complete jobs. `stopped` is the reason why no more cases are measured, None before the end.
    """

    rows: tuple[CandidateRow, ...]
    stopped: str | None
    jobs: int
    hours: float
    exhaustive_hours: float | None

    @property
    def candidates(self) -> list[CandidateRow]:
        """Return the rows without the cases that are left out."""
        return [row for row in self.rows if row.is_candidate]

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Return each kind of reason why cases were not run, with the number of cases, the most frequent first."""
        return Counter(row.why.kind for row in self.rows if row.state == "not run" and row.why).most_common()

    @property
    def measured(self) -> list[CandidateRow]:
        """Return the measured candidates, fastest first."""
        done = [row for row in self.rows if row.state == "measured"]
        return sorted(done, key=_time_of)

    @property
    def winner(self) -> CandidateRow | None:
        """Return the fastest measured candidate, of those with the longest jobs."""
        return next(iter(self._finalists()), None)

    @property
    def margin(self) -> float | None:
        """Return how much longer the second fastest candidate takes, as a share; None without a second one.

        The times are those of complete jobs, or of the longest ones that two candidates have.
        """
        finalists = self._finalists()
        first = finalists if len(finalists) > 1 else self.measured
        return _time_of(first[1]) / _time_of(first[0]) - 1 if len(first) > 1 else None

    def _finalists(self) -> list[CandidateRow]:
        measured = self.measured
        longest = max((row.trial.iterations for row in measured if row.trial), default=0)
        return [row for row in measured if row.trial and row.trial.iterations == longest]


def fastest_text(answer: SearchAnswer) -> str | None:
    """Return `fastest: pp=1,tp=4, 812.3 +- 1.2 ms per iteration, ...`; None if no candidate is measured."""
    winner = answer.winner
    if winner is None or winner.trial is None:
        return None
    trial = winner.trial
    margin = f"; the second one takes {100 * answer.margin:.1f} % longer" if answer.margin is not None else ""
    spread = f" +- {trial.spread_ms:.4g}" if trial.spread_ms is not None else ""
    rate = f", {trial.sequences_per_s:.4g} sequences per second" if trial.sequences_per_s is not None else ""
    return f"fastest: {winner.case.name}, {trial.iteration_ms:.4g}{spread} ms per iteration{rate}{margin}"


def _time_of(row: CandidateRow) -> float:
    return row.trial.iteration_ms if row.trial and row.trial.iteration_ms is not None else math.inf


def answer(
    candidates: Sequence[Candidate],
    left_out: Sequence[LeftOut],
    trials: Sequence[EndedTrial],
    not_run: Mapping[str, Reason],
    stopped: str | None,
) -> SearchAnswer:
    """Return the answer from the trials. `not_run` has the reason for each candidate without a trial."""
    best: dict[str, EndedTrial] = {}
    for trial in trials:
        other = best.get(trial.name)
        if other is None or trial.iterations >= other.iterations:
            best[trial.name] = trial
    rows = [_row(one, best.get(one.name), not_run.get(one.name)) for one in candidates]
    for left in left_out:
        memory = left.memory.total_bytes / 1e9 if left.memory is not None else None
        rows.append(CandidateRow(left.case, None, memory, "not run", why=left.reason, is_candidate=False))
    hours = sum(trial.hours for trial in trials)
    return SearchAnswer(tuple(rows), stopped, len(trials), hours, _exhaustive_hours(candidates, trials))


def _exhaustive_hours(candidates: Sequence[Candidate], trials: Sequence[EndedTrial]) -> float | None:
    predicted = [one.gpu_hours for one in candidates if one.gpu_hours is not None]
    if len(predicted) == len(candidates):
        return sum(predicted)
    iterations = candidates[0].case.training.iterations
    complete = [trial.hours for trial in trials if trial.iterations == iterations and trial.hours]
    return len(candidates) * sum(complete) / len(complete) if complete else None


def _row(candidate: Candidate, trial: EndedTrial | None, not_run: Reason | None) -> CandidateRow:
    memory = candidate.memory_bytes / 1e9 if candidate.memory_bytes is not None else None
    predicted = candidate.iteration_ms if candidate.has_unit else None
    if trial is None:
        return CandidateRow(candidate.case, predicted, memory, "not run", why=not_run)
    state = {None: "failed", OUT_OF_MEMORY: "out of memory"}.get(trial.iteration_ms, "measured")
    return CandidateRow(candidate.case, predicted, memory, state, trial, Reason(trial.why) if trial.why else None)


def arguments_by_program(case: TrainingCase) -> dict[str, list[str]]:
    """Return the arguments of the case for each program that supports its settings.

    A path of the site is the name of its field in capital letters: `/DATA_PATH`.
    """
    result: dict[str, list[str]] = {}
    for program in filter(None, map(megatron_named, programs())):
        own = replace(case, program=program.name)
        if program.result_row is None and program.unsupported_settings(own) is None:
            required = {name for name, info in program.site.model_fields.items() if info.is_required()}
            site = program.site.model_validate({name: f"/{name.upper()}" for name in required})
            result[program.name] = program.all_arguments(own, site)
    return result
