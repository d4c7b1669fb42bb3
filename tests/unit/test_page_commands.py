"""Commands of the pages, run one after the other at a site whose training program is a stand-in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import CHECKOUT, Command, commands, page_names
from tests.stand_in_site import Site

pytestmark = pytest.mark.slow

# Commands that only the parser checks (test_pages.py), with the reason.
NOT_RUN = {
    r"clusters (new|check)|images import": "asks a Slurm: tests/slurm/test_check_on_slurm.py, test_images_on_slurm.py",
    r"submit (?!.*(--dry-run|--cluster local))": "submits to a Slurm: tests/slurm",
    r"submit over-the-edge": "needs GPUs: tests/gpu",
    r"search (?!.*--simulate)": "submits to a cluster: tests/slurm/test_search_on_slurm.py",
    r"workloads fetch": "needs a network: tests/unit/launch/test_fetch.py",
    r"nodes (deny|allow)": "needs jobs on a Slurm: tests/unit/cli/test_nodes.py",
    r"retry .*--class (nccl-timeout|configuration|cancelled|host-oom)|retry .*--wait": "no job failed here",
    r"compare (selene|here|figure-13 2026)": "needs results of two clusters or dates: tests/unit/cli/test_compare.py",
    r"(bundle|collect) .*--(sign|allowed-signers|cluster (selene|here))": "needs a key, or results of that cluster",
    r"logs (JOB|77a694) --rank|claims .*--attempt 2|forget 3f2a --attempt": "needs several ranks or attempts",
    r"(render|clusters show) .*--explain.*nodes|bundle verify figure-13-cpu-local": "needs files of another command",
    r"(render|submit) .*--cluster (here|mine)": "needs the profile of the reader's site",
    r"plan (my/figure.yaml|.*--cluster mine)": "needs a file or a profile that the reader writes",
    r"experiments check experiments/own|(show|plan) figure-1($| )": "needs the file that the reader writes",
    r"claims (figure-16|--cluster (here|selene))|experiments new experiments": "needs other jobs or files",
}
SELENE = """\
slurm: {account: my_account, partition: my_partition}
container:
  images: {"nvidia/pytorch:20.12-py3": /shared/images/pytorch.sqsh, megatron-2026: /shared/images/core.sqsh}
  mounts: [/shared/data]
workloads:
  megatron-2026: {checkout: /shared/m}
  megatron-2021: {checkout: /shared/m, data_path: /shared/d, vocab_file: /shared/v, merge_file: /shared/g}
"""


def is_run(command: Command) -> bool:
    text = " ".join(command.words)
    return not any(re.match(pattern, text) for pattern in NOT_RUN)


def in_order() -> list[Command]:
    """Return the commands to run, each one once, in the order of the pages."""
    found: dict[str, Command] = {}
    for page in page_names():
        for command in commands(page):
            found.setdefault(" ".join(command.words), command)
    return [command for command in found.values() if is_run(command)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a home folder with jobs of figure 13 on this machine, and an overlay of selene."""
    site = Site(tmp_path)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "local.yaml").write_text(
        f"about: this machine\nscheduler: local\n{site.write_program()}", encoding="utf-8"
    )
    (tmp_path / "clusters" / "selene.local.yaml").write_text(SELENE, encoding="utf-8")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "results").symlink_to(CHECKOUT / "experiments" / "results")
    done = site.repro("submit", "figure-13", "--cluster", "local", "--wait")
    assert done.returncode == 0, done.stderr
    return site


def test_the_commands_of_the_pages_succeed(site: Site) -> None:
    job = str(site.status()[0]["job"])
    faults = []
    for command in in_order():
        words = [{"JOB": job, "3f2a": job, "77a694": job}.get(word, word) for word in command.words]
        done = site.repro(*words)
        if done.returncode != 0:
            faults.append(f"{command}: exit code {done.returncode}: {done.stderr}")
    assert faults == []


def test_every_reason_not_to_run_a_command_is_used() -> None:
    texts = [" ".join(command.words) for page in page_names() for command in commands(page)]
    assert [pattern for pattern in NOT_RUN if not any(re.match(pattern, text) for text in texts)] == []
    assert len(in_order()) > 40
