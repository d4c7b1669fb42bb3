"""Nothing of a profile or of an experiment reaches a shell unquoted, whichever field it stands in.

Every field that takes text is found by walking a profile that has them all. In each of them each hostile text is
refused with a line, or it arrives: then the script is run, with stand-ins for all that it calls, and what was planted
is executed nowhere and stands whole in the word that it came to. `setup` alone is left out: its lines are bash by
what they are for.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator
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
from tests.unit.render.standing import Stage, executable
from tests.unit.render.test_quoting import sbatch_words

toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# What would run leaves a file in the empty folder in which the script is run, or the word EXECUTED.
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
    "workloads": {"pretrain": {"python": "BASE/bin/python"}},
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
            "workloads": {"pretrain": {}} if runtime != "pyxis" else {"pretrain": {"python": "BASE/bin/python"}},
        }
        for runtime, only in _ONLY.items()
    },
    "megatron": {
        **_SLURM,
        "environment": {"PLAIN": "v", "SOME": {"value": "v", "when": "nodes > 1"}},
        "hardware": {**_HARDWARE, "gpu": "A100", "gpu_memory_gb": 80, "peak_tflops": {"fp16": 312}},
        "workloads": {
            "megatron-2021": {"checkout": "/c/m", "data_path": "/d/t", "vocab_file": "/d/v", "merge_file": "/d/m"}
        },
    },
}
# Files that a script opens or runs must be there; so the hostile text is the end of their name.
_FILES = ("BASE/bin/python", "BASE/hosts")


@dataclass(frozen=True)
class Planted:
    """A field, or with `key` the name of one, and the text that it was given instead."""

    path: KeyPath
    text: str
    key: bool = False


def fields_of(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, bool]]:
    """Every text of a profile, and every name in it that the site chooses."""
    if isinstance(value, dict):
        for name, one in value.items():
            if path[-1:] in (("environment",), ("env_prepend",), ("images",), ("annotations",), ("peak_tflops",)):
                yield (*path, name), True
            yield from fields_of(one, (*path, name))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from fields_of(one, (*path, i))
    elif isinstance(value, str):
        yield path, False


def held(value: Any, path: KeyPath) -> Any:
    for part in path:
        value = value[part]
    return value


def planted(site: dict[str, Any], how: str) -> Iterator[Planted]:
    """The hostile text in each field, behind what may stand there; dashes alone. Each has a mark of its own."""
    for number, (path, key) in enumerate(fields_of(site)):
        before = str(path[-1]) if key else str(held(site, path))
        start = "" if how == "dashes" and before not in _FILES else before
        if not (how == "dashes" and path[-1] == "checkout"):  # of which below
            yield Planted(path, f"{start}{HOSTILE[how]}zq{number}z", key)


def with_texts(site: dict[str, Any], plants: list[Planted]) -> dict[str, Any]:
    changed = copy.deepcopy(site)
    for plant in sorted(plants, key=lambda plant: (-len(plant.path), plant.key)):  # names last, from the inside out
        above = held(changed, plant.path[:-1])
        if plant.key:
            above[plant.text] = above.pop(plant.path[-1])
        else:
            above[plant.path[-1]] = plant.text
    return changed


def based(value: Any, base: Path) -> Any:
    if isinstance(value, dict):
        return {name: based(one, base) for name, one in value.items()}
    if isinstance(value, list):
        return [based(one, base) for one in value]
    return value.replace("BASE", str(base)) if isinstance(value, str) else value


@cache
def smallest(scale: str) -> tuple[Entry, Case]:
    entry = shipped()
    return entry, expand(entry, scale)[0]


def made(kind: str, site: dict[str, Any], stage: Stage) -> tuple[Cluster, Plan]:
    """As a person's file would be read and planned; ReproError where it is refused."""
    cluster = cluster_of(stage.base, json.dumps(based(site, stage.base)))  # which YAML reads, and is quicker to write
    if kind == "local":
        machine = Machine(cpus=8)
        cluster = replace(cluster, machine=machine, hardware=machine.hardware())
    entry, case = smallest({"local": "cpu", "megatron": "paper"}.get(kind, "quad"))
    plan = planned(entry, [case], cluster)[0]
    return cluster, replace(plan, program=replace(plan.program, mounts=()) if "container" in site else plan.program)


def refusal(kind: str, site: dict[str, Any], stage: Stage) -> ReproError | None:
    """Why this profile makes no script; None where it makes one."""
    try:
        cluster, plan = made(kind, site, stage)
        render_job(plan, cluster, stage.job, TEMPLATES)
    except ReproError as error:
        return error
    return None


def words_that_arrived(stage: Stage, script: str) -> list[str]:
    """All that the stand-ins and the program were given, the #SBATCH lines as sbatch reads them, and the EDF."""
    found = []
    for file in sorted(stage.base.iterdir()):
        if file.name in ("argv", "environment") or re.fullmatch(r"(srun|mpirun|scontrol|\S+\.environment)", file.name):
            found += stage.seen(file.name) if file.is_file() else []
    for line in script.split("\n"):
        found += sbatch_words(line.removeprefix("#SBATCH ")) if line.startswith("#SBATCH ") else []
    described = stage.job / "environment.toml"
    if described.exists():
        found += list(texts_in(toml.loads(described.read_bytes().decode())))
    if (stage.job / "end").exists():
        found += [f"{name}={value}" for name, value in stage.end().items()]
    return found


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)
    else:
        yield str(value)


def require_whole(words: list[str], plants: list[Planted], base: Path, project: str = "p") -> list[Planted]:
    """That each text that arrived somewhere arrived as it was, in one word; those that did."""
    arrived = []
    for plant in plants:
        mark = plant.text[plant.text.rindex("zq") :]
        # But for the task's own script, which is one word: what is in it arrives in the program's environment.
        carrying = [word for word in words if mark in word and "export MASTER_ADDR=" not in word]
        whole = plant.text.replace("BASE", str(base)).replace("{project}", project)
        assert all(whole in word for word in carrying), (plant, carrying)
        arrived += [plant] if carrying else []
    return arrived


ALWAYS = {"quotes", "substitutions", "signs", "escape", "dashes"}
"""Those that a variable of the environment must be able to hold."""


@pytest.mark.fault(
    section="Safety",
    fault="Quotes, substitutions, line ends, options and templates in every text of a profile, for each kind of site",
    promise="Refused, or passed unchanged as one word. Nothing is executed.",
)
@pytest.mark.parametrize("kind", SITES)
@pytest.mark.parametrize("how", HOSTILE)
def test_no_field_of_a_profile_reaches_a_shell(kind: str, how: str, tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    site, hostile = SITES[kind], HOSTILE[how].replace("\0", "")
    assert refusal(kind, site, stage) is None
    plants = [plant for plant in planted(site, how) if refusal(kind, with_texts(site, [plant]), stage) is None]
    everything = with_texts(site, plants)
    for path in _FILES:
        for plant in plants:
            if plant.text.startswith(path):
                file = Path(plant.text.replace("BASE", str(stage.base)))
                if path.endswith("python"):
                    executable(file, (stage.base / "bin" / "python").read_text())
                else:
                    file.write_text("first slots=4\n")
    (stage.base / "hosts").write_text("first slots=4\n")
    cluster, plan = made(kind, everything, stage)
    script = stage.script(plan, cluster)
    assert how != "template" or "{{ 7 * 7 }}" in script
    answer = stage.run(script, {"GIVEN": hostile, "GONE": "x"})
    assert (answer.returncode, "EXECUTED" in answer.stdout + answer.stderr) == (0, False), answer.stderr
    project = everything.get("slurm", {}).get("project", "")
    arrived = require_whole(words_that_arrived(stage, script), plants, stage.base, project)
    if how in ALWAYS:
        assert {("environment", "PLAIN"), ("environment", "SOME", "value")} <= {plant.path for plant in arrived}
    assert stage.environment()["GIVEN"] == hostile


EXPERIMENT: dict[str, Any] = {
    **yaml.safe_load(BASE.replace("matrix:\n  pp: [1, 2, 4]\n  gbs: [8, 16]\nrules:\n  tp: gpus / pp\n", "")),
    "gpus": 4,
    "training": {"dtype": "bf16", "iterations": 3, "warmup_iterations": 1},
    "fixed": {"mbs": 1, "gbs": 8},
    "cases": [{"case": "one", "tp": 4, "note": "n", "arguments": ["--a"]}],
    "axes": {"x": {"label": "x", "of": ["case"]}, "y": {"label": "y", "metric": "iteration_ms"}},
    "notes": ["n"],
    "arguments": ["--b", "c"],
    "time_limit": "0:10:00",
    "differences": [{"what": "w", "follows": "paper", "because": "b"}],
}


def experiment_of(kind: str) -> dict[str, Any]:
    on_cores = {"device": "cpu", "training": {**EXPERIMENT["training"], "dtype": "fp32"}}
    return EXPERIMENT | (on_cores if kind == "local" else {})


def script_of(experiment: dict[str, Any], cluster: Cluster, folders: Folders) -> tuple[Path, str]:
    """The job's folder and its script, by the real reader and planner."""
    entry = entry_of(folders.home, yaml.safe_dump(experiment, allow_unicode=False, sort_keys=False))
    plan = planned(entry, expand(entry), cluster)[0]
    job = folders.job("run", plan.case.slug)
    return job, render_job(plan, cluster, job, TEMPLATES)


# One of each template that puts a command together.
@pytest.mark.fault(
    section="Safety",
    fault="Quotes, substitutions, line ends, options and templates in every text of an experiment",
    promise="Refused, or passed unchanged as one word. Nothing is executed.",
)
@pytest.mark.parametrize("kind", ["slurm", "mpirun", "local"])
@pytest.mark.parametrize("how", HOSTILE)
def test_no_field_of_an_experiment_reaches_a_shell(kind: str, how: str, tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    (stage.base / "hosts").write_text("first slots=4\n")
    cluster, _ = made(kind, SITES[kind], stage)
    folders, experiment = Folders(shipped=tmp_path, home=tmp_path), experiment_of(kind)
    _, plain = script_of(experiment, cluster, folders)
    arrived = 0
    for plant in planted(experiment, how):
        try:
            job, script = script_of(with_texts(experiment, [plant]), cluster, folders)
        except ReproError:
            continue
        assert job.parent == folders.runs / "run"
        if script == plain or (how == "nul" and plant.path[-1] == "case"):  # of the latter below
            continue
        answer = stage.run(script, {"GIVEN": "v"})
        assert (answer.returncode, "EXECUTED" in answer.stdout + answer.stderr) == (0, False), (plant, answer.stderr)
        if "arguments" in plant.path:
            assert plant.text in stage.seen()
            arrived += 1
        elif plant.path[-1] != "case":  # of which names of files and jobs are made, with _ for what is no letter
            require_whole(words_that_arrived(replace(stage, job=job), script), [plant], stage.base)
    assert arrived == (0 if how == "nul" else 3)


@pytest.mark.parametrize("kind", ["mpirun", "local"])
def test_a_case_whose_name_has_a_nul_is_refused_or_runs(kind: str, tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    (stage.base / "hosts").write_text("first slots=4\n")
    cluster, _ = made(kind, SITES[kind], stage)
    plant = Planted(("cases", 0, "case"), "a\0b")
    try:
        _, script = script_of(
            with_texts(experiment_of(kind), [plant]), cluster, Folders(shipped=tmp_path, home=tmp_path)
        )
    except ReproError:
        return
    assert stage.run(script, {"GIVEN": "v"}).returncode == 0


def test_a_refusal_is_one_line_whatever_is_refused(tmp_path: Path) -> None:
    profile = {**SITES["slurm"], "environment": {"A\nrepro: all is well": "v"}}
    with pytest.raises(ReproError) as refused:
        made("slurm", profile, Stage.at(tmp_path))
    assert all("\n" not in str(problem) for problem in refused.value.problems)


def test_a_checkout_whose_name_begins_with_a_dash_is_refused_or_no_option(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path)
    profile = with_texts(SITES["megatron"], [Planted(("workloads", "megatron-2021", "checkout"), "--version")])
    try:
        cluster, plan = made("megatron", profile, stage)
        script = stage.script(plan, cluster)
    except ReproError:
        return
    assert stage.run(script, {"GIVEN": "v"}).stderr == ""
