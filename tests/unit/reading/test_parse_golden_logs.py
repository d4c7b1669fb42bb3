"""Tests of whole logs, one of each version and dialect, and their content. Each pair in `logs/` is tested.

    python -m tests.unit.reading.test_parse_golden_logs

writes the expectation of each log that has none. Check it by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.megatron.logs.iteration_lines import COLUMNS, IterationLines
from orchestrator.megatron.logs.parse import LogFacts, LogReport, effective_of, read_log, read_part
from tests.causes import megatron_cause

FOLDER = Path(__file__).parent / "logs"
LOGS = sorted(FOLDER.glob("*.log"))


def content_of(log: bytes) -> dict[str, Any]:
    """Return the content of a log, without empty facts and the state for the next part. A line is its numbers."""
    report, why = read_log(log), megatron_cause(log)
    facts = {name: value for name, value in report.facts.as_json().items() if name not in ("version", "unfinished")}
    assert isinstance(report.iterations, IterationLines)
    lines = [
        [getattr(line, name, planned) for name in COLUMNS]
        for line, planned in zip(report.iterations, report.iterations.planned, strict=True)
    ]
    return {
        "facts": {name: value for name, value in facts.items() if value not in (None, False, 0, {})},
        "columns": " ".join(COLUMNS),
        "iterations": [" ".join("-" if number is None else str(number) for number in line) for line in lines],
        "not finite": [line.iteration for line in report.iterations if not line.is_finite],
        **({"cause": str(why), "rank": why.rank} if why else {}),
    }


def in_parts(log: bytes, ends: Iterator[int]) -> LogReport:
    """Read a log that grows to these lengths, and store the facts after each part."""
    facts, parts, start = LogFacts(), [], 0
    for end in [*ends, len(log)]:
        part = read_part(log[start:end], LogFacts.from_json(json.loads(json.dumps(facts.as_json()))), end == len(log))
        parts.append(part)
        facts, start = part.facts, start + part.consumed
    return LogReport(effective_of(parts), facts)


@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.stem)
def test_a_golden_log_has_its_content_also_if_it_is_read_in_parts(log: Path) -> None:
    text = log.read_bytes()
    assert content_of(text) == yaml.safe_load(log.with_suffix(".yaml").read_text())
    lines = [at + 1 for at, byte in enumerate(text) if byte == ord("\n")]
    for ends in (lines, range(100, len(text), 100), range(997, len(text), 997)):
        assert in_parts(text, iter(ends)) == read_log(text)


def test_each_expectation_has_its_log() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {log.stem for log in LOGS} and len(LOGS) > 10


if __name__ == "__main__":
    for log in LOGS:
        if not log.with_suffix(".yaml").exists():
            text = yaml.safe_dump(content_of(log.read_bytes()), sort_keys=False, width=120)
            log.with_suffix(".yaml").write_text(text)
