"""Space of a search: all layouts of a model with one batch size, the candidates on a cluster, and their experiment."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from orchestrator.catalog.case import parse_where, select, shown_value
from orchestrator.catalog.expand import cases_to_run
from orchestrator.catalog.experiment import PAPER, SEARCHES, Experiment, Paper
from orchestrator.catalog.library import Entry, experiment_names, find_experiment
from orchestrator.clusters.resolve import Cluster, find_cluster
from orchestrator.config.model import read_model
from orchestrator.config.yaml import Document, parse_document, parse_settings, read_document, settings_document, shown
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.files import written_whole
from orchestrator.job_spec import Value
from orchestrator.megatron.axes import AXES, MEGATRON, ModelFields
from orchestrator.megatron.case import TrainingCase, training_cases
from orchestrator.megatron.memory import MemoryEstimate
from orchestrator.megatron.programs import find_megatron
from orchestrator.megatron.programs.pretrain import PRETRAIN
from orchestrator.megatron.search.candidates import Candidate, LeftOut, candidates, layout_candidates
from orchestrator.paths import Folders, find_folders
from orchestrator.planning.batch_plan import read_settings
from orchestrator.planning.target import Target
from orchestrator.text import counted

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
RECOMPUTATION = ("none", "selective", "ours")
OFFLOADED_SHARES = (0.25, 0.5, 0.75, 1.0)

_REQUIRED = ("layers", "hidden", "heads", "seq", "vocab")
_NAMED_BY = ("dp", "tp", "pp", "cp", "vp", "mbs", "recompute", "offload")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """Model of a search. `label` is its name in the experiment: `6.7b`."""

    label: str
    fields: Mapping[str, Value]


def find_model(text: str, papers: Mapping[str, Paper]) -> NamedModel:
    """Return a model by its name in a paper (`gpt-6.7b`, `alpa/6.7B`), or from its sizes (`layers=32,hidden=4096,...`).

    A name may begin with `gpt-`, and its case does not matter. `papers` are the papers by folder. ReproError has every
    problem of the sizes, or the names that there are.
    """
    if "=" in text:
        document = settings_document(parse_settings(text.split(",")))
        given = read_model(ModelFields, document, lambda path: document.place(path).in_message)
        sizes = given.model_dump(exclude_none=True)
        return NamedModel(f"{sizes.get('layers')}x{sizes.get('hidden')}", sizes)
    wanted, paper = _plain(text.rpartition("/")[2]), text.rpartition("/")[0]
    matches = {
        f"{folder}/{name}": fields
        for folder, one in papers.items()
        for name, fields in one.models.items()
        if _plain(name) == wanted and paper in ("", folder)
    }
    if not matches:
        names = [f"{folder}/{name}" for folder, one in papers.items() for name in one.models]
        hint = did_you_mean(text, [*names, *(_plain(name.rpartition("/")[2]) for name in names)])
        hint = (
            hint or f"there are {', '.join(names)}; or give sizes: layers=32,hidden=4096,heads=32,seq=2048,vocab=51200"
        )
        raise ReproError(Problem(f"{text}: no such model", hint=hint))
    shapes = {tuple(sorted(fields.items())) for fields in matches.values()}
    if len(shapes) > 1:
        raise ReproError(Problem(f"{text}: could be {' or '.join(matches)}", hint="give the paper, too"))
    name, fields = next(iter(matches.items()))
    return NamedModel(_plain(name.rpartition("/")[2]), fields)


def _plain(name: str) -> str:
    return name.lower().removeprefix("gpt-")


def require_complete(model: NamedModel) -> None:
    """Raise ReproError for each size that neither the name nor an option gives."""
    missing = [name for name in _REQUIRED if name not in model.fields]
    if missing:
        what = f"{model.label}: {' and '.join(missing)} not given"
        raise ReproError(Problem(what, hint=f"add {' '.join(f'--{name} N' for name in missing)}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Settings that a search varies, and settings that it keeps.

    `wanted` are values on axes that all candidates must have. `keeps_scores` is true if attention keeps its scores in
    memory for the backward pass.
    """

    model: NamedModel
    gpus: int
    global_batch_size: int
    gpus_per_node: int
    program: str
    device: str = "gpu"
    keeps_scores: bool
    training: Mapping[str, Value]
    wanted: Mapping[str, Value]

    @staticmethod
    def row_of(case: TrainingCase) -> dict[str, Value]:
        """Return the row of a case that was expanded from a row."""
        return {axis: case.settings[axis] for axis in (*_NAMED_BY, "sequence_parallel")}

    def rows(self) -> Iterator[dict[str, Value]]:
        """Yield every combination that fills the GPUs and divides layers and batch; rules are checked later.

        The tensor-parallel size is at most a node. Sequence parallelism is on with tensor parallelism, because it needs
        less memory for the same communication (MLSys'23, section 4.2.2), unless `wanted` has it off.
        """
        layers = int(self.model.fields["layers"])
        for tp, pp, cp in itertools.product(divisors(self.gpus), repeat=3):
            if tp > self.gpus_per_node or self.gpus % (tp * pp * cp) or layers % pp:
                continue
            dp = self.gpus // (tp * pp * cp)
            for vp, mbs, recompute in itertools.product(
                [1] if pp == 1 else divisors(layers // pp),
                _micro_batches(self.global_batch_size, dp),
                self._recomputation(),
            ):
                row: dict[str, Value] = {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "vp": vp, "mbs": mbs, **recompute}
                row["sequence_parallel"] = self.wanted.get("sequence_parallel", tp > 1)
                if all(row.get(axis) == value for axis, value in self.wanted.items()):
                    yield row

    def _recomputation(self) -> Iterable[dict[str, Value]]:
        """Yield every recomputation and offloaded share. Flash attention keeps no scores to recompute (`selective`)."""
        scores = self.keeps_scores or self.wanted.get("recompute") == "selective"
        for name in RECOMPUTATION if scores else ("none", "ours"):
            yield {"recompute": name, "offload": 0.0}
        for share in OFFLOADED_SHARES:
            yield {"recompute": "ours", "offload": share}
        yield {"recompute": "full", "offload": 0.0}

    def experiment(self, rows: Sequence[Mapping[str, Value]], title: str) -> dict[str, object]:
        """Return the fields of the experiment with these rows as cases."""
        named_by = [axis for axis in _NAMED_BY if len({row[axis] for row in rows}) > 1] or ["tp", "pp"]
        common = {axis: value for axis, value in rows[0].items() if all(row[axis] == value for row in rows)}
        shared = {axis: value for axis, value in common.items() if axis not in named_by}
        varied = [axis for axis in AXES if axis in rows[0] and axis not in shared]
        cases = [{axis: row[axis] for axis in varied} for row in rows]
        return {
            "figure": "search",
            "title": title,
            "program": self.program,
            **({"device": "cpu"} if self.device == "cpu" else {}),
            "gpus": self.gpus,
            "model": dict(self.model.fields),
            "training": dict(self.training),
            "fixed": {"gbs": self.global_batch_size, **shared},
            "named_by": named_by,
            "plot": {
                "x": {"label": f"({', '.join(_LABELS[axis] for axis in named_by)})", "of": list(named_by)},
                "y": {"label": "Sequences per second", "metric": "sequences_per_s"},
                "marks": "points",
            },
            "cases": cases,
        }


_LABELS = {
    "dp": "data parallel",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "cp": "context parallel",
    "vp": "virtual stages",
    "mbs": "microbatch",
    "recompute": "recomputation",
    "offload": "offloaded share",
}


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _micro_batches(batch: int, dp: int) -> list[int]:
    per_replica = batch // dp if batch % dp == 0 else 0
    return [size for size in MICRO_BATCHES if per_replica and per_replica % size == 0]


def experiment_text(fields: Mapping[str, object], header: Sequence[str]) -> str:
    """Return the YAML text of an experiment, with a comment above it and one line for each case."""
    cases = fields["cases"]
    assert isinstance(cases, list)
    above = yaml.safe_dump({k: v for k, v in fields.items() if k != "cases"}, sort_keys=False, width=120)
    lines = [", ".join(f"{axis}: {shown_value(value)}" for axis, value in row.items()) for row in cases]
    return (
        "".join(f"# {line}\n" for line in header) + above + "cases:\n" + "".join(f"  - {{{line}}}\n" for line in lines)
    )


def search_name(model: str, gpus: int, batch: int) -> str:
    """Return the name of a search's experiment: `6.7b-16-gpus-batch-512`."""
    safe = re.sub(r"[^a-z0-9.]+", "-", model.lower()).strip("-.")
    return f"{safe}-{gpus}-gpus-batch-{batch}"


WARM_UP_ITERATIONS = 3
_PAPER_TEXT = "title: Searches for the fastest layout\nvenue: Own\n"


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """Candidates of a search on a cluster, before any job.

    `profile` is the value of --cluster, `settings` are those of --set. `text` is the experiment to write, None if it
    exists.
    """

    entry: Entry
    cluster: Cluster
    profile: str
    scale: str
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    settings: tuple[str, ...] = ()
    text: str | None = None

    @property
    def iterations(self) -> int:
        """Return the iterations of a complete job."""
        return self.candidates[0].case.training.iterations


def prepare_search(
    target: str,
    cluster: str,
    *,
    gpus: int | None = None,
    global_batch_size: int | None = None,
    seq: int | None = None,
    vocab: int | None = None,
    where: str | None = None,
    program: str | None = None,
    on_cpu: bool = False,
    iterations: int = 20,
    name: str | None = None,
    settings: Sequence[str] = (),
) -> PreparedSearch:
    """Return the candidates of a search: the layouts of a model, or the cases of an experiment.

    `target` is an experiment, a model of a paper (`gpt-6.7b`), or the sizes of a model. `where` keeps only candidates
    with these values. ReproError if there is no candidate, with the reasons.
    """
    folders, of_run = find_folders(), read_settings(settings)
    if of_run.iterations is not None:
        what = "--set training.iterations: a search has jobs of two lengths"
        raise ReproError(Problem(what, hint="use --iterations and --short"))
    profile, wanted = find_cluster(folders, cluster, of_run.of_profile), parse_where(where, MEGATRON.axes)
    names = experiment_names(folders)
    if target in names or target in {full.rpartition("/")[2] for full in names}:
        entry = find_experiment(folders, target)
        sizes = {"--gpus": gpus, "--gbs": global_batch_size, "--seq": seq, "--vocab": vocab, "--program": program}
        options = {**sizes, "--cpu": on_cpu or None, "--name": name}
        if given := [option for option, value in options.items() if value is not None]:
            what = f"{target} is an experiment, and its cases have their own sizes and program"
            raise ReproError(Problem(what, hint=f"leave {' and '.join(given)} out; --where selects cases"))
        return replace(_prepared_experiment(entry, profile, cluster, wanted), settings=of_run.texts)
    model = _sized_model(folders, target, {"seq": seq, "vocab": vocab})
    if gpus is None or global_batch_size is None:
        missing = [option for option, value in (("--gpus", gpus), ("--gbs", global_batch_size)) if value is None]
        raise ReproError(Problem(f"a search for a layout of {target} needs {' and '.join(missing)}"))
    space = Space(
        model=model,
        gpus=gpus,
        global_batch_size=global_batch_size,
        gpus_per_node=profile.hardware.gpus_per_node or gpus,
        program=program or PRETRAIN,
        device="cpu" if on_cpu else "gpu",
        keeps_scores=find_megatron(program or PRETRAIN).memory.attention != "flash",
        training=_training(profile, on_cpu, iterations),
        wanted=wanted,
    )
    return replace(_prepared_space(folders, space, profile, cluster, name), settings=of_run.texts)


def _prepared_experiment(entry: Entry, cluster: Cluster, profile: str, wanted: Mapping[str, Value]) -> PreparedSearch:
    """Return the cases of an experiment with these values as candidates."""
    cases = training_cases(select(cases_to_run(entry, PAPER), wanted))
    require_one_task(entry, cases)
    chosen, left_out = candidates(cases, Target.of_cluster(cluster))
    if not chosen:
        raise ReproError(*(Problem(f"{entry.short_name} {one.case.name}: {one.reason}") for one in left_out[:3]))
    return PreparedSearch(entry, cluster, profile, PAPER, tuple(chosen), tuple(left_out))


def require_one_task(entry: Entry, cases: Sequence[TrainingCase]) -> None:
    """Raise ReproError unless all cases train the same model with the same batch size, so that times compare."""
    tasks = [(case.model, case.layout.global_batch_size, case.gpus) for case in cases]
    if len(set(tasks)) > 1:
        first = cases[tasks.index(Counter(tasks).most_common(1)[0][0])].settings
        axes = [axis for axis in ("model", "layers", "hidden", "seq", "gpus", "gbs") if axis in first]
        differ = [axis for axis in axes if len({case.settings.get(axis) for case in cases}) > 1]
        if "model" in differ:
            differ = [axis for axis in differ if axis not in ("layers", "hidden")]
        values = ",".join(f"{axis}={first[axis]}" for axis in differ)
        what = f"{entry.short_name}: its cases differ in {' and '.join(differ)}, so their times do not compare"
        raise ReproError(Problem(what, hint=f"choose one, for example --where {values}"))


def _sized_model(folders: Folders, target: str, sizes: Mapping[str, int | None]) -> NamedModel:
    """Return the model with these sizes; ReproError has every missing size."""
    papers: dict[str, Paper] = {}
    for file in experiment_names(folders).values():
        if file.parent.name not in papers:
            papers[file.parent.name] = read_model(Paper, read_document(file.parent / "paper.yaml"), context=MEGATRON)
    model = find_model(target, papers)
    model = NamedModel(model.label, dict(model.fields) | {k: v for k, v in sizes.items() if v is not None})
    require_complete(model)
    return model


def _training(cluster: Cluster, on_cpu: bool, iterations: int) -> dict[str, Value]:
    """Return the training of a search: bf16 where the GPU has it, else fp16 with a loss scale, without dropout."""
    precision: dict[str, Value] = {"dtype": "fp32" if on_cpu else "bf16"}
    if not on_cpu and cluster.hardware.peak("bf16") is None and cluster.hardware.peak("fp16") is not None:
        precision = {"dtype": "fp16", "loss_scale": 8192}
    warm_up = min(WARM_UP_ITERATIONS, iterations - 1)
    return {**precision, "iterations": iterations, "log_interval": 1, "dropout": 0.0, "warmup_iterations": warm_up}


def _prepared_space(folders: Folders, space: Space, cluster: Cluster, profile: str, name: str | None) -> PreparedSearch:
    """Return the candidates of a space, with the experiment that has them as cases."""
    name = f"{SEARCHES}/{name or search_name(space.model.label, space.gpus, space.global_batch_size)}"
    file = folders.home / "experiments" / f"{name}.yaml"
    rows = list(space.rows())
    if not rows:
        raise ReproError(_no_layout(space))
    places = counted(space.gpus, "GPU") if space.device == "gpu" else f"{counted(space.gpus, 'process')} on CPU cores"
    title = f"Fastest layout of {space.model.label} on {places}, {counted(space.global_batch_size, 'sequence')}"
    cases = training_cases(cases_to_run(_unwritten(name, space.experiment(rows, title), file)))
    chosen, left_out = layout_candidates(cases, Target.of_cluster(cluster))
    if not chosen:
        raise ReproError(*_nothing_fits(space, cluster, left_out))
    header = [f"Written by `repro search` for {cluster.name}: the layouts that its rules allow and its memory holds."]
    fields = space.experiment([space.row_of(one.case) for one in chosen], title)
    text = experiment_text(fields, header)
    entry = _unwritten(name, fields, file)
    if file.exists() and file.read_text(encoding="utf-8") != text:
        hint = "give another --name, or remove the file"
        raise ReproError(Problem("another search has this name", f"{shown(file)}:", hint))
    named_by = [axis for axis in AXES if axis in entry.experiment.named_by]
    named = tuple(_named(one, named_by) for one in chosen)
    return PreparedSearch(entry, cluster, profile, PAPER, named, tuple(left_out), text=text)


def _named(candidate: Candidate, named_by: Sequence[str]) -> Candidate:
    """Return the candidate with the name that it has in the written experiment."""
    settings = candidate.case.settings
    case = replace(candidate.case, point=tuple((axis, settings[axis]) for axis in named_by))
    return replace(candidate, case=case, name=case.name)


def _unwritten(name: str, fields: Mapping[str, object], file: Path) -> Entry:
    """Return an experiment whose file is not read, because it may not exist yet."""
    paper = read_model(Paper, parse_document(_PAPER_TEXT, "paper.yaml"))
    experiment = Experiment.model_validate(fields, context=MEGATRON)
    return Entry(
        name,
        file,
        Document(shown(file), {}),
        experiment,
        paper,
        MEGATRON,
        record=find_megatron(str(fields["program"])),
    )


def _no_layout(space: Space) -> Problem:
    """Return why a space is empty: the values that --where may have, or those that the sizes exclude."""
    number, batch = counted(space.gpus, "GPU"), counted(space.global_batch_size, "sequence")
    what = f"no layout of {space.model.label} on {number} with {batch}"
    rows = list(replace(space, wanted={}).rows())
    if not rows:
        return Problem(what, hint="some data-parallel size must divide the batch, and the stages divide the layers")
    given = ",".join(f"{axis}={shown_value(value)}" for axis, value in space.wanted.items())
    fixed = [axis for axis in space.wanted if axis not in rows[0]]
    if fixed:
        what = f"--where {given}: a search does not vary {' and '.join(fixed)}"
        return Problem(what, hint=f"it varies {', '.join(rows[0])}")
    values = [f"{axis}: {', '.join(_values(rows, axis))}" for axis in space.wanted]
    alone = all(shown_value(value) in _values(rows, axis) for axis, value in space.wanted.items())
    hint = f"there are {'; '.join(values)}{', in other combinations' if alone else ''}"
    return Problem(f"{what} has {given}", hint=hint)


def _values(rows: Sequence[Mapping[str, Value]], axis: str) -> list[str]:
    values = sorted({row[axis] for row in rows}, key=lambda value: (isinstance(value, str), value))
    return [shown_value(value) for value in values]


MOST_GPUS = 4096
"""Largest number of GPUs that a refusal considers."""


def _nothing_fits(space: Space, cluster: Cluster, left_out: Sequence[LeftOut]) -> list[Problem]:
    """Return why no candidate can run: the memory of the smallest one, or the most frequent other reasons."""
    name = f"{space.model.label} on {counted(space.gpus, 'GPU')} of {cluster.name}"
    too_large = [(one, one.memory) for one in left_out if one.memory is not None]
    if not too_large:
        reasons = Counter(one.reason.kind for one in left_out)
        return [Problem(f"{name}: {reason} ({counted(n, 'layout')})") for reason, n in reasons.most_common(3)]
    smallest, memory = min(too_large, key=lambda pair: pair[1].total_bytes)
    term, term_bytes = max(_terms(memory).items(), key=lambda item: item[1])
    enough = _fewest_gpus(space, cluster)
    hint = f"{enough} GPUs are enough" if enough else f"not even {MOST_GPUS} GPUs are enough"
    largest = f"the largest part is {term} ({term_bytes / 1e9:.1f} GB)"
    what = f"the smallest layout, {smallest.case.name}, {smallest.reason.detail}; {largest}"
    return [Problem(f"{name}: {what}", hint=hint)]


def _terms(memory: MemoryEstimate) -> dict[str, float]:
    return {
        "weights": memory.weights_bytes,
        "gradients": memory.gradients_bytes,
        "optimizer states": memory.optimizer_bytes,
        "activations": memory.activations_bytes + memory.working_bytes,
    }


def _fewest_gpus(space: Space, cluster: Cluster) -> int | None:
    """Return the smallest multiple of the GPUs, doubled again and again, on which some layout fits."""
    unlimited = Target(cluster.name, cluster.hardware.model_copy(update={"nodes": MOST_GPUS}))
    gpus = 2 * space.gpus
    while gpus <= MOST_GPUS:
        larger = replace(space, gpus=gpus)
        rows = [row for row in larger.rows() if row["mbs"] == 1 and row["recompute"] == "full"]  # need least memory
        entry = _unwritten(SEARCHES, larger.experiment(rows, "-"), Path(SEARCHES)) if rows else None
        if entry is not None and candidates(training_cases(cases_to_run(entry)), unlimited)[0]:
            return gpus
        gpus *= 2
    return None


def write_experiment(prepared: PreparedSearch) -> None:
    """Write the experiment, and the paper.yaml of its folder, unless they exist."""
    if prepared.text is None:
        return
    folder = prepared.entry.file.parent
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in ((folder / "paper.yaml", _PAPER_TEXT), (prepared.entry.file, prepared.text)):
        if not file.exists():
            with written_whole(file) as part:
                part.write_text(text, encoding="utf-8")
