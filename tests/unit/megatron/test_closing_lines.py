"""How a program says that it is done."""

from __future__ import annotations

import pytest

from orchestrator.megatron.logs.setup import last_done, last_validation

VALIDATION = b" validation loss at %s | lm loss value: 9.500000E+00 | lm loss PPL: 1.335973E+04 | \n"


@pytest.mark.parametrize("mark", [b"[after training is done]", b"[exiting program at iteration 20]"])
def test_the_end_of_training_is_seen(mark: bytes) -> None:
    log = b"0: " + mark + b" datetime: x\n0: " + mark + b" datetime: x\n"
    assert last_done(log, 0, len(log)) == log.rfind(mark)


@pytest.mark.parametrize(
    "mark", [b"[exiting program after 60.0 minutes]", b"[exiting program after receiving SIGTERM.]"]
)
def test_what_was_told_to_end_is_not_done(mark: bytes) -> None:
    assert last_done(mark, 0, len(mark)) is None


@pytest.mark.parametrize(
    "where", [b"iteration 10", b"the end of training for val data", b"iteration 10 on validation set"]
)
def test_the_last_validation_is_read_and_not_the_test_after_it(where: bytes) -> None:
    log = VALIDATION % b"iteration 5" + VALIDATION % where
    tests = (VALIDATION % b"the end of training for test data", VALIDATION % b"iteration 10 on test set")
    found = last_validation(log + b"".join(tests), 0, 10_000)
    assert found == (log.rfind(b" validation loss"), 9.5)
    assert last_validation(tests[0], 0, len(tests[0])) is None
