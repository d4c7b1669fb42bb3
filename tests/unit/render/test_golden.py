"""Whole scripts, compared exactly: what a person reads, and what is submitted, changes only on purpose.

`pytest tests/unit/render --update-golden` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.launch.render import render_array, render_job, render_queue
from tests.unit.render.plans import TEMPLATES, kwai, local, plain_slurm, plans, selene

GOLDEN = Path(__file__).resolve().parent / "golden"
RUN = Path("/runs/20261121-092041-bd57")


def script(name: str, folder: Path) -> str:
    if name == "selene":
        cluster = selene(folder)
        return render_job(plans(cluster, "paper")[4], cluster, RUN / "pp8-tp8-gbs32", TEMPLATES)
    if name == "slurm_without_containers":
        cluster = plain_slurm(folder)
        return render_job(plans(cluster, "quad")[2], cluster, RUN / "pp2-tp2-gbs32", TEMPLATES)
    if name == "kwai":
        cluster = kwai(folder)
        return render_job(plans(cluster, "paper", "atc-table-8")[1], cluster, RUN / "ours", TEMPLATES)
    if name == "local":
        cluster = local(folder)
        return render_job(plans(cluster, "cpu")[0], cluster, RUN / "pp1-tp4-gbs4", TEMPLATES)
    if name == "array":
        cluster = selene(folder)
        found = plans(cluster, "paper")[:2]
        return render_array(
            found, cluster, [RUN / p.case.slug / "job.sh" for p in found], RUN / "submissions", TEMPLATES
        )
    return render_queue([RUN / "a" / "job.sh", RUN / "b c" / "job.sh"], Path("/runs/.lock"), TEMPLATES)


@pytest.mark.parametrize("name", ["selene", "slurm_without_containers", "kwai", "local", "array", "queue"])
def test_the_script_is_to_the_letter_the_one_that_was_looked_at(name: str, tmp_path: Path, update_golden: bool) -> None:
    file, rendered = GOLDEN / f"{name}.sh", script(name, tmp_path)
    if update_golden:
        file.write_text(rendered, encoding="utf-8")
    assert rendered == file.read_text(encoding="utf-8")
