"""Tests of the reasons why claims are not judged at a scale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.catalog.claims import Claim
from orchestrator.catalog.expand import expand
from orchestrator.catalog.experiment import scale_names
from orchestrator.catalog.library import experiment_names, find_experiment
from orchestrator.errors import ReproError
from orchestrator.paths import Folders

FOLDERS = Folders(shipped=Path(__file__).parents[3], home=Path(__file__).parents[3])
UNTRUE = {
    "cpu": r"\b(one|two|four|eight|these|the) (GPUs?|H100s)\b|\bGPUs? of \d|\d GB\b",
    "single": r"^(two|four|eight) GPUs\b|CPU cores",
    "pair": r"\b(one GPU|four GPUs|eight GPUs)\b|CPU (cores|memory)",
}
"""Scale -> words about a machine that the scale does not have."""


def test_a_reason_speaks_only_of_the_machine_of_its_scale() -> None:
    wrong, seen = [], 0
    for name in experiment_names(FOLDERS):
        experiment = find_experiment(FOLDERS, name).experiment
        claims: list[Claim] = experiment.claims
        for claim in claims:
            for scale in set(scale_names(experiment)) - set(claim.judged_at):
                reason, seen = claim.why_not_at(scale), seen + 1
                if isinstance(claim.not_judged_because, dict):
                    assert scale in claim.not_judged_because, f"{name} {claim.id}: no reason at {scale}"
                if scale in UNTRUE and re.search(UNTRUE[scale], reason):
                    wrong.append(f"{name} {claim.id} at {scale}: {reason}")
    assert seen > 30 and not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("scale", "problem"),
    [
        ("cpuu", 'cpuu: no such scale. Did you mean "cpu"?'),
        ("paper", "not_judged_because has a reason for paper, at which the claim is judged"),
    ],
)
def test_a_reason_at_a_wrong_scale_is_refused_with_its_line(tmp_path: Path, scale: str, problem: str) -> None:
    folder = tmp_path / "experiments" / "own"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text((FOLDERS.shipped / "experiments" / "sc21" / "paper.yaml").read_text())
    text = (FOLDERS.shipped / "experiments" / "sc21" / "figure-13.yaml").read_text()
    reason = "not_judged_because: one node has no larger tensor-parallel size for comparison"
    assert reason in text
    (folder / "figure-98.yaml").write_text(text.replace(reason, f"not_judged_because: {{{scale}: a reason}}"))
    with pytest.raises(ReproError) as refused:
        expand(find_experiment(Folders(shipped=FOLDERS.shipped, home=tmp_path), "figure-98"), "cpu")
    assert problem in str(refused.value) and "figure-98.yaml:" in str(refused.value)
