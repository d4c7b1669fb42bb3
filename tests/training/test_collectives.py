"""The shipped sweep of collectives, run by two processes with gloo."""

from __future__ import annotations

import pytest

from orchestrator.programs.output import Scalar
from tests.shipped_programs import problem_texts, shipped_program
from tests.training.launching import plain_environments, run_started

PROGRAM = shipped_program("machine/collectives")
SETTINGS = {"gpus": 2, "smallest": 1024, "largest": 16384, "factor": 4, "sizes": 3}


@pytest.mark.parametrize("collective", PROGRAM.content["matrix"]["collective"])
def test_a_sweep_is_verified(collective: str) -> None:
    settings = SETTINGS | {"collective": collective}
    _, script, *options = [PROGRAM.fields.filled(word, settings) for word in PROGRAM.fields.command]
    environments = [{**one, "CUDA_VISIBLE_DEVICES": ""} for one in plain_environments(2)]
    first, second = run_started([[str(PROGRAM.folder / script), *options]] * 2, environments)
    assert (first.exit_code, second.exit_code) == (0, 0), first.stderr + second.stderr
    result = PROGRAM.judged(first.stdout.encode(), settings)
    assert problem_texts(result) == ()
    assert list(result.output.rows) == [(1024,), (4096,), (16384,)]
    assert not second.stdout


def test_a_wrong_element_is_counted_and_fails_the_job() -> None:
    """Each process multiplies what it receives by 1, except for one element of rank 1."""
    program = f"""
import sys
sys.path.insert(0, {str(PROGRAM.folder)!r})
import collectives, torch.distributed as dist
right = dist.all_reduce
def wrong(data):
    right(data)
    if data.numel() == 256 and dist.get_rank() == 1:
        data[7] += 1
dist.all_reduce = wrong
sys.argv = ["collectives.py", "all_reduce", "--from", "1024", "--to", "4096", "--factor", "4"]
sys.exit(collectives.main())
"""
    environments = [{**one, "CUDA_VISIBLE_DEVICES": ""} for one in plain_environments(2)]
    finished = run_started([["-c", program]] * 2, environments)
    assert [one.exit_code for one in finished] == [1, 1]
    settings: dict[str, Scalar] = {**SETTINGS, "collective": "all_reduce", "largest": 4096, "sizes": 2}
    problems = problem_texts(PROGRAM.judged(finished[0].stdout.encode(), settings))
    assert problems == ("out_of_bounds == 0: out_of_bounds is 1", "wrong_in == 0: wrong_in is 1 at size=1024 (line 11)")
