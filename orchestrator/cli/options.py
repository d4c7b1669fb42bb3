"""Options and arguments that several commands share, and the session of a command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.errors import Problem, ReproError
from orchestrator.files import require_place
from orchestrator.paths import default_config_file, find_folders

Complete = Callable[..., list[str]] | None
_EXPERIMENT = "figure-13, with its paper sc21/figure-13, or a file my/figure.yaml."
_CLUSTER = "Name of a cluster, or path of its profile."


def _program(name: str | None) -> str | None:
    return None if name is None else api.program_name(name)


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


def argument(value: str, text: str, complete: Complete = None) -> Any:
    """Return an argument: the name of its value in the help, its meaning, and the completion of the value."""
    return typer.Argument(metavar=value, help=text, autocompletion=complete)


def value_option(name: str, value: str, text: str, complete: Complete = None, **settings: Any) -> Any:
    """Return an option with a value: the names of both, its meaning, and the completion of the value."""
    return typer.Option(name, metavar=value, help=text, autocompletion=complete, **settings)


def _short_form(name: str, path: str, value: str, about: str = "") -> Any:
    """Return the option that is short for a setting. Its value is the setting, `slurm.qos=high`."""

    def as_setting(given: str | None) -> str | None:
        return None if given is None else f"{path}{_as_yaml(given)}"

    return value_option(name, value, f"{about}Short for --set {path}...", callback=as_setting)


_LAST = f"{_EXPERIMENT} Default: the one submitted last."
_ALL = f"{_EXPERIMENT} Default: all."
_PAPERS = completion.experiments_and_papers
ExperimentName = Annotated[str, argument("EXPERIMENT", _EXPERIMENT, completion.experiments)]
MaybeExperiment = Annotated[str | None, argument("EXPERIMENT", _LAST, completion.experiments)]
AnyExperiment = Annotated[str | None, argument("EXPERIMENT", _ALL, completion.experiments)]
ExperimentNames = Annotated[
    list[str], argument("EXPERIMENT...", "figure-13, sc21/figure-13, or a paper: sc21. Repeatable.", _PAPERS)
]
JobName = Annotated[str, argument("JOB", "Job id, or the start of one.", completion.job_ids)]
Targets = Annotated[list[str], argument("EXPERIMENT|JOB...", "Experiments or job ids.", completion.jobs)]
MaybeTargets = Annotated[
    list[str] | None,
    argument("EXPERIMENT|JOB...", "Experiments or job ids. Default: all open jobs.", completion.jobs),
]
Scale = Annotated[
    str | None,
    value_option("--scale", "SCALE", "paper, quad, cpu, ... Default: the largest that fits.", completion.scales),
]
ScaleOf = Annotated[
    str, value_option("--scale", "SCALE", "paper is the published size; quad, cpu, ...", completion.scales)
]
OnlyScale = Annotated[str | None, value_option("--scale", "SCALE", "Only jobs of this scale.", completion.scales)]
OnlyCluster = Annotated[
    str | None,
    value_option("--cluster", "CLUSTER", "Only jobs of this cluster.", completion.clusters, callback=_recorded_cluster),
]
ClusterName = Annotated[
    str | None,
    value_option(
        "--cluster", "CLUSTER", _CLUSTER, completion.clusters, envvar="REPRO_CLUSTER", callback=_maybe_cluster
    ),
]
OnCluster = Annotated[
    str,
    value_option(
        "--cluster",
        "CLUSTER",
        _CLUSTER,
        completion.clusters,
        envvar="REPRO_CLUSTER",
        default_factory=str,  # not required, because the configuration may have it
        show_default=False,
        callback=_required_cluster,
    ),
]
ProgramName = Annotated[
    str | None,
    value_option(
        "--program",
        "PROGRAM",
        "Run another program. megatron-core is the newest Megatron-LM.",
        completion.programs,
        callback=_program,
    ),
]
OnlyProgram = Annotated[
    str | None,
    value_option("--program", "PROGRAM", "Only jobs of this program.", completion.programs, callback=_program),
]
OnlyState = Annotated[
    str | None,
    value_option(
        "--state",
        "STATES",
        "Only jobs in these states: running, pending, timeout, ..., verified, partial or failed.",
        completion.states,
    ),
]
Where = Annotated[
    str | None,
    value_option("--where", "AXIS=VALUE", "Only these cases, for example pp=8,gbs=32.", completion.cases),
]
TimeBudget = Annotated[
    str | None,
    value_option(
        "--time-budget",
        "TIME",
        "Reduce iterations: all chosen jobs, one after another, are predicted to fit in 10m, 600s, 1h or 0:10:00. "
        "If Slurm runs several jobs at once, the time is an upper bound.",
    ),
]
CostBudget = Annotated[
    str | None,
    value_option(
        "--cost-budget",
        "MONEY",
        "Reduce iterations: all chosen jobs are predicted to cost at most 50USD, or 50 in the currency of the "
        "profile's price_per_gpu_hour.",
    ),
]
AddedArguments = Annotated[
    list[str] | None,
    value_option("--arg", "ARGUMENT", "Add or replace an argument of the program: --arg --lr=0.001. Repeatable."),
]
DroppedArguments = Annotated[
    list[str] | None,
    value_option("--no-arg", "ARGUMENT", "Leave an argument of the program out: --no-arg --overlap-sp-ag. Repeatable."),
]
OnlyArguments = Annotated[
    list[str] | None,
    value_option("--arg", "ARGUMENT", "Results with this changed argument: --arg=--lr=0.001. Repeatable."),
]
OnlyRun = Annotated[
    str | None,
    value_option(
        "--run",
        "RUN",
        "Results of this run. Default: the published arguments if measured, else the latest measured run.",
    ),
]
Without = Annotated[
    list[str] | None,
    value_option(
        "--without",
        "ATTEMPT=REASON",
        "Leave an attempt out of the results: 3f2a:1='a slow node' is attempt 1 of a job. Repeatable.",
    ),
]
ResultAttempt = Annotated[
    int | None,
    value_option(
        "--attempt",
        "NUMBER",
        "Use the attempts of this number. Default: the last verified ones, else the last partial ones.",
        min=1,
    ),
]
Settings = Annotated[
    list[str] | None,
    value_option(
        "--set",
        "PATH=VALUE",
        "Set a field of the profile or the experiment: slurm.qos=high, container.mounts+=/data, "
        "training.iterations=50. Repeatable.",
    ),
]
Example = Annotated[
    bool | None, typer.Option("--example", help="Fill open values of the profile with examples, to read the scripts.")
]
Partition = Annotated[str | None, _short_form("--partition", "slurm.partition=", "PARTITION")]
QosName = Annotated[str | None, _short_form("--qos", "slurm.qos=", "QOS")]
Reservation = Annotated[str | None, _short_form("--reservation", "slurm.reservation=", "RESERVATION")]
NodeList = Annotated[str | None, _short_form("--nodelist", "slurm.nodelist=", "NODES")]
Exclude = Annotated[str | None, _short_form("--exclude", "slurm.exclude+=", "NODES")]
JobTime = Annotated[str | None, _short_form("--time", "time_limit=", "TIME", "Time limit of each job. ")]
OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write to this file.")]
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
    value_option(
        "--notify",
        "URL",
        "Send a message when this command has waited: mailto://, slack://, json://, ... Repeatable. "
        "Default: REPRO_NOTIFY, or notify: of your configuration.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wide = Annotated[bool, typer.Option("--wide", "-w", help="Show all columns.")]


_PLAIN_VALUE = re.compile(r"[A-Za-z][\w./-]*|[0-9]+(?:-[0-9]+)?(?::[0-9]+){2}")


def all_settings(settings: list[str] | None, *short_forms: str | None) -> list[str]:
    """Return the values of `--set`, then those of the short forms that are given."""
    return [*(settings or ()), *filter(None, short_forms)]


def _as_yaml(text: str) -> str:
    """Return the text as a YAML value that is read as this text."""
    return text if _PLAIN_VALUE.fullmatch(text) and text not in ("true", "false", "null") else json.dumps(text)


def session_of(context: typer.Context) -> api.Session:
    """Return the session of a command: its reporter is the console of this process. Runs record the command line."""
    return api.Session(context.obj.database, context.obj, tuple(sys.argv))


def experiments_of(targets: Sequence[str]) -> Sequence[str]:
    """Return the targets that are experiments, not job ids."""
    names = api.experiment_names(find_folders())
    return [target for target in targets if api.names_meant(names, target)]


def confirm_overwrite(files: Sequence[Path], force: bool) -> None:
    """Raise ReproError unless the files may be written; ask once before existing files are replaced, unless `force`."""
    for file in files:
        require_place(file)
    existing = [file for file in files if file.exists()]
    if not existing or force:
        return
    if not sys.stdin.isatty():
        raise ReproError(*(Problem("exists already", f"{file}:", "--force replaces it") for file in existing))
    typer.confirm(f"Replace {', '.join(map(str, existing))}?", abort=True, err=True)
