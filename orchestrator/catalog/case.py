"""A case of a figure, and the options that select or change cases: `--where`, `--program`, `--arg` and `--no-arg`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from typing_extensions import Self

from orchestrator.catalog.experiment import ExpectedOutcome, PublishedPoint
from orchestrator.errors import Problem, ReproError, did_you_mean, names_hint, require_none
from orchestrator.job_spec import Value
from orchestrator.paths import short_name
from orchestrator.programs.axes import ProgramAxes
from orchestrator.programs.command import ADDED, DROPPED, changed_flag, read_flags, without_flags
from orchestrator.programs.program import ProgramFields, bytes_of
from orchestrator.programs.record import DESCRIBED, Program, find_program, known_program

WITHOUT_INFLUENCE = frozenset({"case", "label"})
"""Axes of any program that only name a case."""
_NOT_CASES = ("submissions", "warm-up-")
"""Names of other folders beside those of the cases."""
_LONGEST_SLUG = 100
"""Bytes. A file name may have 255, and contains more than the slug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of an experiment, at one scale.

    `point` has the values on the axes that name the case, `settings` the values on all axes. `program` is the name of
    its program, and `described` the block of one that the experiment describes; None for a known one. `arguments` are
    further arguments of the program, besides those from the settings. `argument_changes` are the options `--arg` and
    `--no-arg` of the run that change the arguments. `published` are the numbers of the source. `reference_only` is the
    reason why the case has no job. `script` is the published script with its arguments, at the published scale.
    `instead_of` is the program of the experiment, if `--program` replaced it.
    """

    experiment: str
    scale: str
    point: tuple[tuple[str, Value], ...]
    program: str
    described: ProgramFields | None = None
    device: str = "gpu"
    time_limit: str | None = None
    gpu_memory_gb: int | None = None
    arguments: tuple[str, ...] = ()
    argument_changes: tuple[str, ...] = ()
    expected: ExpectedOutcome | None = None
    published: tuple[PublishedPoint, ...] = ()
    note: str | None = None
    reference_only: str | None = None
    script: str | None = None
    instead_of: str | None = field(default=None, compare=False)
    settings: Mapping[str, Value] = field(default_factory=dict, compare=False, repr=False)

    without_influence: ClassVar[frozenset[str]] = WITHOUT_INFLUENCE
    """Axes that have no influence on a job."""

    @property
    def gpus(self) -> int:
        """Number of GPUs, or of processes on CPU cores."""
        return int(self.settings.get("gpus", 0))

    @property
    def iterations(self) -> int:
        """Number of planned iterations; 0 if the program has no such number."""
        return 0

    @property
    def equation(self) -> str | None:
        """Equation of the FLOPs behind its rates; None if none are counted."""
        return None

    @property
    def parameters(self) -> float | None:
        """Number of parameters of the model; None if the program has no such number."""
        return None

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations that do not count for metrics."""
        return 0

    @property
    def dtype(self) -> str | None:
        """Data type whose peak the GPU must have; None if the program has no such setting."""
        return None

    @property
    def microbatches(self) -> int | None:
        """Microbatches of an iteration; None if the program has none."""
        return None

    @property
    def bubble(self) -> float | None:
        """Share of the pipeline's time in which a GPU waits for another stage; None without a pipeline."""
        return None

    @property
    def work(self) -> float:
        """Amount of work of the job, to order jobs of equal resources."""
        return 0.0

    @property
    def layout_text(self) -> str | None:
        """GPUs and layout for the head of a script; None without a layout."""
        return None

    @property
    def record(self) -> Program:
        """Record of the program. ReproError if no package registers it."""
        return find_program(self.program) if self.described is None else DESCRIBED

    def with_iterations(self, iterations: int) -> Self:  # noqa: ARG002
        """Return the case with another number of iterations; unchanged if its program has no such number."""
        return self

    def identity_parts(self) -> dict[str, object]:
        """Return the parts of a job's identity that are the settings of the case."""
        given = {name: value for name, value in self.settings.items() if name not in self.without_influence}
        if self.described is None:
            return {"settings": given}
        values = {name: self.described.value(name, value) for name, value in given.items()}
        return {"settings": values, "described": self.described.of_job()}

    @property
    def name(self) -> str:
        """Name in the syntax of `--where`: `pp=8,tp=8,gbs=32`."""
        return ",".join(f"{axis}={shown_value(value)}" for axis, value in self.point)

    @property
    def slug(self) -> str:
        """Name for files: `pp8-tp8-gbs32`, or the name of the row."""
        text = "-".join(f"{'' if axis == 'case' else axis}{shown_value(value)}" for axis, value in self.point)
        safe = "".join(character if character.isalnum() or character in "-._" else "_" for character in text)
        needs_prefix = not safe[:1].isalnum() or safe.startswith(_NOT_CASES)
        short = safe.encode()[:_LONGEST_SLUG].decode(errors="ignore")
        if safe == text == short and not needs_prefix:
            return safe
        # The shortened name may equal another one or be unsafe: a digest of the full name makes it unique.
        digest = hashlib.sha256(self.name.encode(errors="surrogatepass")).hexdigest()[:6]
        return f"{'case-' if needs_prefix else ''}{short}-{digest}"

    def value(self, axis: str) -> Value:
        """Return the value on an axis; KeyError if the case has none."""
        return self.settings[axis]

    def effective(self, name: str) -> Value | None:
        """Return a setting as the job has it, also one that is no axis; None if the case has none."""
        return self.settings.get(name)

    def has(self, wanted: Mapping[str, Value]) -> bool:
        """Return whether the case has all these values."""
        return wanted.items() <= self.settings.items()

    def runs_like(self, other: Case, compared: Collection[str]) -> bool:  # noqa: ARG002  of kinds with more parts
        """Return whether both differ at most in `compared` and the length of the run, in what no axis gives."""
        return type(self) is type(other)

    def number(self, axis: str) -> float:
        """Return the value on an axis as a number; true counts as 1. TypeError if it is a text."""
        value = self.value(axis)
        if isinstance(value, str):
            raise TypeError(f"{axis} is {value}, not a number")
        return value


C = TypeVar("C", bound=Case)


def alike(first: Case, second: Case, compared: Collection[str]) -> bool:
    """Return whether two cases differ at most on the axes `compared`, in their names and in the length of the run."""
    axes = (first.settings.keys() | second.settings.keys()) - {*compared, *first.without_influence}
    if any(first.settings.get(axis) != second.settings.get(axis) for axis in axes):
        return False
    if (first.device, first.arguments, first.described) != (second.device, second.arguments, second.described):
        return False
    return first.runs_like(second, compared)


def shown_value(value: Value) -> str:
    """Return the value as it is typed after `axis=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_MOST_SHOWN = 12


def parse_where(text: str | None, axes: ProgramAxes) -> dict[str, Value]:
    """Parse `pp=8,recompute=full` to {"pp": 8, "recompute": "full"}."""
    wanted: dict[str, Value] = {}
    for axis, typed in typed_values(text):
        option = f"--where {axis}={typed}" if typed else f"--where {axis}"
        if axis not in axes.columns:
            raise ReproError(Problem(f"{option}: no such axis", hint=names_hint(axis, axes.columns)))
        try:
            if not typed:
                raise ValueError("must be axis=value")
            value = axes.read(axis, typed)
        except ValueError as error:
            raise ReproError(Problem(f"{option}: {error}", hint="for example pp=8,gbs=32")) from None
        if wanted.setdefault(axis, value) != value:
            raise ReproError(Problem(f"{option}: {axis} is given twice", hint="one value for each axis"))
    return wanted


def typed_values(text: str | None) -> list[tuple[str, str]]:
    """Split `pp=8,recompute=full` into axes and texts; a text is empty if it is missing."""
    parts = (part.partition("=") for part in filter(None, (text or "").split(",")))
    return [(axis.strip(), typed.strip()) for axis, _, typed in parts]


def is_typed(value: Value, text: str) -> bool:
    """Return whether a text as typed after `axis=` is this value, of an axis whose program is not known."""
    return text == shown_value(value) or (not isinstance(value, (bool, str)) and bytes_of(text) == value)


def select(cases: Sequence[C], wanted: Mapping[str, Value]) -> list[C]:
    """Return the cases with these values; ReproError names the existing values if there is no such case."""
    selected = [case for case in cases if case.has(wanted)]
    if selected:
        return selected
    option = ",".join(f"{axis}={shown_value(value)}" for axis, value in wanted.items())
    values = "; ".join(f"{axis}: {_values(cases, axis)}" for axis in wanted)
    raise ReproError(Problem(f"--where {option}: no such case", hint=f"there are {values}"))


def _values(cases: Sequence[Case], axis: str) -> str:
    """Return the values of the cases on an axis, for a hint."""
    values = {case.settings[axis] for case in cases if axis in case.settings}
    texts = [shown_value(value) for value in sorted(values, key=lambda value: (isinstance(value, str), value))]
    more = f", ... ({len(texts)} in all)" if len(texts) > _MOST_SHOWN else ""
    return (", ".join(texts[:_MOST_SHOWN]) or "none") + more


def with_program(cases: Sequence[C], program: str) -> list[C]:
    """Return the cases with another program; cases that already have it are unchanged.

    The expected outcome belongs to the original program and is dropped; published numbers stay for comparison.
    `cases` are all cases of an experiment at a scale. ReproError if they compare programs: two cases would be one job.
    """
    programs = list(dict.fromkeys(case.program for case in cases))
    if programs == [program]:
        return list(cases)
    if len(programs) > 1 or any(axis == "program" for case in cases for axis, _ in case.point):
        figure = f"{short_name(cases[0].experiment)} at scale {cases[0].scale}"
        what = f"--program {program}: {figure} compares programs ({', '.join(programs)}), which would become one"
        raise ReproError(Problem(what, hint="leave --program out"))
    return [
        replace(
            case,
            program=program,
            expected=None,
            instead_of=case.instead_of or programs[0],
            settings={**case.settings, "program": program},
        )
        for case in cases
    ]


def replacement_notes(cases: Sequence[Case]) -> list[str]:
    """Return what a user should know before another program than the experiment's own runs the cases."""
    original, program = cases[0].instead_of, cases[0].program
    if original is None:
        return []
    notes = [f"{short_name(cases[0].experiment)} with {program} instead of {original}"]
    passed = dict.fromkeys(" ".join(case.arguments) for case in cases if case.arguments)
    if passed:
        notes.append(f"arguments for {original}, passed to {program} unchanged: {'; '.join(passed)}")
    return notes


def require_changeable(cases: Sequence[Case], changes: Sequence[str]) -> None:
    """Raise ReproError for each argument that the program's axes or the profile set, or that no case passes."""
    known = dict.fromkeys(case.program for case in cases if case.described is None)
    programs = [program for name in known if (program := known_program(name)) is not None]
    problems = [
        Problem(f"{change.replace('=', ' ', 1)}: {fixed.what}", hint=fixed.hint)
        for change in changes
        for program in programs
        if (fixed := program.fixed_argument(changed_flag(change))) is not None
    ]
    dropped = [changed_flag(change) for change in changes if change.startswith(DROPPED)]
    if dropped and not problems:
        passed = dict.fromkeys(flag for case in cases for flag in _flags(case))
        names = " and ".join(dict.fromkeys(case.program for case in cases))
        problems = [
            Problem(
                f"--no-arg {flag}: {names} does not get this argument",
                hint=did_you_mean(flag, passed) or "repro render prints the arguments of a job",
            )
            for flag in dropped
            if flag not in passed
        ]
    require_none(dict.fromkeys(problems))


def with_changes(cases: Sequence[C], changes: Sequence[str]) -> list[C]:
    """Return the cases with these changes. A change without an effect on a case is not part of it."""
    return [_changed(case, _flags(case), changes) for case in cases] if changes else list(cases)


def _changed(case: C, flags: Mapping[str, tuple[str, ...]], changes: Sequence[str]) -> C:
    effective = [change for change in changes if flags.get(changed_flag(change)) != _given_values(change)]
    if not effective:
        return case
    arguments = without_flags(case.arguments, effective)
    for change in effective:
        values = _given_values(change)
        arguments += [] if values is None else [changed_flag(change), *values]
    return replace(case, arguments=tuple(arguments), argument_changes=tuple(effective))


def _given_values(change: str) -> tuple[str, ...] | None:
    """Return the value that a change gives to its flag, () for a switch; None if the change drops the flag."""
    _, equals, value = change.removeprefix(ADDED).partition("=")
    return None if change.startswith(DROPPED) else (value,) if equals else ()


def _flags(case: Case) -> Mapping[str, tuple[str, ...]]:
    program = known_program(case.program) if case.described is None else None
    if program is not None:
        return program.flags_of(case)
    return read_flags([*(case.described.command if case.described else ()), *case.arguments])
