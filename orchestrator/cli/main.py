"""Entry point of `repro`: a lazy command group, and the one place where errors are printed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import typer
from typer.core import TyperGroup, TyperOption
from typer.main import get_command, get_group

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli.output import DOCUMENTS, OF_LEDGER, console, data, message
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_USER_ERROR, Problem, ReproError
from orchestrator.programs.plug_ins import PlugIn, plug_ins, with_taken_names

GROUP = "repro.commands"
_SUMMARY = re.compile(r'\A"""(.+?)(?:"""|\n)')
_PANEL = re.compile(r'^PANEL = "(.+)"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class AddedCommand:
    """Command of a plug-in, as the help shows it."""

    plug_in: PlugIn
    summary: str
    panel: str


@cache
def added_commands(taken: Collection[str]) -> dict[str, AddedCommand]:
    """Return the commands of plug-ins by name, without names that are taken."""
    found: dict[str, AddedCommand] = {}
    for name, plug_in in plug_ins(GROUP).items():
        text = plug_in.source()
        summary, panel = _SUMMARY.search(text), _PANEL.search(text)
        about = summary[1] if summary else f"Command of {plug_in.package}."
        found[name] = AddedCommand(plug_in, about, panel[1] if panel else "Commands of plug-ins")
    return {name: found[name] for name in found if name not in taken}


PANELS = {
    "Look at experiments and jobs": {
        "list": ("cli.catalog", "List the experiments of all papers: sizes and progress."),
        "show": ("cli.catalog", "Show an experiment: cases, published numbers, claims."),
        "plan": ("cli.catalog", "Check each case: validity, memory, time and cost."),
        "status": ("cli.records", "Show the state, verdict and speed of jobs."),
        "logs": ("cli.records", "Print the log of a job."),
        "history": ("cli.records", "Show all attempts and events of a job."),
        "sql": ("cli.records", "Query the ledger, the database of all jobs, read-only."),
    },
    "Run jobs": {
        "submit": ("cli.run", "Submit the cases that are not verified, partial or open."),
        "render": ("cli.catalog", "Print the batch script of each case."),
        "adopt": ("cli.run", "Record jobs whose scripts were submitted by hand."),
        "wait": ("cli.run", "Wait until jobs have ended."),
        "retry": ("cli.run", "Submit failed jobs again, with more time or on other nodes."),
        "cancel": ("cli.run", "Cancel jobs of experiments, or by job id."),
    },
    "Judge results": {
        "collect": ("cli.results", "Print and export the measured numbers of each case."),
        "compare": ("cli.results", "Compare with published numbers, or two sets of runs."),
        "claims": ("cli.results", "Judge the claims: each holds, fails, or is not judged."),
        "plot": ("cli.results", "Draw the figure on the paper's axes."),
    },
    "Share results": {
        "report": ("cli.results", "Write one HTML page with outcomes, pictures and provenance."),
        "bundle": ("cli.results", "Write or verify a bundle: one file with all evidence."),
    },
    "Set up a site": {
        "clusters": ("cli.sites", "Cluster profiles: list, show, check, create."),
        "nodes": ("cli.sites", "Nodes that jobs may not use: deny, list, allow."),
        "images": ("cli.sites", "Container images of a cluster: list, import."),
        "experiments": ("cli.catalog", "Files of experiments: write, check."),
        "programs": ("cli.sites", "Programs: list, show, fetch code and data."),
        "config": ("cli.sites", "Your settings, and where each one comes from."),
    },
}
"""Panel of the help -> command -> (module of this package, summary). A module is imported when its command is used."""

EXAMPLES = """\
repro list
repro show figure-13                                  # cases, axes, published numbers, claims
repro show sc21                                       # experiments of a paper
repro show core-cp --script                           # the published scripts, and the differences
repro plan table-1 --cluster selene
repro plan sc21                                       # a whole paper, on its own machine
repro plan figure-13 --cluster h200 --scale quad --time-budget 10m
repro status figure-13 --watch
repro status --cluster selene --state running,pending
repro status figure-13 --failed
repro logs 77a694 -f                                  # the first characters of a job id
repro logs 77a694 --rank 3 --attempt 1
repro history 77a694
repro sql "select * from v_results"
repro sql                                             # views and tables
repro submit figure-13 --cluster selene --dry-run     # show the jobs
repro submit figure-13 --cluster selene --canary --wait
repro submit figure-13 figure-16 --cluster selene     # a job that they share runs once
repro render figure-13 --cluster selene --where pp=8,gbs=32
repro render figure-13 --cluster selene --example     # with examples for open values
repro render figure-13 --cluster selene -o jobs       # all scripts, to submit by hand
repro adopt jobs                                      # the folder of `render -o jobs`
repro wait figure-13
repro wait --timeout 2h
repro retry figure-13 --dry-run
repro retry figure-13 --class timeout --time +50%
repro cancel figure-13
repro cancel 77a694
repro collect figure-13                               # a table, and all columns in a file
repro collect figure-13 -o figure-13.parquet
repro collect figure-13 --columns case,tflops_per_gpu | column -s, -t
repro compare figure-13                               # with the published numbers
repro compare selene eos                              # two clusters
repro claims figure-13
repro claims --cluster selene
repro plot figure-13 -o figure-13.pdf
repro report -o report                                # all submitted experiments
repro bundle figure-13 -o figure-13.tar.zst
repro bundle verify figure-13.tar.zst
repro clusters list
repro clusters show selene
repro clusters show selene --resolved                 # the file and line of each value
repro clusters check here
repro clusters check here --job                       # also on a node
repro clusters new here
repro clusters schema > schema.json
repro nodes deny n7 'n[9-12]' --cluster mine --because ECC --until 2026-12-31
repro nodes list
repro nodes allow n7
repro images list --cluster selene
repro images import --cluster selene
repro experiments new my/figure.yaml
repro experiments check my/figure.yaml
repro experiments schema > experiment.json
repro programs list
repro programs show megatron-2021 --cluster selene
repro programs fetch megatron-2021 --cluster selene
repro config show
""".splitlines()
"""Examples in the help of the command that they begin with."""

EXIT_CLOSED_PIPE = 141
"""Exit code if the reader of stdout ends first, as in `repro list | head -1`; shells have it for a SIGPIPE."""
EXIT_INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended."""

_GARBAGE_THRESHOLD = 100_000
"""New objects between two runs of the garbage collector. With Python's 700 they take a tenth of a short command."""

COMMANDS = {name: command for commands in PANELS.values() for name, command in commands.items()}
_NAMES = frozenset(COMMANDS)


class LazyGroup(TyperGroup):
    """Command group that imports the module of a command when the command is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update(dict.fromkeys(COMMANDS, cast(Any, None)))  # names only: for suggestions

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return [name for commands in all_panels().values() for name in commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command, or None if there is no such command."""
        if cmd_name not in COMMANDS:
            return self._added(cmd_name)
        module_name, summary = COMMANDS[cmd_name]
        return _command(importlib.import_module(f"orchestrator.{module_name}"), cmd_name, summary)

    def _added(self, name: str) -> object:
        """Return the command of a plug-in, or None if there is none. ReproError if it is broken."""
        added = added_commands(_NAMES)
        self.commands.update(dict.fromkeys(added, cast(Any, None)))
        if name not in added:
            return None
        module = added[name].plug_in.load()
        try:
            added_lines = [line for lines in getattr(module, "EXAMPLES", {}).values() for line in lines]
            EXAMPLES.extend(line for line in added_lines if line not in EXAMPLES)
            DOCUMENTS.update(getattr(module, "DOCUMENTS", {}))
            OF_LEDGER.update(getattr(module, "OF_LEDGER", ()))
            return _command(module, name, added[name].summary)
        except Exception as error:  # the module of another author
            what = f"has no command {name}: {type(error).__name__}: {error}"
            raise ReproError(added[name].plug_in.broken(what)) from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Print the summaries in panels, without an import."""
        for panel, commands in all_panels().items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(11), summary) for name, summary in commands.items()])
        for problem in with_taken_names(GROUP, _NAMES):
            message(f"note: {problem}")


def all_panels() -> Mapping[str, Mapping[str, str]]:
    """Return the summary of each command by panel, with those of plug-ins, without an import."""
    panels = {panel: {name: summary for name, (_, summary) in commands.items()} for panel, commands in PANELS.items()}
    for name, added in added_commands(_NAMES).items():
        panels.setdefault(added.panel, {})[name] = added.summary
    return panels


def _command(module: object, name: str, summary: str) -> object:
    """Return the command or the group of this name of a module."""
    group = getattr(module, name, None)
    command = get_group(group) if isinstance(group, typer.Typer) else get_group(getattr(module, "app")).commands[name]  # noqa: B009
    command.name, command.short_help = name, summary
    _complete(command, name)
    return command


def _complete(command: Any, name: str) -> None:
    """Add to a command and its subcommands what all have: examples in the help, `--json`, and `--database`."""
    if name in DOCUMENTS:
        help_text = "Print one JSON document, also for errors."
        command.params.append(
            TyperOption(param_decls=["--json"], is_flag=True, help=help_text, expose_value=False, callback=_use_json)
        )
    if name in OF_LEDGER:
        text = "Ledger: a file or a URL. Default: that of REPRO_DATABASE or your configuration, else results.db."
        names, callback = ["--database"], _use_database
        command.params.append(
            TyperOption(param_decls=names, metavar="FILE|URL", help=text, expose_value=False, callback=callback)
        )
    subcommands = getattr(command, "commands", {})
    if lines := [] if subcommands else examples_of(name):
        command.epilog = "\n\n".join(("Examples:", "\b\n" + "\n".join(f"  {line}" for line in lines)))
    for inner, subcommand in subcommands.items():
        _complete(subcommand, f"{name} {inner}")


def examples_of(name: str) -> list[str]:
    """Return the lines of examples of a command."""
    return [line for line in EXAMPLES if f"{line} ".startswith(f"repro {name} ")]


def _use_json(context: Any, _: object, value: bool) -> None:
    if value:
        console.json.command = context.command_path.removeprefix("repro ")


def _use_database(_context: object, _: object, value: str | None) -> None:
    console.database = value


UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Error in the words of the command line. Typer exports only this subclass."""

app = typer.Typer(
    name="repro",
    cls=LazyGroup,
    help="Run published figures on your cluster and compare the numbers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog="First: repro list, then repro submit figure-13 --cluster local --wait.\n\n"
    "repro COMMAND --help has examples.\n\n"
    "Exit codes: 0 success, 1 a job or claim failed, 2 user error, 3 scheduler or machine unreachable.",
)


def _print_version(is_given: bool) -> None:
    if is_given:
        data(f"repro {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error. Works in any position."),
) -> None:
    """Run published figures on your cluster and compare the numbers."""


def main() -> None:
    """Run the command line of this process, and end it."""
    gc.set_threshold(_GARBAGE_THRESHOLD)
    code = run(sys.argv[1:])
    gc.freeze()  # or Python looks at all objects once more at its end, which takes a tenth of the time of `status`
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run a command line, print its errors, and return the exit code."""
    console.start()
    problems: list[Problem] = []
    try:
        code = _run(argv, problems)
        if code == EXIT_CLOSED_PIPE:
            raise BrokenPipeError
        if console.json.command is not None:
            if code == EXIT_INTERRUPTED:
                problems.append(Problem("interrupted"))
            console.json.finish(problems, code)
        sys.stdout.flush()
    except BrokenPipeError:  # `repro list | head -1`
        code = EXIT_CLOSED_PIPE
        _discard_stdout()
    except OSError as error:  # the disk of stdout is full
        message(f"repro: stdout: {error.strerror or error}")
        code = EXIT_USER_ERROR
        _discard_stdout()
    return code


def _run(argv: Sequence[str], problems: list[Problem]) -> int:
    """Run the command, print its errors and add them to `problems`; return the exit code."""
    words = [word for word in argv if word != "--debug"]
    try:
        api.require_text(argv)
        with completion.rejoined_words(os.environ):
            return int(get_command(app)(words, prog_name="repro", standalone_mode=False) or EXIT_OK)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer has replaced the exception
            return EXIT_CLOSED_PIPE
        raise
    except BrokenPipeError:
        return EXIT_CLOSED_PIPE
    except KeyboardInterrupt:  # Typer catches it in commands, but not while the shell completes a word
        return EXIT_INTERRUPTED
    except typer.Abort:
        problems.append(Problem("aborted"))
        message("aborted")
        return EXIT_FAILED
    except UsageError as error:
        if "--json" in words:
            console.json.command = console.json.command or _command_name(words)
        return _print_usage_error(error, problems)
    except Exception as error:
        if "--debug" in argv:
            message(traceback.format_exc().rstrip())
        return _print_error(error, problems)


def _command_name(words: Sequence[str]) -> str:
    """Return the words of the command line that name the command: `clusters show`."""
    name = " ".join([word for word in words if not word.startswith("-")][:2])
    return name if name in DOCUMENTS else name.partition(" ")[0]


def _discard_stdout() -> None:
    """Keep Python from writing the rest of stdout at its end, which would print a second error."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_usage_error(error: typer.BadParameter, problems: list[Problem]) -> int:
    """Print a wrong option, argument or command in one line; return the exit code."""
    text = error.format_message().removesuffix(".").replace("Value error, ", "")
    if text.startswith("Usage:"):  # the help of a group that was called without a command
        error.show()
        return error.exit_code
    command = error.ctx.command_path if error.ctx is not None else "repro"
    name = command.removeprefix("repro").strip()
    suggestion = "Did you mean" in text
    hint = None if suggestion else f"{command} --help"
    problems.append(Problem(text[0].lower() + text[1:], f"{name}:" if name else None, hint))
    message(f"repro: {problems[-1]}")
    return error.exit_code


def _print_error(error: Exception, problems: list[Problem]) -> int:
    """Print an error in one line for each problem; return the exit code."""
    if isinstance(error, ReproError):
        new = list(error.problems)
    elif isinstance(error, OSError):
        new = [Problem(error.strerror or str(error), f"{error.filename}:" if error.filename else None)]
    else:
        text = " ".join(str(error).split())
        new = [Problem(f"defect in repro: {type(error).__name__}: {text}", hint="--debug prints the traceback")]
    for problem in new:
        message(f"repro: {problem}")
    problems += new
    return error.exit_code if isinstance(error, ReproError) else EXIT_USER_ERROR


if __name__ == "__main__":
    main()
