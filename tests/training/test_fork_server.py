"""Forked processes have the state of new processes. test_launching.py compares their training."""

from __future__ import annotations

import json

from tests.training.launching import run_forked, run_started

STATE = ["-m", "tests.training.process_state"]


def test_a_forked_process_has_the_state_of_a_started_one() -> None:
    command, environment = [*STATE, "argument", "--flag"], {"OF_TEST": "1"}
    (started,) = run_started([command], [environment])
    forked = run_forked([command] * 2, [environment] * 2)
    (expected, first), (state, second), (same, third) = (json.loads(done.stdout) for done in (started, *forked))
    assert state == same == expected
    assert len({*first, *second, *third}) == 9, "each process draws its own random numbers"


def test_a_variable_of_one_forked_process_is_not_in_the_next() -> None:
    for environment in ({"OF_TEST": "1"}, {}):
        (done,) = run_forked([STATE], [environment])
        assert json.loads(done.stdout)[0]["variables"] == environment


def test_an_error_of_a_forked_process_has_exit_code_1_and_a_traceback() -> None:
    failed, well = run_forked([["-m", "tests.training.no_such_module"], STATE], [{}] * 2)
    assert (failed.exit_code, failed.stdout, well.exit_code) == (1, "", 0)
    assert "Traceback" in failed.stderr and "No module named tests.training.no_such_module" in failed.stderr
