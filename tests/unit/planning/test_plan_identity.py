"""Tests of job identities: equal for the same program and case, and only for these."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from orchestrator.catalog.experiment import scale_names
from orchestrator.megatron.case import TrainingCase, non_default
from orchestrator.megatron.model import Layout, ModelShape, Training
from orchestrator.planning.plan import identity
from orchestrator.programs.command import BoundProgram
from tests.cases import expand
from tests.unit.catalog.entries import shipped

CASE = expand(shipped())[0]
PROGRAM = BoundProgram("megatron-2021", ("python", "-u", "x.py"), ("--a",), code="c1", image="i1", image_path="/p1")
BASE = identity(CASE, PROGRAM, "selene")


def test_identity_is_that_of_the_first_release() -> None:
    """A change of the identity orphans every job of every ledger and needs a migration."""
    shape, layout = ModelShape(4, 256, 8, 64, 1024), Layout(4, 2, 2, 1, 16)
    case = TrainingCase(
        experiment="p/f",
        scale="cpu",
        point=(("pp", 2),),
        program="pretrain",
        model=shape,
        layout=layout,
        training=Training(),
        device="cpu",
    )
    assert identity(case, BoundProgram("pretrain", (), (), code="c"), "local") == "690bc6859288"


def test_each_point_has_its_own_stable_identity() -> None:
    assert identity(expand(shipped())[0], PROGRAM, "selene") == BASE
    scales = scale_names(shipped().experiment)
    every = [identity(case, PROGRAM, "x") for scale in scales for case in expand(shipped(), scale)]
    assert len(set(every)) == len(every) == 26
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in every)


@pytest.mark.parametrize(
    "case",
    [
        replace(CASE, training=replace(CASE.training, warmup_iterations=9)),
        replace(CASE, time_limit="9:00:00"),
        replace(CASE, gpu_memory_gb=1),
        replace(CASE, experiment="sc21/figure-99", scale="other", point=(("pp", 2),)),
    ],
    ids=["warm-up", "time limit", "memory it is laid out for", "names"],
)
def test_names_queue_settings_and_warm_up_do_not_change_the_identity(case: TrainingCase) -> None:
    assert identity(case, PROGRAM, "selene") == BASE


def test_paths_of_python_and_images_do_not_change_the_identity() -> None:
    moved = replace(PROGRAM, python="/opt/python", image_path="/p2", mounts=("/m",), python_path="/other")
    assert identity(CASE, moved, "selene") == BASE


@pytest.mark.parametrize(
    ("case", "program", "cluster"),
    [
        (CASE, PROGRAM, "other"),
        (CASE, replace(PROGRAM, code="c2"), "selene"),
        (CASE, replace(PROGRAM, image="i2"), "selene"),
        (CASE, replace(PROGRAM, image=None), "selene"),
        (CASE, replace(PROGRAM, image_digest="sha256:" + 64 * "0"), "selene"),
        (replace(CASE, program="pretrain"), PROGRAM, "selene"),
        (replace(CASE, device="cpu"), PROGRAM, "selene"),
        (replace(CASE, model=replace(CASE.model, layers=64)), PROGRAM, "selene"),
        (replace(CASE, layout=replace(CASE.layout, sequence_parallel=True)), PROGRAM, "selene"),
        (replace(CASE, training=replace(CASE.training, iterations=26)), PROGRAM, "selene"),
    ],
    ids=["cluster", "code", "image", "no image", "image digest", "program", "device", "model", "layout", "training"],
)
def test_program_layout_and_image_change_the_identity(case: TrainingCase, program: BoundProgram, cluster: str) -> None:
    assert identity(case, program, cluster) != BASE


def test_every_field_of_layout_and_model_changes_the_identity() -> None:
    for part in ("model", "layout"):
        value = getattr(CASE, part)
        for field in fields(value):
            changed = replace(value, **{field.name: another(getattr(value, field.name))})
            assert identity(replace(CASE, **{part: changed}), PROGRAM, "selene") != BASE, field.name


def another(value: object) -> object:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value * 2 + 1 if isinstance(value, int) else f"not {value}"


def test_arguments_of_a_case_change_the_identity() -> None:
    assert identity(replace(CASE, arguments=("--log-energy",)), PROGRAM, "selene") != BASE


@dataclass(frozen=True)
class LaterTraining(Training):
    """Training with a field that a later version might add."""

    optimizer: str = "adam"
    expert_parallel: int | None = None


def test_new_field_with_default_changes_no_identity() -> None:
    training = CASE.training
    later = LaterTraining(**{field.name: getattr(training, field.name) for field in fields(training)})
    assert non_default(later) == non_default(training)
    assert identity(replace(CASE, training=later), PROGRAM, "selene") == BASE
    assert identity(replace(CASE, training=replace(later, optimizer="sgd")), PROGRAM, "selene") != BASE
