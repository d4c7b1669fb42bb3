"""Entry point of `repro`: a lazy command group, and the one place where errors are printed."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from orchestrator import __version__, api
from orchestrator.cli import completion
from orchestrator.cli.output import Console, data, message
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_USER_ERROR, Problem, ReproError

PANELS = {
    "Look": {
        "list": ("catalog", "List the experiments: sizes, cost and progress."),
        "show": ("show", "Show an experiment: cases, published numbers, claims."),
        "plan": ("catalog", "Check each case: validity, memory, time and cost."),
        "status": ("watch", "Show the state, verdict and speed of jobs."),
        "logs": ("watch", "Print the log of a job."),
        "history": ("watch", "Show all attempts and events of a job."),
        "sql": ("watch", "Query the ledger, read-only."),
    },
    "Run": {
        "submit": ("submission", "Submit the cases that are not verified or open."),
        "render": ("catalog", "Print the batch script of each case."),
        "adopt": ("adopting", "Read jobs that were submitted by hand."),
        "wait": ("run", "Wait until jobs have ended."),
        "retry": ("run", "Submit failed jobs again."),
        "cancel": ("run", "Cancel jobs."),
        "forget": ("forgetting", "Hide attempts from tables and exit codes."),
    },
    "Judge": {
        "collect": ("results", "Export the measured numbers of each case."),
        "compare": ("compare", "Compare with published numbers, or two sets of runs."),
        "claims": ("results", "Judge the claims of the paper."),
        "plot": ("results", "Draw the figure on the paper's axes."),
    },
    "Share": {
        "report": ("results", "Write one HTML page about experiments."),
        "bundle": ("results", "Write or verify a bundle for reviewers."),
    },
    "Sites": {
        "clusters": ("sites", "Cluster profiles: list, show, check, create."),
        "nodes": ("nodes", "Nodes that jobs may not use: deny, list, allow."),
        "images": ("sites", "Container images of a cluster: list, import."),
        "workloads": ("workloads", "Programs: list, show, fetch code and data."),
        "config": ("configuration", "Your settings, and where each one comes from."),
    },
}
"""Panel of the help -> command -> (module, summary). A module is imported when its command is used."""

COMMANDS = {name: command for commands in PANELS.values() for name, command in commands.items()}


class LazyGroup(TyperGroup):
    """Command group that imports the module of a command when the command is used."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands.update(dict.fromkeys(COMMANDS, cast(Any, None)))  # names only: for suggestions

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Return a command, or None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module_name, summary = COMMANDS[cmd_name]
        module = importlib.import_module(f"orchestrator.cli.{module_name}")
        group = getattr(module, cmd_name, None)
        command = get_group(group) if isinstance(group, typer.Typer) else get_group(module.app).commands[cmd_name]
        command.name, command.short_help = cmd_name, summary
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Print the summaries in panels, without an import."""
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name.ljust(8), summary) for name, (_, summary) in commands.items()])


UsageError = cast(type[typer.BadParameter], typer.BadParameter.__base__)
"""Error in the words of the command line. Typer exports only this subclass."""

app = typer.Typer(
    name="repro",
    cls=LazyGroup,
    help="Run published figures on your cluster and compare the numbers.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog="Exit codes: 0 success, 1 a job or claim failed, 2 user error, 3 scheduler or machine unreachable.",
)


def _print_version(is_given: bool) -> None:
    if is_given:
        data(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Print the traceback of an error. Works in any position."),
) -> None:
    """Run published figures on your cluster and compare the numbers."""


def main() -> None:
    """Run the command line."""
    argv, console = sys.argv[1:], Console()
    code: int | None = None
    try:
        api.require_text(argv)
        words = [word for word in argv if word != "--debug"]
        with completion.rejoined_words(os.environ):
            code = get_command(app)(words, prog_name="repro", obj=console, standalone_mode=False)
    except typer.Abort:
        message("aborted")
        code = EXIT_FAILED
    except UsageError as error:
        code = _print_usage_error(error)
    except Exception as error:
        if "--debug" in argv:
            message(traceback.format_exc().rstrip())
        code = _print_error(error)
    if console.wrong_values and code in (None, EXIT_OK, EXIT_FAILED):
        code = EXIT_USER_ERROR
    sys.exit(code)


def _print_usage_error(error: typer.BadParameter) -> int:
    """Print a wrong option, argument or command in one line; return the exit code."""
    text = error.format_message().removesuffix(".").replace("Value error, ", "")
    if text.startswith("Usage:"):  # the help of a group that was called without a command
        error.show()
        return error.exit_code
    command = error.ctx.command_path if error.ctx is not None else "repro"
    name = command.removeprefix("repro").strip()
    suggestion = "Did you mean" in text
    hint = None if suggestion else f"{command} --help"
    message(f"repro: {Problem(text[0].lower() + text[1:], f'{name}:' if name else None, hint)}")
    return error.exit_code


def _print_error(error: Exception) -> int:
    """Print an error in one line for each problem; return the exit code."""
    if isinstance(error, ReproError):
        for problem in error.problems:
            message(f"repro: {problem}")
        return error.exit_code
    if isinstance(error, OSError):
        location = f"{error.filename}: " if error.filename else ""
        message(f"repro: {location}{error.strerror or error}")
    else:
        text = " ".join(str(error).split())
        message(f"repro: defect in repro: {type(error).__name__}: {text}. Hint: --debug prints the traceback")
    return EXIT_USER_ERROR


if __name__ == "__main__":
    main()
