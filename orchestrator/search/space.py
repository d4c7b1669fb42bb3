"""Space of a search: all layouts of a model on a number of GPUs with one batch size, as an experiment file."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from orchestrator.catalog.axes import AXES
from orchestrator.catalog.case import Case, shown_value
from orchestrator.catalog.experiment import ModelFields
from orchestrator.catalog.paper import Paper
from orchestrator.config.model import read_model
from orchestrator.config.settings import parse_settings, settings_document
from orchestrator.errors import Problem, ReproError, did_you_mean
from orchestrator.job_spec import Value

MOST_MICRO_BATCH = 32
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
        return _model_of_sizes(text)
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
    shapes = {tuple(sorted(fields.model_dump(exclude_none=True).items())) for fields in matches.values()}
    if len(shapes) > 1:
        raise ReproError(Problem(f"{text}: could be {' or '.join(matches)}", hint="give the paper, too"))
    name, fields = next(iter(matches.items()))
    return NamedModel(_plain(name.rpartition("/")[2]), fields.model_dump(exclude_none=True))


def _plain(name: str) -> str:
    return name.lower().removeprefix("gpt-")


def _model_of_sizes(text: str) -> NamedModel:
    document = settings_document(parse_settings(text.split(",")))
    fields = read_model(ModelFields, document, lambda path: document.place(path).in_message)
    sizes = fields.model_dump(exclude_none=True)
    return NamedModel(f"{sizes.get('layers')}x{sizes.get('hidden')}", sizes)


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
    workload: str
    device: str = "gpu"
    keeps_scores: bool
    training: Mapping[str, Value]
    wanted: Mapping[str, Value]

    @staticmethod
    def row_of(case: Case) -> dict[str, Value]:
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
                _virtual_stages(layers, pp), _micro_batches(self.global_batch_size, dp), self._recomputation()
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
        shared = {axis: value for axis, value in _common(rows).items() if axis not in named_by}
        varied = [axis for axis in AXES if axis in rows[0] and axis not in shared]
        cases = [{axis: row[axis] for axis in varied} for row in rows]
        return {
            "figure": "search",
            "title": title,
            "workload": self.workload,
            **({"device": "cpu"} if self.device == "cpu" else {}),
            "gpus": self.gpus,
            "model": dict(self.model.fields),
            "training": dict(self.training),
            "fixed": {"gbs": self.global_batch_size, **shared},
            "named_by": named_by,
            "axes": {
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


def _common(rows: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    return {axis: value for axis, value in rows[0].items() if all(row[axis] == value for row in rows)}


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, in order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _virtual_stages(layers: int, pp: int) -> list[int]:
    return [1] if pp == 1 else divisors(layers // pp)


def _micro_batches(batch: int, dp: int) -> list[int]:
    per_replica = batch // dp if batch % dp == 0 else 0
    return [
        size
        for size in (2**n for n in range(6))
        if size <= MOST_MICRO_BATCH and per_replica and per_replica % size == 0
    ]


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
