"""A profile with every program, and a case for each of them."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.catalog.experiment import Paper
from orchestrator.megatron.case import TrainingCase
from orchestrator.megatron.programs import find_megatron
from orchestrator.paths import Folders
from tests.cases import expand
from tests.unit.catalog.entries import CHECKOUT, find_case, shipped

FOLDERS = Folders(shipped=CHECKOUT, home=CHECKOUT)

EVERYWHERE = """\
programs:
  megatron-2021: {checkout: /2021, data_path: /2021/d, vocab_file: /2021/v, merge_file: /2021/m}
  megatron-kwai: {checkout: /kwai, data_path: /kwai/d}
  megatron-jan-2024: {checkout: /jan, data_path: /jan/d}
  megatron-core-0.14: {checkout: /core, data_path: /core/d, vocab_file: /core/v, merge_file: /core/m}
  megatron-tutorial-fork: {checkout: /fork, data_path: /fork/d, vocab_file: /fork/v, merge_file: /fork/m}
  megatron-alpa: {checkout: /alpas, benchmark: /alpa/osdi22_artifact/megatron}
  megatron-2026: {checkout: /today}
"""


def one_of_each() -> list[tuple[TrainingCase, Paper]]:
    """Return a case of each program with its paper."""
    rows = [
        ("figure-13", "pp=8,tp=8,gbs=32"),
        ("alpa-gpt", "gpus=4"),
        ("atc-table-8", "case=ours"),
        ("atc-table-8", "case=origin"),
        ("core-dp", "case=101"),
        ("tutorial-cp", "case=312"),
    ]
    cases = [(find_case(experiment, name), shipped(experiment).paper) for experiment, name in rows]
    return [*cases, (replace(cases[0][0], program="megatron-2026"), cases[0][1])]


def pretrain_case() -> tuple[TrainingCase, Paper]:
    return expand(shipped(), "quad")[0], shipped().paper


SITE_FIELDS = {
    "checkout": "/checkout",
    "data_path": "/DATA",
    "vocab_file": "/VOCAB",
    "merge_file": "/MERGE",
    "benchmark": "/alpa/osdi22_artifact/megatron",
}


def arguments_of(program: str, case: TrainingCase, **fields: object) -> list[str]:
    """Return the arguments of a case with these fields of the site; fields that are required have a value."""
    record = find_megatron(program)
    required = {name: SITE_FIELDS[name] for name, field in record.site.model_fields.items() if field.is_required()}
    return record.all_arguments(case, record.site.model_validate(required | fields))
