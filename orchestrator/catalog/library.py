"""Lookup of experiments by name, reading of their files, and checks of their fields."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from orchestrator.catalog.experiment import GROUPS, CodeFields, Experiment, Paper, ScaleFields, scale_names
from orchestrator.config.model import read_model
from orchestrator.config.yaml import Document, KeyPath, read_document, shown
from orchestrator.errors import Problem, ReproError, added_to, did_you_mean, for_each, names_hint, require_none
from orchestrator.fields import Column
from orchestrator.job_spec import Value
from orchestrator.paths import Folders, short_name
from orchestrator.programs.axes import MetricDefinition, ProgramNames
from orchestrator.programs.program import ProgramFields, mapping_of, names_of, values_of
from orchestrator.programs.record import Program, known_program, programs


def experiment_names(folders: Folders) -> dict[str, Path]:
    """Return the file of every experiment by full name; ReproError if two files of a folder have the same name.

    A user's file replaces the shipped file of the same name. A file that was submitted by its path has the name, too.
    """
    names: dict[str, Path] = {}
    for path in folders.experiment_files():
        name = f"{path.parent.name}/{path.stem}"
        other = names.get(name)
        if other is not None and other.parent == path.parent:
            files = f"{shown(other)} and {shown(path)}"
            raise ReproError(Problem(f"{name}: this name is used twice, by {files}", hint="rename one of them"))
        if path.stem != "paper":
            names.setdefault(name, path)
    return names | {name: file for name, file in folders.submitted_files.items() if name not in names}


def is_path(name: str) -> bool:
    """Return whether the text is a path of an experiment's file, and not a name: `./x.yaml`, `my/figure.yaml`."""
    return name.endswith((".yaml", ".yml"))


def name_of_file(file: Path) -> str:
    """Return the full name of the experiment in a file."""
    return f"{file.parent.name}/{file.stem}"


def absolute_path(path: str) -> Path:
    """Return the absolute path of a file that a user names."""
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  removes .. and keeps links


def papers(names: Iterable[str]) -> list[str]:
    """Return the folders of the papers: `sc21` of `sc21/figure-13`."""
    return list(dict.fromkeys(full.rpartition("/")[0] for full in names))


def names_of_paper(names: Iterable[str], paper: str) -> list[str]:
    """Return the full names of the experiments of a paper."""
    return [full for full in names if full.startswith(f"{paper}/")]


def names_meant(names: Iterable[str], name: str) -> list[str]:
    """Return the full names that match a short or full name, or the name of the file at a path."""
    if is_path(name):
        return [name_of_file(absolute_path(name))]
    return [full for full in names if name in (full, short_name(full))]


def nearest_names(names: Iterable[str], name: str) -> str | None:
    """Return the hint that names the nearest experiments or papers, none by an ambiguous name; None if none is near."""
    of_short_name: dict[str, list[str]] = {}
    for full in names:
        of_short_name.setdefault(short_name(full), []).append(full)
    if same := of_short_name.get(short_name(name)):
        return f"did you mean {' or '.join(json.dumps(full) for full in same)}?"
    unique = [short for short, several in of_short_name.items() if len(several) == 1]
    return did_you_mean(name, [*unique, *names, *papers(names)])


_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """An experiment with its file and its paper. `name` is the full name, `sc21/figure-13`.

    `others` are the experiments of the paper that its claims compare with, by short name. `path` is the path that the
    user gave, if the experiment has no name in the folders of experiments. `program` is the program that the experiment
    or the paper describes, `record` that of a known program, and `names` are the axes and metrics of either.
    """

    name: str
    file: Path
    document: Document
    experiment: Experiment
    paper: Paper
    names: ProgramNames
    others: Mapping[str, Entry] = field(default_factory=dict)
    path: str | None = None
    described: ProgramFields | None = None
    record: Program | None = None

    @property
    def axes(self) -> Mapping[str, Column]:
        """Axes of its program by name."""
        return self.names.axes.columns

    @property
    def metrics(self) -> Mapping[str, MetricDefinition]:
        """Metrics of its program by name."""
        return self.names.metrics

    @property
    def argument(self) -> str:
        """Word that names the experiment on the command line: the path that was given, else the short name."""
        return self.short_name if self.path is None else self.path

    @property
    def paper_folder(self) -> str:
        """Name of the paper's folder: `sc21`."""
        return self.name.partition("/")[0]

    @property
    def short_name(self) -> str:
        """Name without the paper: `figure-13`."""
        return short_name(self.name)

    @property
    def source(self) -> str:
        """Return `SC21 Figure 13`, without a paper `Figure 13`."""
        return " ".join(filter(None, (self.paper.venue, self.experiment.figure)))

    def location(self, *path: str | int) -> str:
        """Return the `file:line:column` of the value at `path`, or of its nearest parent."""
        return str(self.document.place(path))

    def scale_location(self, scale: str, *path: str | int) -> str:
        """Return the location of a scale's field: in its block, or at the top level that it inherits from."""
        own: KeyPath = ("scales", scale, *path)
        return self.location(*(own if own[:3] in self.document.keys else path))


def _file_at(folders: Folders, path: str) -> tuple[str, Path, dict[str, Path]]:
    """Return the full name and the file of an experiment at a path, and the files that its claims may compare with.

    ReproError if it is not a file of an experiment, or if another file has its name.
    """
    file, names = absolute_path(path), experiment_names(folders)
    name, location = name_of_file(file), f"{shown(file)}:"
    if not file.is_file():
        near = did_you_mean(file.name, [other.name for other in file.parent.glob("*.y*ml")])
        raise ReproError(Problem("no such file", location, near or "correct the path"))
    if file.stem == "paper":
        raise ReproError(Problem("describes a paper, and is not an experiment", location, "give a file beside it"))
    if not _NAME.fullmatch(name):
        hint = "rename it: letters, digits, _, . and -"
        raise ReproError(Problem(f"{name}: folder and file are the experiment's name", location, hint))
    other = names.get(name)
    if other is not None and other.exists() and not other.samefile(file):
        hint = "rename the file or its folder: both are part of the experiment's name"
        raise ReproError(Problem(f"{name} is also the name of {shown(other)}", location, hint))
    siblings = {name_of_file(sibling): sibling for sibling in sorted(file.parent.glob("*.y*ml"))}
    return name, file, names | siblings | {name: file}


def replaced(folders: Folders, entry: Entry) -> Path | None:
    """Return the shipped file that the user's file replaces; None if both have the same content."""
    shipped = folders.shipped / "experiments" / f"{entry.name}.yaml"
    return shipped if shipped.is_file() and entry.file.read_bytes() != shipped.read_bytes() else None


def full_name(folders: Folders, name: str) -> str:
    """Return `sc21/figure-13` for `figure-13`; ReproError for an unknown or ambiguous name.

    For a path, the file must exist, and no other file may have its name.
    """
    if is_path(name):
        return _file_at(folders, name)[0]
    names = names_meant(experiment_names(folders), name)
    return names[0] if len(names) == 1 else find_experiment(folders, name).name


def experiments_meant(folders: Folders, names: Iterable[str]) -> dict[str, str | None]:
    """Return the full names of experiments and of papers' experiments, each with the given name; None of a paper.

    ReproError has every unknown or ambiguous name.
    """
    known = experiment_names(folders)
    meant: dict[str, str | None] = {}

    def add(name: str) -> None:
        of_paper = names_of_paper(known, name)
        meant.update({full: meant.get(full) for full in of_paper} or {full_name(folders, name): name})

    for_each(names, add)
    return meant


def find_experiment(folders: Folders, name: str) -> Entry:
    """Read the experiment with this short or full name, or at this path; ReproError has every problem of its files."""
    if is_path(name):
        full, file, files = _file_at(folders, name)
        is_listed = full in experiment_names(replace(folders, submitted_files={}))
        return replace(read_experiment(full, file, files), path=None if is_listed else name)
    names = experiment_names(folders)
    matches = names_meant(names, name)
    if name in papers(names):
        experiments = ", ".join(short_name(full) for full in names_of_paper(names, name))
        raise ReproError(Problem(f"{name}: a paper, not an experiment", hint=f"it has {experiments}"))
    if not matches:
        hint = nearest_names(names, name) or f"there are: {', '.join(sorted(names)) or 'none'}"
        raise ReproError(Problem(f"{name}: no such experiment", hint=hint))
    if len(matches) > 1:
        raise ReproError(Problem(f"{name}: could be {' or '.join(matches)}", hint="give the full name"))
    return read_experiment(matches[0], names[matches[0]], names)


def find_entries(folders: Folders, name: str) -> list[Entry]:
    """Read the experiment of this name, or all of a paper (`sc21`); ReproError has every problem."""
    names = experiment_names(folders)
    of_paper = names_of_paper(names, name)
    if not of_paper:
        return [find_experiment(folders, name)]
    return for_each(of_paper, lambda full: read_experiment(full, names[full], names))


def read_experiment(
    name: str, file: Path, files: Mapping[str, Path] | None = None, readers: tuple[str, ...] = ()
) -> Entry:
    """Read an experiment, its paper, and the experiments that its claims compare with.

    `files` are the files of all experiments by full name. `readers` are the experiments whose claims lead to this one,
    each to the next. ReproError has every problem of all of these files.
    """
    problems: list[Problem] = []
    of_paper: list[Problem] = []
    others: dict[str, Entry] = {}
    document, experiment, paper, program, record = None, None, None, None, None
    names: ProgramNames | None = None  # those of a program with mistakes are unknown
    with added_to(problems):
        document = read_document(file)
    with added_to(of_paper):
        of_folder = _paper_document(file.parent)
        with added_to(problems):
            record = _known_program(document, of_folder) if document is not None else None
        paper = _paper(file.parent, of_folder, record.names if record is not None else None)
    with added_to(problems):
        if document is not None:
            with added_to(problems):
                program, names = _program(document, paper, record)
            if names is not None:
                problems += _block_problems(document, program, record, names)
            if program is not None:
                output = program.output  # the header of a CSV file, or a reader, has the names
                is_open = output.csv_ is not None or output.reader is not None
                has_metrics = is_open or output.names.issuperset(program.metrics)
                names = names if has_metrics else None
            experiment = read_model(Experiment, document, context=names)
            others = _others(name, document, experiment, files or {}, readers)
    if document is None or experiment is None or paper is None or names is None or problems or of_paper:
        raise ReproError(*dict.fromkeys((*problems, *of_paper)))
    return Entry(name, file, document, experiment, paper, names, others, described=program, record=record)


def _paper_document(folder: Path) -> Document | None:
    file = folder / "paper.yaml"
    return read_document(file) if file.exists() or file.is_symlink() else None


def _paper(folder: Path, document: Document | None, names: ProgramNames | None = None) -> Paper:
    """Read `paper.yaml` of a folder, its models as a program has them; without the file, the folder is the title."""
    return Paper(title=folder.name) if document is None else read_model(Paper, document, context=names)


def _known_program(document: Document, paper: Document | None) -> Program | None:
    """Return the known program of an experiment; None if the experiment or its paper describes one, or names none.

    The names of a program that no package registers are those of a known program of other cases. ReproError if there
    is none.
    """
    content = mapping_of(document.value)
    name, described = content.get("program"), mapping_of(mapping_of(paper and paper.value).get("programs"))
    if not isinstance(name, str) or name in described:
        return None
    if (program := known_program(name)) is not None:
        return program
    scales = map(mapping_of, mapping_of(content.get("scales")).values())
    named = [*values_of(content).get("program", ()), *(scale.get("program") for scale in scales)]
    for program in map(known_program, map(str, named)):
        if program is not None:
            return program
    known = {**described, **programs()}
    hint = names_hint(name, known) if known else "install the package of the program"
    raise ReproError(Problem(f"{name}: no such program", str(document.place(("program",))), hint))


def _program(
    document: Document, paper: Paper | None, record: Program | None
) -> tuple[ProgramFields | None, ProgramNames | None]:
    """Return the program that the experiment or its paper describes, None for a known one; and the names of either.

    The names are None if the model of the whole file, or of the paper, reports that the program is missing or wrong.
    """
    if record is not None:
        return None, record.names
    content = mapping_of(document.value)
    written = content.get("program")
    if isinstance(written, str):
        program = paper.programs.get(written) if paper is not None else None
    else:
        try:
            program = ProgramFields.model_validate(written)
        except ValidationError:
            program = None
    return (None, None) if program is None else (program, names_of(program, content))


def _block_problems(
    document: Document, program: ProgramFields | None, record: Program | None, names: ProgramNames
) -> Iterator[Problem]:
    """Yield the groups of axes that the program lacks, and what is wrong between its block and the experiment."""
    for group in GROUPS:
        if (group,) in document.keys and group not in names.groups:
            named = program.shown_name if program is not None else record and record.name
            what = f"{group}: {named} has no such group of axes"
            yield Problem(what, str(document.key_place((group,))), "write the axes in matrix, fixed or cases")
    given = [axis for axis in names.axes.columns if axis in names.given]
    if program is None:
        return
    for scale, fields in mapping_of(mapping_of(document.value).get("scales")).items():
        if isinstance(mapping_of(fields).get("program"), str):
            what = f"scales.{scale}.program: every scale runs the program that is described, {program.shown_name}"
            place = document.place(("scales", scale, "program"))
            yield Problem(what, str(place), "remove it, or write an experiment of its own")
    for path, what, hint in program.problems(given):
        place = document.place(("program", *path))  # that of the name, if the paper has the block
        yield Problem(f"program.{'.'.join(map(str, path))}: {what}", str(place), hint)


def published_code(folders: Folders) -> dict[str, CodeFields]:
    """Return the published code of each program that a paper names; the first paper counts, a user's before shipped.

    ReproError has every problem of the papers.
    """
    files = dict.fromkeys(file.parent / "paper.yaml" for file in experiment_names(folders).values())
    code: dict[str, CodeFields] = {}
    for paper in for_each(files, lambda file: _paper(file.parent, _paper_document(file.parent))):
        code = paper.code | code
    return code


def _others(
    name: str, document: Document, experiment: Experiment, files: Mapping[str, Path], readers: tuple[str, ...]
) -> dict[str, Entry]:
    """Read the experiments that the claims compare with; ReproError has each that does not exist or refers back."""
    folder, readers = name.rpartition("/")[0], (*readers, name)
    others: dict[str, Entry] = {}
    problems: list[Problem] = []
    for i, claim in enumerate(experiment.claims):
        other = claim.other_experiment
        if other is None or other in others:
            continue
        full, location = f"{folder}/{other}", str(document.place(("claims", i, "experiment")))
        if full == name:
            what = f"{other}: the experiment of the claim itself"
            problems.append(Problem(what, location, "remove `experiment`, or name another experiment"))
        elif full in readers:
            way = " to ".join(map(short_name, (*readers[readers.index(full) :], full)))
            hint = "move the claims about both experiments into one of the files"
            problems.append(Problem(f"{other}: claims refer in a circle, from {way}", location, hint))
        elif full not in files:
            siblings = [short_name(known) for known in names_of_paper(files, folder) if known != name]
            what = f"{other}: no such experiment of {folder}"
            problems.append(Problem(what, location, names_hint(other, siblings)))
        else:
            with added_to(problems):
                others[other] = read_experiment(full, files[full], files, readers)
    require_none(problems)
    return others


def scale_problems(entry: Entry, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Yield every contradiction between the fields at `scale`, each with its location."""
    yield from _axes_with_two_sources(entry, scale, fields)
    yield from _unknown_names(entry, scale, fields)
    keys = entry.described.output.key if entry.described is not None else ()
    axes = [*(fields.matrix or ()), *(fields.rules or ()), *_row_axes(fields), *keys]
    what = "neither in matrix nor set by a rule" if fields.matrix else "in no case, nor set by a rule"
    for path, axis in _named_axes(entry.experiment):
        if axis in entry.axes and axis not in axes:
            yield Problem(f"{axis}: {what}", entry.location(*path), f"there are: {', '.join(axes)}")
    for i, name in repetitions(claim.id for claim in entry.experiment.claims):
        yield Problem(f"{name}: two claims have this id", entry.location("claims", i, "id"))


def _unknown_names(entry: Entry, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Yield the axes, scales and models that do not exist."""
    experiment, scales, models = entry.experiment, scale_names(entry.experiment), entry.paper.models
    named: list[tuple[str, KeyPath, str, Collection[str]]] = []
    named += [("axis", path, axis, entry.axes) for path, axis in _named_axes(experiment)]
    named += [("axis", ("plot", "x", "under", i), axis, entry.axes) for i, axis in enumerate(experiment.plot.x.under)]
    for i, claim in enumerate(experiment.claims):
        named += [("scale", ("claims", i, "judged_at", j), name, scales) for j, name in enumerate(claim.judged_at)]
        named += [("scale", ("claims", i, "not_judged_because", name), name, scales) for name in claim.reasons]
    for path, model in named_values(fields, "model") if "model" in entry.names.groups else ():
        named.append(("model", path, str(model), models))
    for kind, path, name, known in named:
        if name not in known:
            hint = names_hint(name, known)
            hint = hint.replace("there are:", "paper.yaml has:", 1) if kind == "model" else hint
            yield Problem(f"{name}: no such {kind}", entry.scale_location(scale, *path), hint)


def repetitions(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield each name that an earlier one equals, with its position."""
    earlier: set[str] = set()
    for i, name in enumerate(names):
        if name in earlier:
            yield i, name
        earlier.add(name)


def _axes_with_two_sources(entry: Entry, scale: str, fields: ScaleFields) -> Iterator[Problem]:
    """Yield the axes that two of matrix, cases, fixed and rules set: one of the values would be ignored."""
    sources = {
        "matrix": set(fields.matrix or ()),
        "cases": _row_axes(fields).keys(),
        "fixed": fields.fixed.keys(),
        "rules": set(fields.rules or ()),
    }
    keys = entry.document.keys
    for first, second in (("matrix", "fixed"), ("matrix", "rules"), ("fixed", "rules"), ("cases", "rules")):
        for axis in sorted(sources[first] & sources[second]):
            path: KeyPath = ("scales", scale, second, axis)
            location = str(entry.document.key_place(path if path in keys else path[2:]))
            yield Problem(f"{axis}: set by {first} and by {second} at scale {scale}", location, "keep one of them")


def _row_axes(fields: ScaleFields) -> dict[str, None]:
    """Return the axes that the rows of `cases` set, in their order."""
    return dict.fromkeys(axis for row in fields.cases or () for axis in row.settings)


def _named_axes(experiment: Experiment) -> Iterator[tuple[KeyPath, str]]:
    """Yield the axes that the plot, the names of cases and the claims use, with their paths."""
    for i, axis in enumerate(experiment.plot.x.of):
        yield ("plot", "x", "of", i), axis
    if experiment.plot.series is not None:
        yield ("plot", "series", "of"), experiment.plot.series.of
    if experiment.cases is not None:
        yield from ((("named_by", i), axis) for i, axis in enumerate(experiment.named_by))
    for i, claim in enumerate(experiment.claims):
        yield from ((("claims", i, *path), axis) for path, axis in claim.axes())


def named_values(fields: ScaleFields, axis: str, *, to_run: bool = False) -> Iterator[tuple[KeyPath, Value]]:
    """Yield each value that the fields of a scale give to an axis, or to cases with a job, with its path."""
    given: list[tuple[KeyPath, Value | None]] = [(("fixed", axis), fields.fixed.get(axis))]
    for i, row in enumerate(fields.cases or ()):
        given += [(("cases", i, axis), row.settings.get(axis))] if not to_run or row.reference_only is None else []
    given += [(("matrix", axis, i), value) for i, value in enumerate((fields.matrix or {}).get(axis, []))]
    yield from ((path, value) for path, value in given if value is not None)
