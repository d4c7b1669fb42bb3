"""`repro`: the commands put together, and the one place where errors are printed."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from orchestrator import __version__
from orchestrator.cli import (
    bundle,
    cancel,
    catalog,
    claims,
    clusters,
    collect,
    compare,
    completion,
    history,
    images,
    logs,
    plan,
    plot,
    render,
    report,
    retry,
    session,
    sql,
    status,
    submit,
    wait,
)
from orchestrator.cli.output import data, say
from orchestrator.errors import EXIT_FAILED, EXIT_OK, EXIT_USER_ERROR, Problem, ReproError

app = typer.Typer(
    name="repro",
    help="A paper's figure is a program you can run.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    epilog="Exit codes: 0 fine, 1 a job or claim failed, 2 yours to fix, 3 scheduler or machine out of reach.",
)
app.command("list")(catalog.list_experiments)
app.command()(catalog.show)
app.command()(plan.plan)
app.command()(submit.submit)
app.command()(render.render)
app.command()(status.status)
app.command()(wait.wait)
app.command()(logs.logs)
app.command()(history.history)
app.command()(cancel.cancel)
app.command()(retry.retry)
app.command()(collect.collect)
app.command()(compare.compare)
app.command()(claims.claims)
app.command()(plot.plot)
app.command()(report.report)
app.command()(bundle.bundle)
app.command()(sql.sql)
app.add_typer(clusters.app, name="clusters")
app.add_typer(images.app, name="images")


def _version(wanted: bool) -> None:
    if wanted:
        data(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="On an error show the traceback; may stand anywhere."),
) -> None:
    """A paper's figure is a program you can run."""


def _require_text(words: list[str]) -> None:
    """Refuse a NUL, which no path, name or URL has, and what is not UTF-8, which no script can hold."""
    found = [Problem(f"{word!r}: contains a NUL character", hint="remove it") for word in words if "\0" in word]
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            found.append(Problem(f"{word!r}: is not UTF-8 text", hint="use a name of UTF-8 characters"))
    if found:
        raise ReproError(*found)


def main() -> None:
    """The console script."""
    debug = "--debug" in sys.argv
    try:
        session.forget_wrong_cells()
        _require_text(sys.argv[1:])
        with completion.words_rejoined(os.environ):
            app([word for word in sys.argv[1:] if word != "--debug"], prog_name="repro")
    except SystemExit as end:
        if session.were_wrong_cells() and end.code in (None, EXIT_OK, EXIT_FAILED):
            sys.exit(EXIT_USER_ERROR)
        raise
    except ReproError as error:
        if debug:
            say(traceback.format_exc().rstrip())
        for problem in error.problems:
            say(f"repro: {problem}")
        sys.exit(error.exit_code)
    except OSError as error:
        if debug:
            say(traceback.format_exc().rstrip())
        place = f"{error.filename}: " if error.filename else ""
        say(f"repro: {place}{error.strerror or error}")
        sys.exit(ReproError.exit_code)
    except Exception as error:  # a defect of ours: still one line for the person
        if debug:
            say(traceback.format_exc().rstrip())
        words = " ".join(str(error).split())
        say(f"repro: a defect of repro: {type(error).__name__}: {words}; --debug shows where")
        sys.exit(ReproError.exit_code)


if __name__ == "__main__":
    main()
