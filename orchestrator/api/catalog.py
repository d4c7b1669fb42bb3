"""Catalog: experiments with their sizes and progress, the cases of an experiment, and papers."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from orchestrator.api import DEFAULT, Session
from orchestrator.catalog.case import Case, parse_where, select
from orchestrator.catalog.expand import case_count, cases_to_run, expand, reference_notes, scale_fields, values_on
from orchestrator.catalog.experiment import PAPER, Axes, CodeFields, Difference, NotRun, PublishedPoint, scale_names
from orchestrator.catalog.library import Entry, experiment_names, find_experiment, papers, read_experiment, replaced
from orchestrator.clusters import cluster_names
from orchestrator.errors import Problem, added_to
from orchestrator.fields import Column, Columns, Field, TableRow, row_of, rows_of
from orchestrator.job_spec import Value
from orchestrator.paths import Folders, find_folders
from orchestrator.programs.record import programs

if TYPE_CHECKING:
    from orchestrator.ledger.sqlite_file import JobCount


@dataclass(frozen=True, slots=True)
class ScaleSize:
    """A scale of an experiment with the GPUs of its largest case."""

    scale: str
    gpus: int


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """Jobs of an experiment that were submitted, and how many are verified. `program` is the program that ran.

    `is_own_program` is false if another program than the figure's own ran.
    """

    scale: str
    cluster: str
    program: str
    verified: int
    jobs: int
    is_own_program: bool


@dataclass(frozen=True, slots=True)
class ListedExperiment:
    """An experiment with its published size and its progress. `plan` predicts its cost."""

    experiment: str
    venue: str | None
    figure: str
    title: str
    cases: int
    gpus_min: int
    gpus_max: int
    scales: tuple[ScaleSize, ...]
    done: tuple[ExperimentProgress, ...]


@dataclass(frozen=True, slots=True)
class ExperimentList:
    """Experiments with their sizes and progress, the known clusters, and the files that cannot be read."""

    rows: list[ListedExperiment]
    clusters: list[str]
    problems: list[Problem]


def experiments(session: Session = DEFAULT) -> ExperimentList:
    """Return all experiments. The ledger is opened only if it exists."""
    folders = find_folders()
    counts = _job_counts(folders, session)
    rows: list[ListedExperiment] = []
    problems: list[Problem] = []
    files = experiment_names(folders)
    for name, file in files.items():
        with added_to(problems):
            entry = read_experiment(name, file, files)
            if not entry.experiment.reference_only and not file.is_relative_to(folders.shipped):
                from orchestrator.catalog.expand import unknown_programs

                problems += unknown_programs(entry)
                expand(entry)  # for its problems; tests check the shipped ones
            rows.append(_experiment_row(entry, [count for count in counts if count.experiment == name]))
    return ExperimentList(rows, sorted(cluster_names(folders)), list(dict.fromkeys(problems)))


def _job_counts(folders: Folders, session: Session) -> list[JobCount]:
    """Return the submitted jobs of each experiment. A SQLite ledger is read without the database's modules."""
    if session.given_ledger is None and folders.refused is None and not (folders.home / "results.db").exists():
        return []
    from orchestrator.ledger.sqlite_file import job_counts_in_file

    is_refused = session.given_ledger is None and folders.refused is not None
    file = None if is_refused else session.ledger_file
    counts = job_counts_in_file(file) if file is not None and file.exists() else None
    if counts is not None:
        return counts
    ledger = session.existing_ledger()
    if ledger is None:
        return []
    from orchestrator.ledger.attempts import job_counts  # loads the database

    return job_counts(ledger)


def _experiment_row(entry: Entry, counts: Sequence[JobCount]) -> ListedExperiment:
    scales = scale_names(entry.experiment)
    gpus = {scale: {int(value) for value in _values_at(entry, scale, "gpus")} for scale in scales}
    ran = {count.scale for count in counts} & {*scales}
    own = {scale: _values_at(entry, scale, "program") for scale in ran}
    return ListedExperiment(
        experiment=entry.name,
        venue=entry.paper.venue,
        figure=entry.experiment.figure,
        title=entry.experiment.title,
        cases=case_count(scale_fields(entry, PAPER), to_run=True),
        gpus_min=min(gpus[PAPER]),
        gpus_max=max(gpus[PAPER]),
        scales=tuple(ScaleSize(scale, max(sizes)) for scale, sizes in gpus.items()),
        done=tuple(
            _progress(list(of_program), own)
            for _, of_program in groupby(counts, lambda count: (count.scale, count.cluster, count.program))
        ),
    )


def _progress(counts: Sequence[JobCount], own: Mapping[str, Collection[Value]]) -> ExperimentProgress:
    """Return the progress of the jobs of a scale, cluster and program. `own` are the programs of each scale."""
    first, jobs = counts[0], sum(count.jobs for count in counts)
    verified = sum(count.jobs for count in counts if count.verdict == "verified")
    is_own = first.program in own.get(first.scale, ())
    return ExperimentProgress(first.scale, first.cluster, first.program, verified, jobs, is_own)


def _values_at(entry: Entry, scale: str, axis: str) -> set[Value]:
    """Return the values of the cases on an axis. The cases are expanded only if a rule derives the value."""
    if axis == "program" and entry.described is not None:
        return {entry.described.shown_name}
    values = values_on(entry, scale_fields(entry, scale), axis)
    return values or {case.settings.get(axis, 0) for case in cases_to_run(entry, scale)}


@dataclass(frozen=True, slots=True)
class ExperimentCases:
    """An experiment and its cases at a scale. `replaces_shipped`: a user's file has the place of a shipped one."""

    entry: Entry
    scale: str
    cases: list[Case]
    replaces_shipped: bool

    @property
    def rows(self) -> list[ShownCase]:
        """Return the cases as rows."""
        names = [column.name for column in _shown_settings()]
        return [
            row_of(
                ShownCase,
                case,
                case=case.name,
                label=case.settings.get("label"),
                settings={name: case.effective(name) for name in names},
                arguments=shlex.join(case.arguments) or None,
                parameters_billion=None if case.parameters is None else round(case.parameters / 1e9, 4),
                script=self.script_of(case),
            )
            for case in self.cases
        ]

    @property
    def numbers_of_rows(self) -> list[PublishedPoint]:
        """Return the published numbers of rows of an output; no case has them before it ran."""
        key = self.entry.described.output.key if self.entry.described is not None and self.scale == PAPER else ()
        points = [point for point in self.entry.experiment.published if point.where.keys() & {*key}]
        settings = [{axis: value for axis, value in point.where.items() if axis not in key} for point in points]
        return [point for point, own in zip(points, settings, strict=True) if any(case.has(own) for case in self.cases)]

    @property
    def claims(self) -> list[StatedClaim]:
        """Return the claims as rows."""
        return rows_of(StatedClaim, self.entry.experiment.claims, experiment=self.entry.name)

    @property
    def reference_notes(self) -> list[str]:
        """Return how many cases of the scale have no job, for each reason."""
        return reference_notes(self.entry, self.scale)

    @property
    def differences(self) -> list[Difference]:
        """Return the differences between paper, scripts and jobs that apply to these cases."""
        every = [*self.entry.experiment.differences, *self.entry.paper.differences]
        applying = [difference for case in self.cases for difference in self.differences_of(case)]
        return [difference for difference in every if difference in applying]

    def differences_of(self, case: Case) -> list[Difference]:
        """Return the differences that apply to a case; those of the paper, if the case has a script."""
        of_paper = self.entry.paper.differences if case.script else []
        every = [*self.entry.experiment.differences, *of_paper]
        return [one for one in every if one.where.items() <= case.settings.items()]

    def script_of(self, case: Case) -> str | None:
        """Return `NVIDIA/Megatron-LM at 6985e58938: examples/sc21/run_figure_13.sh`; None without a script."""
        code = self.entry.paper.code.get(case.program)
        return case.script if case.script is None or code is None else f"{code.place_of_scripts}: {case.script}"


@dataclass(frozen=True, slots=True)
class ShownPaper:
    """A paper. `code` and `images` are by program; `not_run` are parts that no experiment runs."""

    paper: str
    title: str
    venue: str | None
    arxiv: str | None
    doi: str | None
    hardware: str | None
    code: Mapping[str, CodeFields]
    images: Mapping[str, str]
    differences: Sequence[Difference]
    not_run: Sequence[NotRun]
    notes: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShownExperiment:
    """An experiment. `axes` are those of the paper's plot, `differences` those between paper, scripts and jobs."""

    experiment: Annotated[str, Field(of="name")]
    figure: Annotated[str, Field(of="experiment.figure")]
    title: Annotated[str, Field(of="experiment.title")]
    scales: Sequence[str]
    reference_only: Annotated[str | None, Field(of="experiment.reference_only")]
    axes: Annotated[Axes, Field(of="experiment.plot")]
    differences: Sequence[Difference]
    notes: Annotated[Sequence[str], Field(of="experiment.notes")]


def _shown_settings() -> tuple[Column, ...]:
    """Return the settings that any program shows, each once."""
    return tuple({column.name: column for one in programs().values() for column in one.names.shown}.values())


@dataclass(frozen=True, kw_only=True)
class ShownCase(TableRow):
    """A case with its settings, as the jobs have them, and its published numbers."""

    case: Annotated[str, Field("case, in the syntax of `--where`")]
    label: Annotated[str | int | float | None, Field("name of the case in the source")]
    settings: Annotated[Mapping[str, Value | None], Columns(_shown_settings)]
    arguments: Annotated[str | None, Field("further arguments of the program")]
    parameters_billion: Annotated[float | None, Field("parameters of the whole model", "10^9")]
    program: Annotated[str, Field("program that runs the case")]
    experiment: Annotated[str, Field("full name of the experiment")]
    scale: Annotated[str, Field("scale of the case")]
    published: Annotated[Sequence[PublishedPoint], Field("numbers of the source")]
    expected: Annotated[str | None, Field("outcome that the source reports, such as `oom`", of="expected.outcome")]
    expected_confirmed: Annotated[bool | None, Field("whether the outcome was checked", of="expected.confirmed")]
    reference_only: Annotated[str | None, Field("why the case has no job")]
    script: Annotated[str | None, Field("published script")]


@dataclass(frozen=True, slots=True)
class StatedClaim:
    """A statement of the paper, and the scales that can judge it. `tolerance` is relative."""

    experiment: str
    claim: Annotated[str, Field(of="id")]
    kind: str
    stated: str
    judged_at: Sequence[str]
    source: str
    says: str
    tolerance: float
    tolerance_because: str | None
    not_met_by_source: str | None


def shown_experiment(entry: Entry, differences: Sequence[Difference]) -> ShownExperiment:
    """Return an experiment as a row."""
    return row_of(ShownExperiment, entry, scales=scale_names(entry.experiment), differences=differences)


def is_paper(name: str) -> bool:
    """Return whether this is the name of a paper, and not of an experiment."""
    return name in papers(experiment_names(find_folders()))


def require_experiment(name: str) -> None:
    """Raise ReproError, with the experiments of the paper, if this is the name of a paper."""
    if is_paper(name):
        find_experiment(find_folders(), name)


def show(experiment: str, scale: str = PAPER, *, where: str | None = None) -> ExperimentCases:
    """Return an experiment and its cases at a scale."""
    folders = find_folders()
    entry = find_experiment(folders, experiment)
    wanted = parse_where(where, entry.names.axes)
    return ExperimentCases(entry, scale, select(expand(entry, scale), wanted), replaced(folders, entry) is not None)
