"""Options and arguments that several commands share, and the session of a command."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_type_hints

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli.output import as_yaml, console
from orchestrator.errors import Problem, ReproError
from orchestrator.files import require_place
from orchestrator.paths import default_config_file, find_folders

Complete = Callable[..., list[str]] | None
Command = TypeVar("Command", bound=Callable[..., None])
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


def value_option(value: str, text: str, complete: Complete = None, *names: str, **settings: Any) -> Any:
    """Return an option with a value: the name of the value in the help, its meaning, and the completion of the value.

    Without `names`, it has the name of its parameter.
    """
    return typer.Option(*names, metavar=value, help=text, autocompletion=complete, **settings)


def flag(text: str, *names: str) -> Any:
    """Return an option without a value: its meaning and its names."""
    return typer.Option(*names, help=text)


def _text(value: str, text: str, complete: Complete = None, **settings: Any) -> object:
    """Return the type of an option of a group: one text, or none."""
    return Annotated[str | None, value_option(value, text, complete, **settings)]


def _texts(value: str, text: str) -> object:
    """Return the type of an option of a group that may be repeated."""
    return Annotated[list[str] | None, value_option(value, text)]


def _short_form(path: str, value: str, about: str = "") -> object:
    """Return the type of an option that is short for a setting. Its value is the setting, `slurm.qos=high`."""

    def as_setting(given: str | None) -> str | None:
        return None if given is None else f"{path}{as_yaml(given)}"

    return _text(value, f"{about}Short for --set {path}...", callback=as_setting)


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
Scale = Annotated[
    str | None, value_option("SCALE", "paper, quad, cpu, ... Default: the largest that fits.", completion.scales)
]
ClusterName = Annotated[
    str | None, value_option("CLUSTER", _CLUSTER, completion.clusters, envvar="REPRO_CLUSTER", callback=_maybe_cluster)
]
OnCluster = Annotated[
    str,
    value_option(
        "CLUSTER",
        _CLUSTER,
        completion.clusters,
        envvar="REPRO_CLUSTER",
        default_factory=str,  # not required, because the configuration may have it
        show_default=False,
        callback=_required_cluster,
    ),
]
OnlyState = Annotated[
    str | None,
    value_option(
        "STATES",
        "Only jobs in these states: running, pending, timeout, ..., verified, partial or failed.",
        completion.states,
    ),
]
Where = Annotated[
    str | None, value_option("AXIS=VALUE", "Only these cases, for example pp=8,gbs=32.", completion.cases)
]
Settings = Annotated[
    list[str] | None,
    value_option(
        "PATH=VALUE",
        "Set a field of the profile or the experiment: slurm.qos=high, container.mounts+=/data, "
        "training.iterations=50. Repeatable.",
        None,
        "--set",
    ),
]
OutputPlace = Annotated[
    str | None,
    value_option(
        "PATH",
        "Write to this file, or into this folder: an existing one, or a name that ends with /. "
        "Several experiments need a folder.",
        None,
        "--output",
        "-o",
    ),
]
Force = Annotated[bool, flag("Replace an existing file.", "--force")]
Wait = Annotated[bool, flag("Wait until all jobs have ended, then print the result.", "--wait")]
Notify = Annotated[
    list[str] | None,
    value_option(
        "URL",
        "Send a message when this command has waited: mailto://, slack://, json://, ... Repeatable. "
        "Default: REPRO_NOTIFY, or notify: of your configuration.",
    ),
]
Wide = Annotated[bool, flag("Show all columns.", "--wide", "-w")]

_RUNS: Mapping[str, object] = {
    "scale": _text("SCALE", "Only jobs of this scale.", completion.scales),
    "cluster": _text("CLUSTER", "Only jobs of this cluster.", completion.clusters, callback=_recorded_cluster),
    "program": _text("PROGRAM", "Only jobs of this program.", completion.programs, callback=_program),
}
JOBS = {**_RUNS, "where": Where}
"""Options of `api.JobFilter`."""
ALL_RESULTS = {
    **_RUNS,
    "arg": _texts("ARGUMENT", "Results with this changed argument: --arg=--lr=0.001. Repeatable."),
    "run": _text(
        "RUN", "Results of this run. Default: the published arguments if measured, else the latest measured run."
    ),
    "without": _texts(
        "ATTEMPT=REASON", "Leave an attempt out of the results: 3f2a:1='a slow node' is attempt 1 of a job. Repeatable."
    ),
}
_ATTEMPT = "Use the attempts of this number. Default: the last verified ones, else the last partial ones."
RESULTS = {**ALL_RESULTS, "attempt": Annotated[int | None, value_option("NUMBER", _ATTEMPT, min=1)]}
"""Options of `api.FigureFilter`."""
_SHORT_FORMS = {
    "partition": _short_form("slurm.partition=", "PARTITION"),
    "qos": _short_form("slurm.qos=", "QOS"),
    "reservation": _short_form("slurm.reservation=", "RESERVATION"),
    "nodelist": _short_form("slurm.nodelist=", "NODES"),
    "exclude": _short_form("slurm.exclude+=", "NODES"),
    "time": _short_form("time_limit=", "TIME", "Time limit of each job. "),
}
SETTINGS = {"settings": Settings, **_SHORT_FORMS}
_EXAMPLE = "Fill open values of the profile with examples, to read the scripts."
CASES = {
    "scale": Scale,
    "where": Where,
    "program": _text(
        "PROGRAM",
        "Run another program. megatron-core is the newest Megatron-LM.",
        completion.programs,
        callback=_program,
    ),
    "time_budget": _text(
        "TIME",
        "Reduce iterations: all chosen jobs, one after another, are predicted to fit in 10m, 600s, 1h or 0:10:00. "
        "If Slurm runs several jobs at once, the time is an upper bound.",
    ),
    "cost_budget": _text(
        "MONEY",
        "Reduce iterations: all chosen jobs are predicted to cost at most 50USD, or 50 in the currency of the "
        "profile's price_per_gpu_hour.",
    ),
    "arg": _texts("ARGUMENT", "Add or replace an argument of the program: --arg --lr=0.001. Repeatable."),
    "no_arg": _texts("ARGUMENT", "Leave an argument of the program out: --no-arg --overlap-sp-ag. Repeatable."),
    "example": Annotated[bool | None, flag(_EXAMPLE, "--example")],
    **SETTINGS,
}
"""Options of `api.CaseOptions`."""


def with_options(options: Mapping[str, object]) -> Callable[[Command], Command]:
    """Return a decorator that gives a command these options, None by default, for its last parameter `**selection`.

    They come before the command's own options. Short forms of settings become values of `settings`.
    """

    def decorate(command: Command) -> Command:
        *own, selection = inspect.signature(command).parameters.values()
        del command.__annotations__[selection.name]
        types = get_type_hints(command, include_extras=True)
        own = [parameter.replace(annotation=types[parameter.name]) for parameter in own]
        added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=of) for name, of in options.items()]

        @wraps(command)
        def call(**values: Any) -> None:
            short_forms = [values.pop(name) for name in options if name in _SHORT_FORMS]
            if short_forms:
                values["settings"] = [*(values["settings"] or ()), *filter(None, short_forms)]
            command(**values)

        first = sum(parameter.kind is not Parameter.KEYWORD_ONLY for parameter in own)
        setattr(call, "__signature__", Signature([*own[:first], *added, *own[first:]]))  # noqa: B010
        return cast(Command, call)

    return decorate


def command_session() -> api.Session:
    """Return the session of a command: its reporter is the console of this process. Runs record the command line."""
    return api.Session(console.database, console, tuple(sys.argv))


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
