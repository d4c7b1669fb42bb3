"""Rendering of job scripts from plans. Pure: text in, text out. Filters quote every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from orchestrator.clusters.container import SetupFields, holds
from orchestrator.clusters.resolve import Cluster
from orchestrator.job_spec import shown_changes
from orchestrator.launch.directives import (
    directive,
    directives,
    experiment_file,
    field_lines,
    output_pattern,
    own_origin,
    program_origin,
    rank_placement,
    srun_notes,
    srun_options,
    time_limit_origin,
    wrapping_of,
)
from orchestrator.launch.executors import joined_comment
from orchestrator.launch.run_options import FAILURE_PATTERNS, LOG_TAIL_BYTES, FollowedJob, Gate
from orchestrator.launch.templates import OURS, Explained, Line, Templates, command_lines, templates_in
from orchestrator.paths import short_name
from orchestrator.planning.plan import Plan, SidePlan
from orchestrator.programs.command import changed_flag
from orchestrator.programs.record import known_program, probe_program
from orchestrator.reading.failure import Failure
from orchestrator.reading.statistics import ENOUGH_SAMPLES
from orchestrator.slurm.notation import time_limit_s
from orchestrator.text import counted

# Variables with which Python finds modules. The program, the image and the profile decide them, or `env_from` of it.
_IMPORT_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONPLATLIBDIR")


def render_job(
    plan: Plan | SidePlan,
    cluster: Cluster,
    folder: Path,
    templates: Path,
    output: Path | None = None,
    comment: str | None = None,
) -> str:
    """Return the complete script of one job. `folder` is the folder of its log and records.

    The output of the script itself goes to `output`, else to batch.txt in the folder. Slurm opens it before the script
    runs, so the folder must exist. `comment` is the comment of the Slurm job.
    """
    return _render(plan, cluster, folder, templates_in(templates), output, comment)


def explain_job(
    plan: Plan | SidePlan, cluster: Cluster, folder: Path, templates: Path, output: Path | None = None
) -> list[Explained]:
    """Return the lines of that script, each with its origins."""
    engine = templates_in(templates, explain=True)
    return engine.explained(_render(plan, cluster, folder, engine, output))


@dataclass(frozen=True, slots=True)
class JobScript:
    """Script of a job, and the folder of its log and records. A repeat uses the script of another folder."""

    file: Path
    folder: Path


def render_array(
    plans: Sequence[Plan],
    cluster: Cluster,
    scripts: Sequence[JobScript],
    folder: Path,
    templates: Path,
    *,
    at_once: int,
    gate: Gate | None = None,
) -> str:
    """Return one array for jobs with equal resources: element i runs script i, `at_once` at a time."""
    name = short_name(plans[0].case.experiment)
    own = [
        directive("array", f"0-{len(plans) - 1}%{at_once}"),
        directive("output", output_pattern(folder) + "/%A_%a.txt"),
    ]
    shared = directives(plans[0], cluster, job_name=f"{name}-{plans[0].case.scale}")
    return templates_in(templates).render("array.sh.j2", directives=[*shared, *own], jobs=scripts, **_gate(gate))


def render_queue(
    scripts: Sequence[JobScript],
    lock: Path,
    templates: Path,
    *,
    gate: Gate | None = None,
    follows: Sequence[FollowedJob] = (),
) -> str:
    """Return the script of a local queue, which runs the scripts one after another."""
    return templates_in(templates).render("queue.sh.j2", jobs=scripts, lock=str(lock), follows=follows, **_gate(gate))


def _gate(gate: Gate | None) -> dict[str, object]:
    """Return the values of gate.sh.j2."""
    if gate is None:
        return {"has_gate": False}
    return {
        "has_gate": True,
        "run_folder": gate.run_folder,
        "stop_after": gate.stop_after,
        "failure_patterns": FAILURE_PATTERNS,
        "log_tail_bytes": LOG_TAIL_BYTES,
        "canary": gate.canary,
        "time_limit": dict(FAILURE_PATTERNS)[Failure.TIMEOUT.value],
        "warm_up": gate.warm_up,
        "enough": ENOUGH_SAMPLES,
    }


def _render(
    plan: Plan | SidePlan,
    cluster: Cluster,
    folder: Path,
    engine: Templates,
    output: Path | None,
    comment: str | None = None,
) -> str:
    shared = _shared(plan, cluster, folder)
    if cluster.profile.scheduler == "local":
        if plan.program.launcher is None:  # one process, or several by mpirun
            command, processes = _command(plan, cluster, plan.program.per_rank()), plan.resources.tasks
        else:
            argv, below = plan.program.all_ranks(plan.resources.tasks), plan.program.below_launcher()
            launcher, processes = argv[: len(argv) - len(below)], 1
            command = [*_command(plan, cluster, launcher), *_command(plan, cluster, below)]
        return engine.render("local.sh.j2", **shared, command=command, processes=processes)
    if cluster.profile.mpirun is not None:
        return engine.render("mpirun.sh.j2", **shared, **_mpirun(plan, cluster))
    all_directives = [*directives(plan, cluster), directive("output", output_pattern(output or folder / "batch.txt"))]
    if comment is not None:
        lines, slurm = field_lines(cluster, "slurm", "comment"), cluster.profile.slurm
        all_directives = [line for line in all_directives if not line.words[0].startswith("--comment=")]
        text = joined_comment(comment, slurm.comment if slurm is not None else None)
        all_directives.append(directive("comment", text, *(line.origin for line in lines)))
    options = srun_options(plan, cluster)
    placement = rank_placement(options)
    is_arbitrary = any(line.words[0].partition("=")[2].startswith("arbitrary") for line in placement)
    shared |= {"directives": all_directives, "srun_options": options}
    shared |= {"placement": placement, "is_arbitrary": is_arbitrary, "notes": list(srun_notes(plan, cluster, options))}
    container = cluster.profile.container
    argv = plan.program.per_rank() if shared["per_node"] is None else plan.program.below_launcher()
    command = _command(plan, cluster, argv)
    if container is None:
        return engine.render("sbatch.sh.j2", **shared, command=command)
    wrapping = wrapping_of(plan, cluster, folder)
    passed = [*cluster.profile.env_from, *container.pass_env]
    script = container.record.script
    return engine.render(script, **shared, command=command, wrapping=wrapping, passed=passed, image=plan.program.image)


def _shared(plan: Plan | SidePlan, cluster: Cluster, folder: Path) -> dict[str, object]:
    """Return the values that the templates of all schedulers have."""
    # Interval of GPU samples in seconds.
    resources, case = plan.resources, plan.case
    has_gpus = resources.gpus > 0
    gpus = f", {counted(resources.gpus, 'GPU')}" if has_gpus else ""
    sampler = next(iter(field_lines(cluster, "sample_gpus_every_s")), None) if has_gpus else None
    program, origin = plan.program, own_origin(plan)
    slurm, tasks = cluster.profile.slurm, cluster.location(("slurm", "tasks"))
    is_per_node = slurm is not None and slurm.tasks == "per-node"

    def place(path: str | None) -> Line | None:
        return None if path is None else Line.of(path, program_origin(plan, cluster, path))

    return {
        "case": case,
        "title": f"{case.experiment} {plan.label} at scale {case.scale} on {plan.cluster}: job {plan.identity}",
        "changes": shown_changes(case.argument_changes),
        "layers": [str(file.absolute()) for file in cluster.files] if len(cluster.files) > 1 else [],
        "folder": str(folder),
        "resources": plan.resources,
        "environment": environment(plan, cluster),
        "prepended": list(_prepended(plan, cluster)),
        "unset": field_lines(cluster, "env_unset"),
        "wanted": field_lines(cluster, "env_from"),
        "setup": list(setup_lines(cluster, plan.resources.nodes)),
        "kernels": place(program.compiles_in),
        "sampler": sampler,
        "runs_beside": cluster.profile.scheduler == "local" or sampler is not None,
        "fingerprint": known_program(program.name) is not None or program.origin is not None,
        "has_gpus": has_gpus,
        "python": place(program.python or None),
        "checkout": place(program.checkout),
        "python_strays": [name for name in _IMPORT_VARIABLES if name not in cluster.profile.env_from],
        "time_limit_s": Line.of(str(time_limit_s(plan.resources.time_limit)), time_limit_origin(plan, cluster)),
        "host_suffix": next(iter(field_lines(cluster, "rendezvous", "host_suffix")), None),
        "port": next(iter(field_lines(cluster, "rendezvous", "port")), None),
        # Number of processes that a launcher starts per node; None if the scheduler starts them.
        "per_node": Line.of(str(resources.tasks_per_node), tasks) if is_per_node and program.launcher else None,
        "launcher": program.launcher and Line.of(program.launcher, origin),
        "described": program.origin,
        "size": f"{counted(resources.nodes, 'node')}{gpus}: {counted(resources.tasks, 'process')}",
        "texts": [(file.name, Line.of(file.text, origin)) for file in program.files if file.text is not None],
        "copies": [
            (file.name, Line.of(f"{program.copies}/{file.name}", origin)) for file in program.files if file.text is None
        ],
        "steps": [(step, Line(step.words, origin), Line(step.probe, origin)) for step in program.steps],
    }


def environment(plan: Plan | SidePlan, cluster: Cluster) -> list[tuple[str, Line]]:
    """Return the variables of a job: those of every job, then of its program, then of the site."""
    shared = {"PYTHONUNBUFFERED": "1"}
    if plan.program.origin is None:
        record = known_program(plan.program.name) or probe_program()  # a probe has the variables of its program
        shared = {**(record.rank_environment() if record is not None else {}), "OMP_NUM_THREADS": "1", **shared}
    variables = {name: Line.of(value) for name, value in shared.items()}
    variables |= {name: Line.of(value, own_origin(plan)) for name, value in plan.program.environment}
    for name, text in cluster.profile.variables(plan.resources.nodes).items():
        variables[name] = Line.of(text, cluster.location(("environment", name)))
    return list(variables.items())


def _prepended(plan: Plan | SidePlan, cluster: Cluster) -> Iterator[tuple[str, Line]]:
    """Yield the folders that are put in front of a variable that an image or a module may have set."""
    for name, folders in cluster.profile.prepended(plan.resources.nodes).items():
        yield name, Line.of(folders, cluster.location(("env_prepend", name)))
    if plan.program.path:
        yield "PATH", Line.of(plan.program.path, program_origin(plan, cluster, plan.program.path))
    if plan.program.python_path:  # last, so that nothing precedes the recorded program
        origin = program_origin(plan, cluster, *plan.program.python_path.split(":"))
        yield "PYTHONPATH", Line.of(plan.program.python_path, origin)


def setup_lines(cluster: Cluster, nodes: int) -> Iterator[Line]:
    """Yield the profile's bash lines for a job on so many nodes."""
    for i, line in enumerate(cluster.profile.setup):
        text, when = (line.run, line.when) if isinstance(line, SetupFields) else (line, None)
        if holds(when, nodes):
            yield Line.of(text, cluster.location(("setup", i)))


def _command(plan: Plan | SidePlan, cluster: Cluster, argv: Sequence[str]) -> list[Line]:
    """Return the program's command line; each flag has the profile, the experiment or the program as its origin."""
    own, experiment = set(plan.case.arguments), experiment_file(plan)
    added = {changed_flag(change) for change in plan.case.argument_changes}

    def origin(words: Sequence[str]) -> str:
        if words[0] in added:
            return "--arg"
        if any(map(plan.program.field_of, words)):
            return program_origin(plan, cluster, *words)
        if own and set(words) <= own:
            return experiment
        of_program = own_origin(plan)
        is_whole = plan.program.origin is not None or words[0] == plan.program.command[0]
        return of_program if is_whole else f"{of_program}, {experiment}"

    return command_lines(argv, origin)


def _mpirun(plan: Plan | SidePlan, cluster: Cluster) -> dict[str, object]:
    """Return the options of mpirun: processes per node, arguments of the site, and the names of exported variables."""
    mpirun = cluster.profile.mpirun
    assert mpirun is not None
    location_of, resources = cluster.location, plan.resources
    case, hostfile, words = experiment_file(plan), location_of(("mpirun", "hostfile")), mpirun.arguments
    starts = [i for i, word in enumerate(words) if i == 0 or word.startswith("-")]  # an option and its values per line
    arguments = (
        Line(tuple(words[start:end]), location_of(("mpirun", "arguments", start)))
        for start, end in pairwise([*starts, len(words)])
    )
    options = [
        Line(("--hostfile", mpirun.hostfile), hostfile),
        Line(("-np", str(resources.tasks)), case),
        Line(("--map-by", f"ppr:{resources.tasks_per_node}:node"), case),
        Line(("--bind-to", "none"), OURS),
        *arguments,
        *(replace(name, words=("-x", *name.words)) for name in field_lines(cluster, "env_from")),
    ]
    return {
        "hostfile": Line.of(mpirun.hostfile, hostfile),
        "mpirun_options": options,
        "command": _command(plan, cluster, plan.program.per_rank()),
    }
