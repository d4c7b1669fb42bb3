"""Experiments that describe their program, their cases and plans, and clusters to render their scripts for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.resolve import Cluster
from orchestrator.job_spec import Value
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan, plan_cases
from tests.unit.catalog.entries import entry_of
from tests.unit.clusters.sites import PLAIN, cluster_of
from tests.unit.render.plans import RUN, TEMPLATES, local

ALL_REDUCE = """\
program:
  name: nccl-tests
  command: [all_reduce_perf, -b, "{from}", -e, "{to}", -f, "2", -g, "1", -c, "1"]
  processes: one per GPU
  image: nvidia/pytorch:25.12-py3
  environment: {NCCL_DEBUG: WARN}
  axes: {from: {unit: B}, to: {unit: B}, size: {unit: B}}
  output: {rows: {columns: size busbw, key: size}}
  metrics: {busbw: {unit: GB/s, better: higher}}
"""
MESSAGES: Mapping[str, Value] = {"gpus": 16, "from": "8", "to": "16G"}

TOY = """\
program:
  command: [python3, train_toy.py, --width, "{width}", --steps, "{steps}"]
  output: {iterations: 'step={iteration} loss={loss}'}
  metrics: {loss: {better: lower, take: last}}
  verified: iterations == steps
"""
WIDTH: Mapping[str, Value] = {"width": 64, "steps": 10}
TRAIN_TOY = "import sys\nprint(sys.argv)\n"

HPL = """\
program:
  name: hpl
  command: [xhpl]
  processes: 4
  environment: {OMP_NUM_THREADS: "2"}
  files:
    HPL.dat: {template: HPL.dat.in}
    notes.txt: |
      it's {n} by {n}
      on {nodes} node
  output: {values: {gflops: 'WR.* {number}'}}
  metrics: {gflops: {better: higher}}
"""
HPL_DAT = "HPLinpack benchmark input file\n1            # of problems sizes (N)\n{n}         Ns\n"

SERVED = """\
program:
  name: redis-benchmark
  command: [redis-benchmark, -p, "{port}", --csv]
  setup:
    - {run: [redis-server, --port, "{port}"], ready: [redis-cli, -p, "{port}", ping], timeout_s: 60}
    - {run: [bash, monitor.sh], log: 'it.s (up|ready)'}
  output: {csv: test}
  metrics: {rps: {better: higher}}
"""

CONTAINERS = """\
about: nodes with containers
scheduler: slurm
hardware: {{nodes: 4, gpus_per_node: 8, gpu: H100, gpu_memory_gb: 80, peak_tflops: {{bf16: 989}}}}
slurm: {{time_limit: 1:00:00}}
container: {{runtime: {runtime}, mounts: [/data]}}
programs: {{redis-benchmark: {{image: docker.io/library/redis:8}}}}
sample_gpus_every_s: 5
"""
MPIRUN = """\
about: nodes with Open MPI
scheduler: mpirun
hardware: {nodes: 4, gpus_per_node: 8, gpu: H800, gpu_memory_gb: 80, peak_tflops: {bf16: 989}}
mpirun: {hostfile: /shared/hosts, time_limit: 1:00:00}
programs: {nccl-tests: {path: /opt/nccl-tests/build}}
"""


def described_entry(folder: Path, text: str, settings: Mapping[str, Sequence[Value] | Value]) -> Entry:
    """Write and read an experiment with this program and these values, and the files that its command names."""
    files = {"train_toy.py": TRAIN_TOY, "HPL.dat.in": HPL_DAT, "monitor.sh": "echo up\nsleep 1000\n"}
    for name, content in files.items():
        path = folder / "experiments" / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    matrix = {axis: list(value) if isinstance(value, (list, tuple)) else [value] for axis, value in settings.items()}
    metric = next(iter(yaml.safe_load(text)["program"]["metrics"]))
    plot = {"x": {"label": "x", "of": list(matrix)[:1]}, "y": {"label": "y", "metric": metric}}
    rest = yaml.safe_dump({"figure": "Figure 1", "title": "t", "matrix": matrix, "plot": plot}, sort_keys=False)
    return entry_of(folder, text + rest)


def described_plans(
    folder: Path, cluster: Cluster, text: str, settings: Mapping[str, Sequence[Value] | Value]
) -> list[Plan]:
    """Return the plans of the cases of an experiment with this program."""
    entry = described_entry(folder, text, settings)
    return plan_cases(entry, expand(entry), cluster, Folders(folder, folder))


def _script(make: Callable[[Path], Cluster], text: str, settings: Mapping[str, Value]) -> str:
    with TemporaryDirectory() as name:
        folder = Path(name)
        cluster = make(folder)
        (plan,) = described_plans(folder, cluster, text, settings)
        plan = replace(plan, identity="000000000001")
        return render_job(plan, cluster, RUN / "job", TEMPLATES).replace(name, "")


def _containers(runtime: str) -> Callable[[Path], Cluster]:
    return lambda folder: cluster_of(folder, CONTAINERS.format(runtime=runtime))


def _slurm(folder: Path) -> Cluster:
    return cluster_of(folder, PLAIN.replace("1:00:00}", "1:00:00, tasks: per-node, gpu_request: gpus-per-node}"))


def _mpirun(folder: Path) -> Cluster:
    return cluster_of(folder, MPIRUN)


DESCRIBED: Mapping[str, Callable[[], str]] = {
    "described_slurm": lambda: _script(_slurm, ALL_REDUCE, MESSAGES),
    "described_pyxis": lambda: _script(_containers("pyxis"), ALL_REDUCE, MESSAGES),
    "described_apptainer": lambda: _script(_containers("apptainer"), ALL_REDUCE, MESSAGES),
    "described_mpirun": lambda: _script(_mpirun, ALL_REDUCE, MESSAGES),
    "described_local": lambda: _script(local, TOY, WIDTH),
    "described_files": lambda: _script(local, HPL, {"n": 2000}),
    "described_setup": lambda: _script(_containers("pyxis"), SERVED, {"port": 6400, "gpus": 1}),
    "described_setup_local": lambda: _script(local, SERVED, {"port": 6400}),
    "described_setup_of_processes": lambda: _script(
        _slurm, SERVED.replace("  setup:", "  processes: 4\n  setup:"), {"port": 6400}
    ),
}
"""Scripts of programs that an experiment describes: the schedulers, files, and a server beside its client."""
