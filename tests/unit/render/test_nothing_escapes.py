"""Text of a profile or an experiment is never executed by the shell that runs the job's script, whatever its field is.

A walk through a profile that has all fields finds every field that takes text. Each hostile text is put into each
field. Either it is refused with a line, or the script is run, with stand-ins for the programs that it calls: then no
part of the text may be executed, and each argument with the text has all of it. The field `setup` is left out, because
its lines are bash.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.catalog.case import Case
from orchestrator.catalog.expand import expand
from orchestrator.catalog.library import Entry
from orchestrator.clusters.machine import Machine
from orchestrator.clusters.resolve import Cluster
from orchestrator.config.yaml import KeyPath
from orchestrator.errors import ReproError
from orchestrator.launch.render import render_job
from orchestrator.paths import Folders
from orchestrator.planning.plan import Plan
from tests.unit.catalog.entries import BASE, entry_of, shipped
from tests.unit.clusters.sites import cluster_of
from tests.unit.render.plans import TEMPLATES, planned
from tests.unit.render.stand_ins import Stage, executable, sbatch_arguments

pytestmark = pytest.mark.slow

toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# An executed text creates a file in the empty folder in which the script runs, or prints EXECUTED.
HOSTILE = {
    "quotes": "'; touch x; '\"; touch y; \"'\"'\"'; touch z; ",
    "substitutions": "$(touch x)`touch y`${HOME}$((1+1))<(touch z)\\$(touch w)",
    "signs": " * ~ ? [a] {a,b} | & ; > x < x ! # %j \\ \t ",
    "line end": "a\ntouch x\n#SBATCH --wrap=EXECUTED\n",
    "carriage return": "a\r\ntouch x\r",
    "heredoc": "a\nEOF\ntouch x\n'\ntouch y\n\"\ntouch z\n",
    "nul": "a\0touch x",
    "escape": "\x1b]0;x\x07\x1b[2J\u009b\u2028touch x\u2028\u202e",
    "dashes": "--wrap=EXECUTED -c EXECUTED",
    "template": "{{ 7 * 7 }}{% raw %}{# x #}",
}

_COMMON: dict[str, Any] = {
    "about": "a site with every field",
    "environment": {"PLAIN": "v", "SOME": {"value": "v", "when": "nodes == 1"}},
    "env_prepend": {"FIRST": "/v"},
    "env_unset": ["GONE"],
    "env_from": ["GIVEN"],
    "rendezvous": {"host_suffix": "-ib"},
    "network": {"fabric": "ib"},
    "site": {"staging_folder": "/staging"},
    "programs": {"pretrain": {"python": "BASE/bin/python"}},
}
_HARDWARE = {"nodes": 8, "gpus_per_node": 8, "gpu": "H100", "gpu_memory_gb": 94, "peak_tflops": {"bf16": 989.4}}
_SLURM: dict[str, Any] = {
    **_COMMON,
    "scheduler": "slurm",
    "hardware": _HARDWARE,
    "slurm": {
        "project": "p", "account": "{project}_a", "partition": "p", "qos": [{"name": "q"}], "constraint": "c",
        "reservation": "r", "time_limit": "1:00:00", "max_time": "2:00:00", "mem": "0", "gres_type": "h",
        "hint": "nomultithread", "cpu_bind": "cores", "gpu_bind": "none", "mpi": "pmix", "gpu_request": "gres",
        "sbatch": ["--mail-type=FAIL"], "srun": ["--cpu-freq=high"],
    },
}  # fmt: skip
_CONTAINER: dict[str, Any] = {
    "images": {"pretrain": "registry.example/team/torch:1"},
    "mounts": ["/m:/n", {"mount": "/s", "when": "nodes == 1"}],
}
_ONLY: dict[str, dict[str, Any]] = {
    "pyxis": {"pass_env": ["ONE", "NCCL_*"], "images": {"pretrain": "/i/torch.sqsh"}, "version": "0.20"},
    "edf": {"annotations": {"com.hooks.x": "v"}, "images": {"pretrain": "/i/torch.sqsh"}},
    "shifter": {"modules": ["gpu"], "options": ["--x=y"]},
    "podman-hpc": {"pass_env": ["ONE"], "options": ["--x=y"]},
    "docker": {"pass_env": ["ONE"], "options": ["--x=y"], "gpu_flag": "--runtime=nvidia"},
    "apptainer": {"options": ["--x=y"], "images": {"pretrain": "/i/torch.sif"}},
}
SITES: dict[str, dict[str, Any]] = {
    "slurm": _SLURM,
    "per-node": {**_SLURM, "slurm": {**_SLURM["slurm"], "tasks": "per-node"}},
    "mpirun": {
        **_COMMON,
        "scheduler": "mpirun",
        "hardware": _HARDWARE,
        "mpirun": {"hostfile": "BASE/hosts", "time_limit": "1:00:00", "arguments": ["--mca", "btl", "^tcp"]},
    },
    "local": {**_COMMON, "scheduler": "local"},
    **{
        runtime: {
            **_SLURM,
            "container": {"runtime": runtime, **_CONTAINER, **only},
            "programs": {"pretrain": {}} if runtime != "pyxis" else {"pretrain": {"python": "BASE/bin/python"}},
        }
        for runtime, only in _ONLY.items()
    },
    "megatron": {
        **_SLURM,
        "environment": {"PLAIN": "v", "SOME": {"value": "v", "when": "nodes > 1"}},
        "hardware": {**_HARDWARE, "gpu": "A100", "gpu_memory_gb": 80, "peak_tflops": {"fp16": 312}},
        "programs": {
            "megatron-2021": {"checkout": "/c/m", "data_path": "/d/t", "vocab_file": "/d/v", "merge_file": "/d/m"}
        },
    },
}
# A script opens or runs these files, so they must exist. The hostile text is the end of their names.
_FILES = ("BASE/bin/python", "BASE/hosts")


@dataclass(frozen=True)
class Plant:
    """A hostile text in a field, or with `key` in the name of the field. Each text has its own mark."""

    path: KeyPath
    text: str
    key: bool = False

    @property
    def mark(self) -> str:
        """Return the end of the text, which no other plant has."""
        return self.text[self.text.rindex("zq") :]


def texts_of(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, bool]]:
    """Yield the path of every text of a profile, and of every name that the site chooses (True)."""
    if isinstance(value, dict):
        for name, field in value.items():
            if path[-1:] in (("environment",), ("env_prepend",), ("images",), ("annotations",), ("peak_tflops",)):
                yield (*path, name), True
            yield from texts_of(field, (*path, name))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from texts_of(item, (*path, i))
    elif isinstance(value, str):
        yield path, False


def value_at(value: Any, path: KeyPath) -> Any:
    for key in path:
        value = value[key]
    return value


def plants_in(document: dict[str, Any], hostile: str) -> Iterator[Plant]:
    """Yield a plant in each text. It follows the valid text, except that an option replaces the text."""
    for number, (path, key) in enumerate(texts_of(document)):
        valid = str(path[-1]) if key else str(value_at(document, path))
        start = "" if hostile == "dashes" and valid not in _FILES else valid
        if not (hostile == "dashes" and path[-1] == "checkout"):  # tested below
            yield Plant(path, f"{start}{HOSTILE[hostile]}zq{number}z", key)


def with_plants(document: dict[str, Any], plants: list[Plant]) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    for plant in sorted(plants, key=lambda plant: (-len(plant.path), plant.key)):  # names last, from the inside out
        parent = value_at(changed, plant.path[:-1])
        if plant.key:
            parent[plant.text] = parent.pop(plant.path[-1])
        else:
            parent[plant.path[-1]] = plant.text
    return changed


def accepted(plants: list[Plant], refusal: Callable[[list[Plant]], ReproError | None]) -> list[Plant]:
    """Return the plants that are not refused.

    A problem is about the text whose mark is the last one in its line. If no problem has a mark, halves are tried.
    """
    error = refusal(plants)
    if error is None:
        return plants
    marks = {mark for problem in error.problems for mark in re.findall(r"zq[0-9]+z", str(problem))[-1:]}
    rest = [plant for plant in plants if plant.mark not in marks]
    if len(rest) < len(plants):
        return accepted(rest, refusal)
    middle = len(plants) // 2
    return accepted(plants[:middle], refusal) + accepted(plants[middle:], refusal) if middle else []


def with_base(value: Any, base: Path) -> Any:
    """Return the value with the name of the folder in place of BASE."""
    if isinstance(value, dict):
        return {name: with_base(field, base) for name, field in value.items()}
    if isinstance(value, list):
        return [with_base(item, base) for item in value]
    return value.replace("BASE", str(base)) if isinstance(value, str) else value


@cache
def first_case(scale: str) -> tuple[Entry, Case]:
    entry = shipped()
    return entry, expand(entry, scale)[0]


def plan_on(kind: str, site: dict[str, Any], stage: Stage) -> tuple[Cluster, Plan]:
    """Return a cluster that is read from a file, and the plan of a case on it. Raise ReproError if it is refused."""
    cluster = cluster_of(stage.base, json.dumps(with_base(site, stage.base)))  # YAML, and faster than yaml.dump
    if kind == "local":
        machine = Machine(cpus=8)
        cluster = replace(cluster, machine=machine, hardware=machine.hardware())
    entry, case = first_case({"local": "cpu", "megatron": "paper"}.get(kind, "quad"))
    plan = planned(entry, [case], cluster)[0]
    return cluster, replace(plan, program=replace(plan.program, mounts=()) if "container" in site else plan.program)


def recorded_texts(stage: Stage, script: str) -> list[str]:
    """Return the records of stand-ins, program and job, the arguments in #SBATCH lines, and the texts of the EDF."""
    texts = []
    for file in sorted(stage.base.iterdir()):
        if file.name in ("argv", "environment") or re.fullmatch(r"(srun|mpirun|scontrol|\S+\.environment)", file.name):
            texts += stage.recorded(file.name) if file.is_file() else []
    for line in script.split("\n"):
        texts += sbatch_arguments(line.removeprefix("#SBATCH ")) if line.startswith("#SBATCH ") else []
    environment_file = stage.job / "environment.toml"
    if environment_file.exists():
        texts += list(leaves(toml.loads(environment_file.read_bytes().decode())))
    if (stage.job / "end").exists():
        texts += [f"{name}={value}" for name, value in stage.end_record().items()]
    return texts


def leaves(value: Any) -> Iterator[str]:
    """Yield the names and texts of a TOML document."""
    if isinstance(value, dict):
        for name, field in value.items():
            yield name
            yield from leaves(field)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield str(value)


def require_whole(texts: list[str], plants: list[Plant], base: Path, project: str = "p") -> list[Plant]:
    """Fail if a recorded text has a part of a hostile text. Return the plants that are in a recorded text."""
    arrived = []
    for plant in plants:
        # The script of a task is left out: what it contains is recorded as the program's environment.
        with_mark = [text for text in texts if plant.mark in text and "export MASTER_ADDR=" not in text]
        whole = plant.text.replace("BASE", str(base)).replace("{project}", project)
        assert all(whole in text for text in with_mark), (plant, with_mark)
        arrived += [plant] if with_mark else []
    return arrived


def create_files(plants: list[Plant], stage: Stage) -> None:
    """Create the files that the script opens or runs."""
    hosts = "first slots=4\n"
    (stage.base / "hosts").write_text(hosts)
    for plant in plants:
        file = Path(plant.text.replace("BASE", str(stage.base)))
        if plant.text.startswith("BASE/bin/python"):
            executable(file, (stage.base / "bin" / "python").read_text())
        elif plant.text.startswith("BASE/hosts"):
            file.write_text(hosts)


ANY_SHELL_TEXT = {"quotes", "substitutions", "signs", "escape", "dashes"}
"""Hostile texts that a variable of the environment must accept."""


@pytest.mark.fault(
    section="Safety",
    fault="Quotes, substitutions, line ends, options and templates in every text of a profile, for each kind of site",
    promise="Refused, or passed unchanged as one word. Nothing is executed.",
)
@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_field_of_a_profile_reaches_a_shell(kind: str, hostile: str, tmp_path: Path) -> None:
    stage, site = Stage.at(tmp_path), SITES[kind]

    def refusal(plants: list[Plant]) -> ReproError | None:
        try:
            cluster, plan = plan_on(kind, with_plants(site, plants), stage)
            stage.render(plan, cluster)
        except ReproError as error:
            return error
        return None

    assert refusal([]) is None
    plants = accepted(list(plants_in(site, hostile)), refusal)
    create_files(plants, stage)
    changed = with_plants(site, plants)
    cluster, plan = plan_on(kind, changed, stage)
    script = stage.render(plan, cluster)
    assert hostile != "template" or "{{ 7 * 7 }}" in script
    variable = HOSTILE[hostile].replace("\0", "")
    answer = stage.run(script, {"GIVEN": variable, "GONE": "x"})
    assert (answer.returncode, "EXECUTED" in answer.stdout + answer.stderr) == (0, False), answer.stderr
    project = changed.get("slurm", {}).get("project", "")
    arrived = require_whole(recorded_texts(stage, script), plants, stage.base, project)
    if hostile in ANY_SHELL_TEXT:
        assert {("environment", "PLAIN"), ("environment", "SOME", "value")} <= {plant.path for plant in arrived}
    assert stage.environment()["GIVEN"] == variable


EXPERIMENT: dict[str, Any] = {
    **yaml.safe_load(BASE.replace("matrix:\n  pp: [1, 2, 4]\n  gbs: [8, 16]\nrules:\n  tp: gpus / pp\n", "")),
    "gpus": 4,
    "training": {"dtype": "bf16", "iterations": 3, "warmup_iterations": 1},
    "fixed": {"mbs": 1, "gbs": 8},
    "cases": [{"case": "one", "tp": 4, "note": "n", "arguments": ["--a"]}],
    "plot": {"x": {"label": "x", "of": ["case"]}, "y": {"label": "y", "metric": "iteration_ms"}},
    "notes": ["n"],
    "arguments": ["--b", "c"],
    "time_limit": "0:10:00",
    "differences": [{"what": "w", "follows": "paper", "because": "b"}],
}


def experiment_of(kind: str) -> dict[str, Any]:
    on_cores = {"device": "cpu", "training": {**EXPERIMENT["training"], "dtype": "fp32"}}
    return EXPERIMENT | (on_cores if kind == "local" else {})


def script_of(experiment: dict[str, Any], cluster: Cluster, folder: Path) -> tuple[Path, str]:
    """Return the folder and the script of a job whose experiment is read from a file."""
    entry = entry_of(folder, json.dumps(experiment))
    plan = planned(entry, expand(entry), cluster)[0]
    job = Folders(shipped=folder, home=folder).job("run", plan.case.slug)
    return job, render_job(plan, cluster, job, TEMPLATES)


@pytest.mark.fault(
    section="Safety",
    fault="Quotes, substitutions, line ends, options and templates in every text of an experiment",
    promise="Refused, or passed unchanged as one word. Nothing is executed.",
)
@pytest.mark.parametrize("kind", ["slurm", "mpirun", "local"])  # each template that writes a command
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_field_of_an_experiment_reaches_a_shell(kind: str, hostile: str, tmp_path: Path) -> None:
    stage, experiment = Stage.at(tmp_path), experiment_of(kind)
    create_files([], stage)
    cluster, _ = plan_on(kind, SITES[kind], stage)

    def refusal(plants: list[Plant]) -> ReproError | None:
        try:
            script_of(with_plants(experiment, plants), cluster, tmp_path)
        except ReproError as error:
            return error
        return None

    assert refusal([]) is None
    # The name of a case with a null character is tested below.
    plants = [plant for plant in plants_in(experiment, hostile) if (hostile, plant.path[-1]) != ("nul", "case")]
    plants = accepted(plants, refusal)
    job, script = script_of(with_plants(experiment, plants), cluster, tmp_path)
    assert job.parent == tmp_path / "runs" / "run"
    answer = stage.run(script, {"GIVEN": "v"})
    assert (answer.returncode, "EXECUTED" in answer.stdout + answer.stderr) == (0, False), answer.stderr
    arguments = [plant for plant in plants if "arguments" in plant.path]
    assert len(arguments) == (0 if hostile == "nul" else 3)
    assert {plant.text for plant in arguments} <= set(stage.recorded())
    # Names of files and jobs are made from the name of a case, with _ for other characters than letters and digits.
    others = [plant for plant in plants if plant not in arguments and plant.path[-1] != "case"]
    require_whole(recorded_texts(replace(stage, job=job), script), others, stage.base)


@pytest.mark.parametrize("kind", ["mpirun", "local"])
def test_case_name_with_a_null_character_is_refused_or_runs(kind: str, tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    create_files([], stage)
    cluster, _ = plan_on(kind, SITES[kind], stage)
    plant = Plant(("cases", 0, "case"), "a\0b")
    try:
        _, script = script_of(with_plants(experiment_of(kind), [plant]), cluster, tmp_path)
    except ReproError:
        return
    assert stage.run(script, {"GIVEN": "v"}).returncode == 0


def test_refusal_of_a_name_with_a_line_end_is_one_line(tmp_path: Path) -> None:
    profile = {**SITES["slurm"], "environment": {"A\nrepro: all is well": "v"}}
    with pytest.raises(ReproError) as refused:
        plan_on("slurm", profile, Stage.at(tmp_path))
    assert all("\n" not in str(problem) for problem in refused.value.problems)


def test_checkout_name_that_begins_with_a_dash_is_refused_or_no_option(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    profile = with_plants(SITES["megatron"], [Plant(("programs", "megatron-2021", "checkout"), "--version")])
    try:
        cluster, plan = plan_on("megatron", profile, stage)
        script = stage.render(plan, cluster)
    except ReproError:
        return
    assert stage.run(script, {"GIVEN": "v"}).stderr == ""
