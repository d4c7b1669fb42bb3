"""Options and arguments that several commands share, and the session of a command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypedDict, cast

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.output import message
from orchestrator.cli.suggestion import only, suggest, suggested
from orchestrator.errors import Problem, ReproError
from orchestrator.paths import default_config_file, find_folders

_EXPERIMENT = "figure-13, with its paper sc21/figure-13, or a file my/figure.yaml."
_CLUSTER = "Name of a cluster, or path of its profile."


def _workload(name: str | None) -> str | None:
    return None if name is None else api.workload_name(name)


def _maybe_cluster(context: typer.Context, name: str | None) -> str | None:
    """Return the cluster of the command line, else the default of the environment or the configuration."""
    source = context.get_parameter_source("cluster")
    is_given = source is not None and source.name == "COMMANDLINE"
    return name if is_given or context.resilient_parsing else api.default_cluster()


def _required_cluster(context: typer.Context, name: str) -> str:
    chosen = _maybe_cluster(context, name)
    if chosen or context.resilient_parsing:
        return chosen or name
    hint = f"name a cluster, or set a default: REPRO_CLUSTER, or `cluster:` in {default_config_file()}"
    raise ReproError(Problem("missing option '--cluster'", f"{context.info_name}:", hint))


def _recorded_cluster(name: str | None) -> str | None:
    """Return the name that jobs have: that of the file if a profile's path is given."""
    return Path(name).stem if name is not None and name.endswith(".yaml") else name


def _use_json(context: typer.Context, value: bool) -> bool:
    """Let the console print a document of this command at its end."""
    if value and context.obj is not None:
        context.obj.json.command = context.command_path.removeprefix("repro ")
    return value


ExperimentName = Annotated[str, typer.Argument(help=_EXPERIMENT, autocompletion=completion.experiments)]
MaybeExperiment = Annotated[
    str | None,
    typer.Argument(help=f"{_EXPERIMENT} Default: the one submitted last.", autocompletion=completion.experiments),
]
ExperimentNames = Annotated[
    list[str],
    typer.Argument(
        help="figure-13, sc21/figure-13, or a paper: sc21. Repeatable.",
        autocompletion=completion.experiments_and_papers,
    ),
]
AnyExperiment = Annotated[
    str | None, typer.Argument(help=f"{_EXPERIMENT} Default: all.", autocompletion=completion.experiments)
]
JobName = Annotated[str, typer.Argument(help="Job id, or the start of one.", autocompletion=completion.job_ids)]
Targets = Annotated[list[str], typer.Argument(help="Experiments or job ids.", autocompletion=completion.jobs)]
MaybeTargets = Annotated[
    list[str] | None,
    typer.Argument(help="Experiments or job ids. Default: all open jobs.", autocompletion=completion.jobs),
]
Database = Annotated[
    str | None,
    typer.Option("--database", envvar="REPRO_DATABASE", help="Ledger: a file or a URL. Default: results.db."),
]
Scale = Annotated[
    str | None,
    typer.Option(
        "--scale", help="paper, quad, cpu, ... Default: the largest that fits.", autocompletion=completion.scales
    ),
]
ScaleOf = Annotated[
    str,
    typer.Option("--scale", help="paper is the published size; quad, cpu, ...", autocompletion=completion.scales),
]
OnlyCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Only jobs of this cluster.",
        callback=_recorded_cluster,
        autocompletion=completion.clusters,
    ),
]
OnlyScale = Annotated[
    str | None, typer.Option("--scale", help="Only jobs of this scale.", autocompletion=completion.scales)
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload",
        help="Run another program. megatron-core is the newest Megatron-LM.",
        callback=_workload,
        autocompletion=completion.workloads,
    ),
]
OnlyWorkload = Annotated[
    str | None,
    typer.Option(
        "--workload", help="Only jobs of this program.", callback=_workload, autocompletion=completion.workloads
    ),
]
OnlyState = Annotated[
    str | None,
    typer.Option(
        "--state",
        help="Only jobs in these states: running, pending, timeout, ..., verified, partial or failed.",
        autocompletion=completion.states,
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Only these cases, for example pp=8,gbs=32.", autocompletion=completion.cases),
]
ClusterName = Annotated[
    str | None,
    typer.Option(
        "--cluster", envvar="REPRO_CLUSTER", help=_CLUSTER, callback=_maybe_cluster, autocompletion=completion.clusters
    ),
]
OnCluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar="REPRO_CLUSTER",
        default_factory=str,  # not required, because the configuration may have it
        show_default=False,
        help=_CLUSTER,
        callback=_required_cluster,
        autocompletion=completion.clusters,
    ),
]
TimeBudget = Annotated[
    str | None,
    typer.Option(
        "--time-budget",
        help="Reduce iterations: all chosen jobs, one after another, are predicted to fit in 10m, 600s, 1h or 0:10:00. "
        "If Slurm runs several jobs at once, the time is an upper bound.",
    ),
]
CostBudget = Annotated[
    str | None,
    typer.Option(
        "--cost-budget",
        help="Reduce iterations: all chosen jobs are predicted to cost at most 50USD, or 50 in the currency of the "
        "profile's price_per_gpu_hour.",
    ),
]
AddedArguments = Annotated[
    list[str] | None,
    typer.Option("--arg", help="Add or replace an argument of the program: --arg --lr=0.001. Repeatable."),
]
DroppedArguments = Annotated[
    list[str] | None,
    typer.Option("--no-arg", help="Leave an argument of the program out: --no-arg --overlap-sp-ag. Repeatable."),
]
OnlyArguments = Annotated[
    list[str] | None,
    typer.Option("--arg", help="Results with this changed argument: --arg=--lr=0.001. Repeatable."),
]
OnlyRun = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="RUN",
        help="Results of this run. Default: the published arguments if measured, else the latest measured run.",
    ),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        metavar="ATTEMPT=REASON",
        help="Leave an attempt out of the results: 3f2a:1='a slow node' is attempt 1 of a job. Repeatable.",
    ),
]
ResultAttempt = Annotated[
    int | None,
    typer.Option(
        "--attempt",
        min=1,
        help="Use the attempts of this number. Default: the last verified ones, else the last partial ones.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Set a field of the profile or the experiment: slurm.qos=high, container.mounts+=/data, "
        "training.iterations=50. Repeatable.",
    ),
]
Example = Annotated[
    bool | None, typer.Option("--example", help="Fill open values of the profile with examples, to read the scripts.")
]
Partition = Annotated[str | None, typer.Option("--partition", help="Short for --set slurm.partition=...")]
QosName = Annotated[str | None, typer.Option("--qos", help="Short for --set slurm.qos=...")]
Reservation = Annotated[str | None, typer.Option("--reservation", help="Short for --set slurm.reservation=...")]
NodeList = Annotated[str | None, typer.Option("--nodelist", help="Short for --set slurm.nodelist=...")]
Exclude = Annotated[str | None, typer.Option("--exclude", help="Short for --set slurm.exclude+=...")]
JobTime = Annotated[str | None, typer.Option("--time", help="Time limit of each job. Short for --set time_limit=...")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")]
OutputPlace = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH",
        help="Write to this file, or into this folder: an existing one, or a name that ends with /. "
        "Several experiments need a folder.",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all jobs have ended, then print the result.")]


Notify = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="URL",
        help="Send a message when this command has waited: mailto://, slack://, json://, ... Repeatable. "
        "Default: REPRO_NOTIFY, or notify: of your configuration.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wide = Annotated[bool, typer.Option("--wide", "-w", help="Show all columns.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, also for errors.", callback=_use_json)]


class RunOptions(TypedDict, total=False):
    """Options that select runs of an experiment, as in api.RunFilter."""

    scale: OnlyScale
    cluster: OnlyCluster
    workload: OnlyWorkload


class JobOptions(RunOptions, total=False):
    """Options that select jobs, as in api.JobFilter."""

    where: Where


class FigureOptions(RunOptions, total=False):
    """Options that select runs for results, as in api.FigureFilter."""

    arg: OnlyArguments
    run: OnlyRun
    without: Without


class CaseSelection(JobOptions, FigureOptions, total=False):
    """Options that select runs and cases for results, as in api.CaseFilter."""


class StateOptions(JobOptions, total=False):
    """Options that select jobs, also by state, as in api.StateFilter."""

    state: OnlyState


class CaseOptions(TypedDict, total=False):
    """Options that select the cases to plan, as in api.CaseOptions."""

    scale: Scale
    where: Where
    workload: WorkloadName
    time_budget: TimeBudget
    cost_budget: CostBudget
    arg: AddedArguments
    no_arg: DroppedArguments
    settings: Settings
    example: Example


class ShortForms(TypedDict, total=False):
    """Short forms of settings."""

    partition: Partition
    qos: QosName
    reservation: Reservation
    nodelist: NodeList
    exclude: Exclude
    time: JobTime


class PlanOptions(CaseOptions, ShortForms, total=False):
    """Options that select the cases to plan, with short forms of settings."""


_SHORT_FORMS = {
    "partition": "slurm.partition=",
    "qos": "slurm.qos=",
    "reservation": "slurm.reservation=",
    "nodelist": "slurm.nodelist=",
    "exclude": "slurm.exclude+=",
    "time": "time_limit=",
}
_PLAIN_VALUE = re.compile(r"[A-Za-z][\w./-]*|[0-9]+(?:-[0-9]+)?(?::[0-9]+){2}")


def case_options(options: PlanOptions) -> CaseOptions:
    """Return the options with each short form as a setting."""
    short = short_settings(options)
    kept = {name: value for name, value in options.items() if name not in _SHORT_FORMS}
    return cast(CaseOptions, kept | {"settings": [*(options.get("settings") or ()), *short]})


def short_settings(options: ShortForms) -> list[str]:
    """Return the settings that short forms stand for."""
    given = {name: value for name, value in options.items() if name in _SHORT_FORMS and value is not None}
    return [f"{_SHORT_FORMS[name]}{_as_yaml(str(value))}" for name, value in given.items()]


def _as_yaml(text: str) -> str:
    """Return the text as a YAML value that is read as this text."""
    return text if _PLAIN_VALUE.fullmatch(text) and text not in ("true", "false", "null") else json.dumps(text)


def session_of(context: typer.Context, database: str | None = None) -> api.Session:
    """Return the session of a command: its reporter is the console of this process. Runs record the command line."""
    return api.Session(database, context.obj, tuple(sys.argv))


def experiments_of(targets: Sequence[str]) -> Sequence[str]:
    """Return the targets that are experiments, not job ids."""
    names = api.experiment_names(find_folders())
    return [target for target in targets if api.names_meant(names, target)]


def no_longer_waiting(context: typer.Context, experiments: Sequence[str]) -> None:
    """Print that the command ends before the jobs of these experiments."""
    message("no longer waiting; the jobs continue")
    cancel = f"or: {suggested(context, 'cancel', *experiments)}" if experiments else "their states"
    suggest(context, cancel, "status", *only(experiments), "--watch")


def confirm_overwrite(files: Sequence[Path], force: bool) -> None:
    """Raise ReproError unless the files may be written; ask once before existing files are replaced, unless `force`."""
    for file in files:
        api.require_place(file)
    existing = [file for file in files if file.exists()]
    if not existing or force:
        return
    if not sys.stdin.isatty():
        raise ReproError(*(Problem("exists already", f"{file}:", "--force replaces it") for file in existing))
    typer.confirm(f"Replace {', '.join(map(str, existing))}?", abort=True, err=True)
