"""Catalog: experiments with their sizes and progress, the cases of an experiment, and papers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.api import DEFAULT, Session
from orchestrator.catalog.case import Case, parse_where, select
from orchestrator.catalog.expand import case_count, cases_to_run, expand, reference_notes, scale_fields, values_on
from orchestrator.catalog.experiment import PAPER, scale_names
from orchestrator.catalog.library import Entry, find_entries, find_experiment, read_experiment, replaced
from orchestrator.catalog.names import experiment_names, papers
from orchestrator.catalog.paper import Paper
from orchestrator.catalog.published import Difference
from orchestrator.clusters.names import cluster_names
from orchestrator.errors import Problem, ReproError
from orchestrator.job_spec import Value
from orchestrator.paths import Folders, find_folders

if TYPE_CHECKING:
    from orchestrator.ledger.job_counts import JobCount


@contextmanager
def added_to(problems: list[Problem]) -> Iterator[None]:
    """Add the problems of the block's ReproError to the list, and continue after the block."""
    try:
        yield
    except ReproError as error:
        problems.extend(error.problems)


@dataclass(frozen=True, slots=True)
class ScaleSize:
    """A scale of an experiment with the GPUs of its largest case."""

    scale: str
    gpus: int


@dataclass(frozen=True, slots=True)
class ScaleProgress:
    """Jobs of an experiment that were submitted, and how many are verified. `workload` is the program that ran.

    `is_own_workload` is false if another program than the figure's own ran.
    """

    scale: str
    cluster: str
    workload: str
    verified: int
    jobs: int
    is_own_workload: bool


@dataclass(frozen=True, slots=True)
class ListedExperiment:
    """An experiment with its published size and its progress. `plan` predicts its cost."""

    experiment: str
    venue: str
    figure: str
    title: str
    cases: int
    gpus_min: int
    gpus_max: int
    scales: tuple[ScaleSize, ...]
    done: tuple[ScaleProgress, ...]


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
                expand(entry)  # for its problems; tests check the shipped ones
            rows.append(_experiment_row(entry, [count for count in counts if count.experiment == name]))
    return ExperimentList(rows, sorted(cluster_names(folders)), list(dict.fromkeys(problems)))


def _job_counts(folders: Folders, session: Session) -> list[JobCount]:
    """Return the submitted jobs of each experiment. A SQLite ledger is read without the database's modules."""
    if session.given_ledger is None and folders.refused is None and not (folders.home / "results.db").exists():
        return []
    from orchestrator.ledger.job_counts import job_counts, job_counts_in_file

    is_refused = session.given_ledger is None and folders.refused is not None
    file = None if is_refused else session.ledger_file
    counts = job_counts_in_file(file) if file is not None and file.exists() else None
    if counts is not None:
        return counts
    ledger = session.existing_ledger()
    return job_counts(ledger) if ledger is not None else []


def _experiment_row(entry: Entry, counts: Sequence[JobCount]) -> ListedExperiment:
    scales = scale_names(entry.experiment)
    gpus = {scale: {int(value) for value in _values_at(entry, scale, "gpus")} for scale in scales}
    ran = {count.scale for count in counts} & {*scales}
    workloads = {scale: _values_at(entry, scale, "workload") for scale in ran}
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
            ScaleProgress(
                count.scale,
                count.cluster,
                count.workload,
                count.verified,
                count.jobs,
                count.workload in workloads.get(count.scale, ()),
            )
            for count in counts
        ),
    )


def _values_at(entry: Entry, scale: str, axis: str) -> set[Value]:
    """Return the values of the cases on an axis. The cases are expanded only if a rule derives the value."""
    values = values_on(entry, scale_fields(entry, scale), axis)
    return values or {case.value(axis) for case in cases_to_run(entry, scale)}


@dataclass(frozen=True, slots=True)
class ExperimentCases:
    """An experiment and its cases at a scale. `replaces_shipped`: a user's file has the place of a shipped one."""

    entry: Entry
    scale: str
    cases: list[Case]
    replaces_shipped: bool

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
        return [one for one in every if one.where.given().items() <= case.settings.items()]

    def script_of(self, case: Case) -> str | None:
        """Return `NVIDIA/Megatron-LM at 6985e58938: examples/sc21/run_figure_13.sh`; None without a script."""
        code = self.entry.paper.code.get(case.workload)
        return case.script if case.script is None or code is None else f"{code.place_of_scripts}: {case.script}"


@dataclass(frozen=True, slots=True)
class PaperContents:
    """A paper with its experiments."""

    name: str
    paper: Paper
    entries: list[Entry]


def is_paper(name: str) -> bool:
    """Return whether this is the name of a paper, and not of an experiment."""
    return name in papers(experiment_names(find_folders()))


def require_experiment(name: str) -> None:
    """Raise ReproError, with the experiments of the paper, if this is the name of a paper."""
    if is_paper(name):
        find_experiment(find_folders(), name)


def show_paper(name: str) -> PaperContents:
    """Return a paper and its experiments."""
    entries = find_entries(find_folders(), name)
    return PaperContents(name, entries[0].paper, entries)


def show(experiment: str, scale: str = PAPER, *, where: str | None = None) -> ExperimentCases:
    """Return an experiment and its cases at a scale."""
    wanted, folders = parse_where(where), find_folders()
    entry = find_experiment(folders, experiment)
    return ExperimentCases(entry, scale, select(expand(entry, scale), wanted), replaced(folders, entry) is not None)
