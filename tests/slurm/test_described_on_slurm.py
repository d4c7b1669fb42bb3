"""Programs that an experiment describes, on a real Slurm: a stand-in for nccl-tests, and a server with its client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.site import SlurmSite
from tests.waiting import wait_until

ALL_REDUCE = """\
figure: all-reduce
title: Bus bandwidth of all-reduce by message size
program:
  name: nccl-tests
  command: [all_reduce_perf, -b, "{from}", -e, "{to}"]
  processes: one per GPU
  axes: {from: {unit: B}, to: {unit: B}}
  output: {rows: {columns: size busbw, key: size}}
  metrics: {busbw: {unit: GB/s, better: higher}}
matrix: {gpus: [2, 4]}
fixed: {from: 8, to: 64}
plot: {x: {label: GPUs, of: [gpus]}, y: {label: Bus bandwidth, metric: busbw}}
"""
ALL_REDUCE_PERF = """\
#!/bin/bash
echo "$RANK $WORLD_SIZE $(hostname)" >"rank.$RANK"
[ "$RANK" = 0 ] || exit 0
for ((size = $2; size <= $4; size *= 2)); do echo "$size 1.5"; done
"""
SERVED = """\
figure: served
title: A server and its client in one job
program:
  name: served
  command: [bash, client.sh]
  processes: one per node
  setup: [{run: [bash, server.sh, "{answer}"], log: '^ready$', timeout_s: 30}]
  output: {values: {answer: 'answer {number}'}}
  metrics: {answer: {better: higher}}
matrix: {answer: [42]}
fixed: {nodes: 2}
plot: {x: {label: x, of: [answer]}, y: {label: y, metric: answer}}
"""


def experiment(site: SlurmSite, name: str, text: str, **files: str) -> None:
    folder = site.folder / "experiments" / "machine"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(text)
    for file, content in files.items():
        (folder / f"{file}.sh").write_text(content)


def ended(site: SlurmSite, jobs: int) -> list[Path]:
    """Return the folders of the jobs, each of which has ended."""
    wait_until(lambda: len(list(site.folder.glob("runs/*/*/end"))) == jobs)
    return sorted(file.parent for file in site.folder.glob("runs/*/*/end"))


@pytest.mark.usefixtures("slurm_cluster")
def test_a_program_without_a_line_of_python_runs_with_its_processes(tmp_path: Path) -> None:
    site = SlurmSite(tmp_path / "s").use_stand_in()
    program = f"programs:\n  nccl-tests: {{path: {site.folder}/bin}}\n"
    (site.folder / "site.yaml").write_text((site.folder / "site.yaml").read_text().partition("programs:")[0] + program)
    (site.folder / "bin").mkdir()
    (site.folder / "bin/all_reduce_perf").write_text(ALL_REDUCE_PERF)
    (site.folder / "bin/all_reduce_perf").chmod(0o755)
    experiment(site, "all-reduce", ALL_REDUCE)
    done = site.repro("submit", "all-reduce", "--cluster", "site.yaml")
    assert done.returncode == 0, done.stderr
    two, four = ended(site, 2)
    for folder, ranks in ((two, 2), (four, 4)):
        assert "exit_code=0" in (folder / "end").read_text()
        assert (folder / "log.txt").read_text() == "8 1.5\n16 1.5\n32 1.5\n64 1.5\n"
        assert sorted(file.name for file in folder.glob("rank.*")) == [f"rank.{rank}" for rank in range(ranks)]
        assert (folder / "rank.1").read_text().split()[1] == str(ranks)
    nodes = {file.read_text().split()[2] for file in four.glob("rank.*")}
    assert len(list(four.glob("fingerprint.*.txt"))) == 2 or len(nodes) == 1


@pytest.mark.usefixtures("slurm_cluster")
def test_a_server_is_ready_before_its_clients_and_ends_with_the_job(tmp_path: Path) -> None:
    site = SlurmSite(tmp_path / "s").use_stand_in()
    server = 'echo $$ >pid; sleep 1; echo "$1" >answer.txt; echo ready; exec sleep 1000\n'
    experiment(site, "served", SERVED, server=server, client='echo "answer $(cat answer.txt)"\n')
    done = site.repro("submit", "served", "--cluster", "site.yaml")
    assert done.returncode == 0, done.stderr
    (folder,) = ended(site, 1)
    assert "exit_code=0" in (folder / "end").read_text(), (folder / "log.txt").read_text()
    assert (folder / "log.txt").read_text() == "answer 42\nanswer 42\n"
    assert not Path("/proc", (folder / "pid").read_text().strip()).exists()


@pytest.mark.usefixtures("slurm_cluster")
def test_a_server_that_ends_early_fails_the_job_with_its_name(tmp_path: Path) -> None:
    site = SlurmSite(tmp_path / "s").use_stand_in()
    experiment(site, "served", SERVED, server="echo ready; sleep 1; exit 7\n", client="sleep 1000\n")
    done = site.repro("submit", "served", "--cluster", "site.yaml")
    assert done.returncode == 0, done.stderr
    (folder,) = ended(site, 1)
    assert "exit_code=0\n" not in (folder / "end").read_text()
    line = "repro: setup: bash ended with exit code 7 before the command; setup-1.txt has its output"
    assert line in (folder / "log.txt").read_text()
