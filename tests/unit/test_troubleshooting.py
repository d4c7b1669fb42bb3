"""docs/troubleshooting.md: each log line has the failure class that the page names, each reason its meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from orchestrator.ledger.tables import ENDED
from orchestrator.reading.causes import cause
from orchestrator.reading.failure import Ending, Failure, failure_of
from orchestrator.slurm.reasons import explain_reason, explain_rejection
from tests.pages import CHECKOUT

PAGE = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = {text.partition("\n")[0]: text for text in PAGE.split("\n### ")[1:]}
_CLASS = re.compile(r"^Failure class: `([\w-]+)`\.$", re.MULTILINE)
OF_LOGS = {name: match[1] for name, text in SYMPTOMS.items() if (match := _CLASS.search(text))}


def quoted(symptom: str) -> list[str]:
    """Return the lines of the first block."""
    block = re.search(r"\n\n((?:    .+\n)+)", SYMPTOMS[symptom])
    return [line[4:] for line in block[1].splitlines()] if block else []


def messages(before: str, between: str) -> Iterator[tuple[str, str]]:
    """Yield both parts of each quoted line that has these texts."""
    for symptom in SYMPTOMS:
        for line in quoted(symptom):
            if line.startswith(before) and between in line:
                first, _, second = line.removeprefix(before).partition(between)
                yield first.strip(), second


@pytest.mark.parametrize("symptom", OF_LOGS)
def test_a_log_line_has_the_failure_class_of_its_symptom(symptom: str) -> None:
    found = cause("".join(f"{line}\n" for line in quoted(symptom)).encode())
    state = "TIMEOUT" if OF_LOGS[symptom] == "timeout" else "FAILED"
    assert str(failure_of(Ending(ENDED, state, 1, None), found.kind if found else None)) == OF_LOGS[symptom]


def test_reasons_of_waiting_and_hints_of_refusals_are_those_of_the_code() -> None:
    reasons = list(messages("WHY  ", ": "))
    assert len(reasons) > 5 and [explain_reason(reason).meaning for reason, _ in reasons] == [
        text for _, text in reasons
    ]
    refused = [
        (text, hint) for text, hint in messages("repro: ", ". Hint: ") if "profile" in hint and "write" not in hint
    ]
    assert len(refused) > 3 and [explain_rejection(text).hint for text, _ in refused] == [hint for _, hint in refused]


def test_every_symptom_has_a_cause_and_a_remedy_and_every_class_is_named() -> None:
    assert [name for name, text in SYMPTOMS.items() if "**Cause.**" not in text or "**Remedy.**" not in text] == []
    of_others = {Failure.NOT_SUBMITTED, Failure.REFUSED, Failure.PREEMPTED, Failure.STOPPED, Failure.CANCELLED}
    explained = set(Failure) - of_others - {Failure.NODE_FAIL, Failure.PROGRAM}
    assert {str(failure) for failure in explained} <= set(re.findall(r"`([\w-]+)`", PAGE))
