"""Find the fastest layout of a model inside a budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import api
from orchestrator.cli import completion
from orchestrator.cli import options as option
from orchestrator.cli.job_table import waiting
from orchestrator.cli.notify import message_addresses, send_message
from orchestrator.cli.options import argument, command_session, flag, value_option
from orchestrator.cli.output import as_row, data, filled_columns, message, put, suggest, table
from orchestrator.errors import EXIT_FAILED, EXIT_OK, Problem, ReproError
from orchestrator.fields import row_of, rows_of
from orchestrator.text import counted

if TYPE_CHECKING:
    from orchestrator.config.user import Address
    from orchestrator.megatron.search import api as searches

PANEL = "Run jobs"
EXAMPLES = {"search": ("repro search gpt-6.7b --gpus 16 --gbs 512 --cluster selene --budget 6gpu-hours",)}
DOCUMENTS = {
    "search": {
        "searches": "SearchSummary",
        "candidates": "SearchedCase",
        "reasons": "NotRunReason",
        "winners": "SearchWinner",
        "simulated": "SimulatedCase",
    }
}
OF_LEDGER = ("search",)

MOST_ROWS = 12
"""Number of candidates in the table. --json has all of them."""
MOST_REASONS = 6
"""Number of reasons why cases were not run. --json has all of them."""
_IMPORTANT = ("case", "state", "iteration_ms", "spread_ms", "predicted_ms", "memory_gb")
"""Columns that a narrow terminal shows first."""
Target = Annotated[
    str,
    argument(
        "MODEL|EXPERIMENT",
        "Model of a paper (gpt-6.7b), sizes (layers=32,hidden=4096,heads=32,seq=2048,vocab=51200), or an "
        "experiment whose cases are the candidates.",
        completion.experiments,
    ),
]
Simulate = Annotated[
    bool,
    flag(
        "Search the published results of an experiment, or with --cluster those measured there, without any job.",
        "--simulate",
    ),
]
BudgetText = Annotated[
    str | None,
    value_option("BUDGET", "Stop before the jobs exceed this: 6gpu-hours, or the time of all jobs, 30m."),
]

app = typer.Typer(rich_markup_mode=None)


@app.command()
def search(
    context: typer.Context,
    target: Target,
    *,
    cluster: option.ClusterName = None,
    gpus: Annotated[int | None, value_option("NUMBER", "Number of GPUs of each job.", min=1)] = None,
    gbs: Annotated[int | None, value_option("SEQUENCES", "Global batch size in sequences.", min=1)] = None,
    seq: Annotated[int | None, value_option("TOKENS", "Tokens of a sequence.", min=1)] = None,
    vocab: Annotated[int | None, value_option("NUMBER", "Entries of the vocabulary.", min=1)] = None,
    budget: BudgetText = None,
    where: option.Where = None,
    program: Annotated[
        str | None, value_option("PROGRAM", "Program that runs the candidates. Default: pretrain.", completion.programs)
    ] = None,
    cpu: Annotated[bool, flag("Run processes on CPU cores in place of GPUs.", "--cpu")] = False,
    iterations: Annotated[int, value_option("NUMBER", "Iterations of a complete job.", min=5)] = 20,
    short: Annotated[int, value_option("NUMBER", "Iterations of the first job of each candidate.", min=5)] = 8,
    finalists: Annotated[int, value_option("NUMBER", "Cases that run at full length at the end.", min=1)] = 3,
    max_parallel: Annotated[int, value_option("NUMBER", "Run this many jobs at once.", min=1)] = 1,
    settings: option.Settings = None,
    name: Annotated[str | None, value_option("NAME", "Name of the experiment that the search writes.")] = None,
    notify: option.Notify = None,
    simulate: Simulate = False,
    dry_run: Annotated[bool, flag("Show the candidates and their order only.", "--dry-run", "-n")] = False,
) -> None:
    """Find the fastest layout of a model: measure the most promising cases first, inside a budget."""
    from orchestrator.megatron.search import api as searches  # not for --help

    limit, addresses, session = searches.read_search_budget(budget), message_addresses(notify), command_session()
    if simulate:
        _print_simulated(*searches.simulate_search(target, cluster, where, session=session))
        return
    if cluster is None:
        raise ReproError(Problem("no cluster to search on", hint="add --cluster NAME, or --simulate"))
    prepared = searches.prepare_search(
        target,
        cluster,
        gpus=gpus,
        global_batch_size=gbs,
        seq=seq,
        vocab=vocab,
        where=where,
        program=program,
        on_cpu=cpu,
        iterations=iterations,
        name=name,
        settings=settings or (),
    )
    options = None if dry_run else searches.SearchOptions(limit, max_parallel, short, finalists)
    raise typer.Exit(_search(context, prepared, options, addresses))


def _search(
    context: typer.Context,
    prepared: searches.PreparedSearch,
    options: searches.SearchOptions | None,
    addresses: Sequence[Address],
) -> int:
    """Run the search and print the answer, without options the candidates; return the exit code."""
    from orchestrator.megatron.search import api as searches  # not for --help

    session = command_session()
    message(f"{prepared.entry.name} on {prepared.cluster.name}: {counted(len(prepared.candidates), 'candidate')}")
    if options is None:
        _print_answer(prepared, searches.search_answer(prepared, None, session=session))
        return EXIT_OK
    try:
        with waiting(context, addresses):
            answer = searches.run_search(prepared, options, session=session)
    except KeyboardInterrupt:
        message("interrupted; open jobs go on, and the same command continues the search")
        _print_answer(prepared, searches.search_answer(prepared, "interrupted", session=session))
        raise
    code = _print_answer(prepared, answer)
    fastest = searches.fastest_text(answer) or "no candidate is measured"
    end = f"search {prepared.entry.short_name} on {prepared.cluster.name}: {fastest}"
    send_message(addresses, [end], failed=code != EXIT_OK)
    return code


def _print_answer(prepared: searches.PreparedSearch, answer: searches.SearchAnswer) -> int:
    """Print the fastest cases, the winner, the hours and what was not run; return the exit code."""
    from orchestrator.megatron.search import api as searches  # not for --help

    measured = answer.measured
    counts = {"candidates": len(answer.candidates), "measured": len(measured)}
    names = {"experiment": prepared.entry.name, "cluster": prepared.cluster.name}
    others = [row for row in answer.rows if row.state != "measured"]
    arguments = {} if answer.winner is None else searches.arguments_by_program(answer.winner.case)
    winners = [] if answer.winner is None else [answer.winner]
    put(
        searches=[row_of(searches.SearchSummary, answer, **names, **counts)],
        candidates=rows_of(searches.SearchedCase, (*measured, *others)),
        reasons=[searches.NotRunReason(reason, count) for reason, count in answer.reasons],
        winners=rows_of(searches.SearchWinner, winners, margin=answer.margin, arguments=arguments),
    )
    candidates = (*measured, *(row for row in others if row.is_candidate))
    shown = [as_row(row) for row in rows_of(searches.SearchedCase, candidates)]
    columns = [name for name in filled_columns(shown[:MOST_ROWS]) if name != "detail"]
    table(shown[:MOST_ROWS], columns, important=_IMPORTANT)
    if len(shown) > MOST_ROWS:
        message(f"and {counted(len(shown) - MOST_ROWS, 'more candidate')}; --json lists all of them")
    _print_winner(prepared, answer)
    _print_hours(prepared, answer)
    for reason, count in answer.reasons[:MOST_REASONS]:
        message(f"not run: {counted(count, 'case')}: {reason}")
    failed = [row for row in answer.rows if row.state == "failed"]
    if failed:
        message(f"failed: {counted(len(failed), 'case')}, the first one {failed[0].case.name}: {failed[0].why}")
        suggest("the failed jobs", "status", prepared.entry.short_name, failed=True)
    if answer.winner is None:
        return EXIT_FAILED if answer.jobs else EXIT_OK
    for program, words in arguments.items():
        data(f"{program}: {shlex.join(words)}")
    name, cluster = prepared.entry.short_name, prepared.cluster.name
    suggest("throughput of the measured candidates", "plot", name, cluster=cluster)
    return EXIT_OK


def _print_winner(prepared: searches.PreparedSearch, answer: searches.SearchAnswer) -> None:
    from orchestrator.megatron.search import api as searches  # not for --help

    fastest, trial = searches.fastest_text(answer), answer.winner.trial if answer.winner else None
    if fastest is None or trial is None:
        if answer.stopped:
            message(f"no candidate is measured: {answer.stopped}")
        return
    message(fastest)
    if trial.iterations < prepared.iterations:
        message(
            f"note: it ran {counted(trial.iterations, 'iteration')}, not the {prepared.iterations} of a complete job"
        )
    if answer.stopped:
        message(f"stopped: {answer.stopped}")


def _print_hours(prepared: searches.PreparedSearch, answer: searches.SearchAnswer) -> None:
    unit = "GPU-hours" if prepared.candidates[0].case.device == "gpu" else "process-hours on CPU cores"
    count, whole = len(answer.candidates), answer.exhaustive_hours
    if answer.jobs:
        message(
            f"used: {_hours(answer.hours)} {unit} in {counted(answer.jobs, 'job')} "
            f"for {len(answer.measured)} of {counted(count, 'candidate')}"
        )
    if whole and answer.jobs and whole > answer.hours:
        how = "are predicted to take" if prepared.candidates[0].has_unit else "take at the time of the measured ones"
        saved = _hours(whole - answer.hours)
        message(f"saved: {saved} of the {_hours(whole)} {unit} that complete jobs of all candidates {how}")
    elif whole:
        how = "are predicted to take" if prepared.candidates[0].has_unit else "take about"
        message(f"complete jobs of all {counted(count, 'candidate')} {how} {_hours(whole)} {unit}")


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _print_simulated(entry: api.Entry, simulated: searches.Simulated) -> None:
    """Print the cases in the order in which a search measures them, with their known times."""
    best, rows = simulated.best_ms, simulated.cases
    put(simulated=rows)
    table([as_row(row) for row in rows], ["case", "iteration_ms"])
    found = simulated.measured_ms[simulated.found]
    message(f"{entry.short_name}: {len(rows)} of {counted(simulated.of, 'case')} measured; no other one can be faster")
    how_close = (
        "the fastest case" if found == best else f"{100 * (found / best - 1):.1f} % slower than {simulated.best}"
    )
    message(f"found: {simulated.found}, {how_close}")
