"""Tests of the files of experiments that were submitted by a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import ReproError
from orchestrator.ledger.runs import experiment_files, record_experiment_file
from tests.recorded_jobs import new_ledger


def test_another_file_takes_the_name_of_an_experiment_only_if_the_first_file_is_gone(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    first, link, second = (tmp_path / name for name in ("first.yaml", "link.yaml", "second.yaml"))
    first.touch()
    link.symlink_to(first)
    second.touch()
    record_experiment_file(ledger, "mine/figure", first)
    record_experiment_file(ledger, "mine/figure", link)  # the same file
    with pytest.raises(ReproError, match="second.yaml: mine/figure was submitted from another file, .*link.yaml"):
        record_experiment_file(ledger, "mine/figure", second)
    assert experiment_files(ledger) == {"mine/figure": link}
    first.unlink()
    record_experiment_file(ledger, "mine/figure", second)
    assert experiment_files(ledger) == {"mine/figure": second}
