"""What the shell offers at the Tab key: experiments, clusters, scales, cases and jobs. A fault offers nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.output import data

if TYPE_CHECKING:
    from orchestrator.catalog.case import Case


@contextmanager
def words_rejoined(environ: MutableMapping[str, str]) -> Iterator[None]:
    """bash ends a word at every `=`, so `pp=8,gbs=3` comes as five: put them together, and answer for the last."""
    words = environ.get("COMP_WORDS", "").split("\n")
    if environ.get("_REPRO_COMPLETE") != "complete_bash" or "=" not in words:
        yield
        return
    joined: list[str] = []
    for before, word in pairwise(["", *words]):
        if joined and "=" in (before, word):
            joined[-1] += word
        else:
            joined.append(word)
    environ.update(COMP_WORDS="\n".join(joined), COMP_CWORD=str(len(joined) - 1))
    set_aside = joined[-1].removesuffix("" if words[-1] == "=" else words[-1])
    offered = io.StringIO()
    try:
        with redirect_stdout(offered):
            yield
    finally:
        for line in offered.getvalue().splitlines():
            data(line.removeprefix(set_aside))


def experiments(incomplete: str) -> list[str]:
    """Short names where they are unique, else full ones."""
    return _offer(incomplete, _experiment_names)


def experiments_and_papers(incomplete: str) -> list[str]:
    def names() -> Iterable[str]:
        from orchestrator.catalog.library import experiment_names, papers
        from orchestrator.paths import find_folders

        return [*_experiment_names(), *papers(experiment_names(find_folders()))]

    return _offer(incomplete, names)


def clusters(incomplete: str) -> list[str]:
    def names() -> Iterable[str]:
        from orchestrator.clusters.resolve import cluster_names
        from orchestrator.paths import find_folders

        return cluster_names(find_folders())

    return _offer(incomplete, names)


def scales(context: typer.Context, incomplete: str) -> list[str]:
    """Those of the experiment that stands on the line already."""

    def names() -> Iterable[str]:
        from orchestrator.catalog.experiment import scale_names
        from orchestrator.catalog.library import find_entries
        from orchestrator.paths import find_folders

        return [
            scale
            for name in _named(context) or []
            for entry in find_entries(find_folders(), name)
            for scale in scale_names(entry.experiment)
        ]

    return _offer(incomplete, names)


def workloads(incomplete: str) -> list[str]:
    """The programs for which a cluster's profile has a place."""

    def names() -> Iterable[str]:
        from orchestrator import workloads

        return list(workloads.workloads())

    return _offer(incomplete, names)


def cases(context: typer.Context, incomplete: str) -> list[str]:
    """`axis=value` for the axes that name the experiment's cases, after what is typed before the last comma."""
    before, comma, last = incomplete.rpartition(",")

    def pairs() -> Iterable[str]:
        from orchestrator.catalog.case import shown_value

        given = {pair.partition("=")[0] for pair in before.split(",")}
        points = [pair for case in _cases(context) for pair in case.point if pair[0] not in given]
        found = [f"{axis}={shown_value(value)}" for axis, value in points]
        return [f"{before}{comma}{pair}" for pair in found if pair.startswith(last)]

    return _offer(incomplete, pairs)


def jobs(incomplete: str) -> list[str]:
    """Experiments, and the ids of what was submitted."""
    return _offer(incomplete, lambda: [*_experiment_names(), *_job_ids()])


def job_ids(incomplete: str) -> list[str]:
    return _offer(incomplete, _job_ids)


def _offer(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    found: list[str] = []
    with suppress(Exception):  # a traceback in the middle of a person's command line helps nobody
        found = [name for name in dict.fromkeys(names()) if name.startswith(incomplete)]
    return found


def _experiment_names() -> list[str]:
    from orchestrator.catalog.library import experiment_names, names_meant
    from orchestrator.paths import find_folders, short_name

    names = experiment_names(find_folders())
    return [short_name(full) if len(names_meant(names, short_name(full))) == 1 else full for full in names]


def _job_ids() -> list[str]:
    from orchestrator.ledger.attempts import job_summaries
    from orchestrator.ledger.database import ledger_url, open_ledger
    from orchestrator.paths import find_folders

    url = ledger_url(None, find_folders().home)
    ledger = open_ledger(url, create=False, listener=lambda _: None)  # nothing is printed beside a typed line
    return [row.job_id for row in job_summaries(ledger)] if ledger else []


def _named(context: typer.Context) -> list[str]:
    """The experiments on the line; with an option that still lacks its value click leaves all words unparsed."""
    from orchestrator.catalog.library import experiment_names, names_meant, papers
    from orchestrator.paths import find_folders

    given = context.params.get("names") or context.params.get("experiment") or context.args
    names = experiment_names(find_folders())
    words = [given] if isinstance(given, str) else list(given)
    return [word for word in words if names_meant(names, word) or word in papers(names)]


def _cases(context: typer.Context) -> list[Case]:
    from orchestrator.catalog.expand import expand
    from orchestrator.catalog.experiment import PAPER
    from orchestrator.catalog.library import find_entries
    from orchestrator.paths import find_folders

    words = context.args
    typed = next((after for word, after in pairwise(words) if word == "--scale"), None)
    scale = typed or context.params.get("scale") or PAPER
    entries = [entry for name in _named(context) for entry in find_entries(find_folders(), name)]
    return [case for entry in entries for case in expand(entry, scale)]
