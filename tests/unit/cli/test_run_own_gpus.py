"""Tests of the GPUs that local jobs see, and of the refusal if there are too few."""

from __future__ import annotations

import os

import pytest

from tests.unit.cli.calling import Caller

pytestmark = pytest.mark.slow

ONE = ("figure-13", "--cluster", "here", "--scale", "quad", "--where", "pp=1,gbs=32")


@pytest.fixture
def eight_gpus(repro: Caller, monkeypatch: pytest.MonkeyPatch) -> Caller:
    """`repro` on a machine with eight H200, whose program writes down those that it sees."""
    smi, program = repro.site.folder / "bin" / "nvidia-smi", repro.site.folder / "train.sh"
    smi.parent.mkdir()
    smi.write_text('#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-a$i, NVIDIA H200, 143771"; done\n')
    smi.chmod(0o755)
    first, rest = program.read_text().split("\n", 1)
    program.write_text(f'{first}\necho "$CUDA_VISIBLE_DEVICES" >"$(dirname "$0")/seen"\n{rest}')
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return repro


@pytest.mark.parametrize(
    ("named", "expected"),
    [(None, "0,1,2,3"), ("6,5,4,3,2", "6,5,4,3"), ("GPU-a7,GPU-a1,GPU-a2,GPU-a0", "GPU-a7,GPU-a1,GPU-a2,GPU-a0")],
)
def test_a_job_sees_as_many_as_it_asks_for_of_those_that_the_submitting_shell_names(
    named: str | None, expected: str, eight_gpus: Caller
) -> None:
    if named is not None:
        eight_gpus.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    done = eight_gpus("submit", *ONE, "--wait")
    assert done.returncode == 0, done.stderr
    assert (eight_gpus.site.folder / "seen").read_text() == f"{expected}\n"


@pytest.mark.parametrize(("named", "has"), [("2,3", "2"), ("GPU-a7", "1"), ("", "none")])
def test_fewer_than_a_job_asks_for_are_refused_before_anything_is_recorded(
    named: str, has: str, eight_gpus: Caller
) -> None:
    eight_gpus.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    done = eight_gpus("submit", *ONE)
    assert (done.returncode, done.stdout, len(done.complaints)) == (2, "", 1)
    assert done.complaints[0].startswith(f"repro: figure-13 pp=1,tp=4,gbs=32: needs 4 GPUs, this machine has {has}")
    assert not (eight_gpus.site.folder / "results.db").exists() and eight_gpus.site.started() == []


def test_a_job_on_cpu_cores_sees_none_of_them(eight_gpus: Caller) -> None:
    done = eight_gpus("submit", *ONE[:4], "cpu", "--where", "pp=1,gbs=4", "--wait")
    assert done.returncode == 0, done.stderr
    assert (eight_gpus.site.folder / "seen").read_text() == "\n"
