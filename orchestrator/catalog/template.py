"""First versions of an experiment and of its `paper.yaml` with comments, and JSON Schemas of both for editors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic.json_schema import JsonSchemaValue

from orchestrator.catalog.experiment import Experiment, Paper
from orchestrator.catalog.library import is_path
from orchestrator.config.model import Strict
from orchestrator.errors import Problem, ReproError
from orchestrator.files import require_place
from orchestrator.paths import find_folders
from orchestrator.programs.record import programs
from orchestrator.text import printable_line

PAPER_TEMPLATE = """\
# The paper of the experiments in this folder.
title: Title of the paper
venue: Conference or journal
# machine: {nodes: 8, gpus_per_node: 8, gpu: A100-SXM4-80GB, gpu_memory_gb: 80, peak_tflops: {bf16: 312}}
"""

EXPERIMENT_TEMPLATE = """\
# A figure of a paper. Guide: docs/how-to/add-an-experiment.md. Check: repro experiments check FILE
figure: Figure 1
title: Pipeline against tensor parallelism

# The published size. `scales` below has smaller ones.
program: pretrain             # its name: repro programs list
gpus: 8
model: {layers: 8, hidden: 1024, heads: 8, seq: 1024, vocab: 51200}    # seq in tokens
time_limit: "0:30:00"

# Every combination of the matrix is a case. `rules` derive further settings, `fixed` is the same in every case.
matrix:
  pp: [1, 2, 4]               # pipeline-parallel size
  gbs: [8, 16]                # global batch size, in sequences
rules:
  tp: gpus / pp               # tensor-parallel size
fixed:
  mbs: 1                      # microbatch size, in sequences
training: {dtype: bf16, iterations: 20, warmup_iterations: 5}

# The plot of the paper's figure.
plot:
  x: {label: "(p, t)", of: [pp, tp]}
  y: {label: Achieved teraFLOP/s per GPU, metric: tflops_per_gpu}
  series: {label: Batch size, of: gbs}

# Numbers of the paper. how: printed, derived, traced from the plot, or read off the plot.
published:
  - {where: {pp: 1, gbs: 8}, metric: tflops_per_gpu, value: 140, how: printed, confirmed: false, source: table 1}

# Statements of the paper about the figure.
claims:
  - id: tensor-parallelism-is-best-in-a-node
    kind: peak
    says: Throughput is highest where the tensor-parallel size is the number of GPUs of a node.
    source: section 1
    stated: printed           # printed in the paper, or derived from its numbers
    judged_at: [paper]
    not_judged_because: The other scales have no GPUs.
    at: {tp: gpus_per_node}

# Smaller sizes of the same figure, the largest first.
scales:
  cpu:
    about: 3.4 million parameters in 4 processes on CPU cores
    device: cpu
    gpus: 4                   # processes
    model: {layers: 4, hidden: 256, heads: 8, seq: 64, vocab: 1024}
    training: {dtype: fp32, iterations: 8}
"""


def new_experiment(file: Path | str) -> list[Path]:
    """Write a commented experiment, and `paper.yaml` beside it if there is none; return the written files."""
    file = Path(file).expanduser()
    if not is_path(file.name) or file.stem == "paper":
        raise ReproError(Problem("not the file of an experiment", f"{file}:", "for example my/figure-1.yaml"))
    if file.exists():
        raise ReproError(Problem("exists already", f"{file}:", "give another file"))
    if file.parent.exists():
        require_place(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    paper = file.parent / "paper.yaml"
    texts = {file: ("schema.json", EXPERIMENT_TEMPLATE)}
    if not paper.exists():
        texts[paper] = "paper.schema.json", PAPER_TEMPLATE
    schemas = find_folders().shipped / "experiments"
    for path, (schema, text) in texts.items():
        first = f"# yaml-language-server: $schema={printable_line(str(schemas / schema))}\n"
        path.write_text(first + text, encoding="utf-8")
    return list(texts)


def experiment_schema(*, of_paper: bool = False) -> JsonSchemaValue:
    """Return the JSON Schema (draft 2020-12) of an experiment, or of `paper.yaml`.

    `find_experiment` also checks rules about several fields, such as an axis in both `matrix` and `fixed`, and claims
    of further kinds.
    """
    title, model = ("A paper", Paper) if of_paper else ("An experiment", Experiment)
    schema = _with_groups(model.model_json_schema(by_alias=True))
    if not of_paper:
        claims = schema["properties"]["claims"]
        own = {"enum": list(claims["items"]["discriminator"]["mapping"])}
        kind = {"description": "Kind of claim of an installed package.", "type": "string", "not": own}
        added = {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}
        claims["items"] = {"anyOf": [claims["items"], added]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **schema}


def experiment_schema_text(*, of_paper: bool = False) -> str:
    """Return the content of `experiments/schema.json`, or of `experiments/paper.schema.json`."""
    return json.dumps(experiment_schema(of_paper=of_paper), indent=2, ensure_ascii=False) + "\n"


def _with_groups(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Return a schema in which `model:` and `training:` have the fields that programs give them."""
    groups = {key: model for program in programs().values() for key, model in program.names.groups.items()}
    result = _without_titles(schema, groups)
    used = [model for key, model in groups.items() if f"#/$defs/{model.__name__}" in json.dumps(result)]
    fields = {model.__name__: _without_titles(model.model_json_schema(by_alias=True), {}) for model in used}
    return result | {"$defs": dict(sorted((result["$defs"] | fields).items()))}


def _without_titles(schema: JsonSchemaValue, groups: Mapping[str, type[Strict]]) -> JsonSchemaValue:
    """Return the schema without the titles that pydantic derives from names, and without defaults that are null.

    A mapping with the format of a group of axes becomes a reference to the fields of the group.
    """
    group = groups.get(schema.get("format", ""))
    result: JsonSchemaValue = {"$ref": f"#/$defs/{group.__name__}"} if group is not None else {}
    for key, item in schema.items():
        if key in ("properties", "$defs"):
            result[key] = {name: _without_titles(field, groups) for name, field in item.items()}
        elif key == "title" or (key == "default" and item is None) or (group and key in ("type", "format")):
            continue
        elif key == "description":
            result[key] = " ".join(item.split())
        elif isinstance(item, dict) and key not in ("default", "mapping"):
            result[key] = _without_titles(item, groups)
        elif isinstance(item, list) and key in ("anyOf", "oneOf"):
            result[key] = [_without_titles(choice, groups) for choice in item]
        else:
            result[key] = item
    return result
