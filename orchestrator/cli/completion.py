"""Shell completion of experiments, clusters, scales, cases and jobs. An error completes nothing."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout, suppress
from itertools import pairwise
from pathlib import Path

import typer

from orchestrator import api
from orchestrator.cli.output import data
from orchestrator.paths import find_folders, short_name


@contextmanager
def rejoined_words(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Rejoin words that bash splits at `=`, such as `pp=8,gbs=3`, and complete only the last part."""
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
    prefix = joined[-1].removesuffix("" if words[-1] == "=" else words[-1])
    completions = io.StringIO()
    try:
        with redirect_stdout(completions):
            yield
    finally:
        for line in completions.getvalue().splitlines():
            data(line.removeprefix(prefix))


def _completion(
    names: Callable[[typer.Context, str], Iterable[str]], *, in_list: bool = False
) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion by the names that begin with a word; with `in_list`, with its part after the last comma."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        before = "".join(incomplete.rpartition(",")[:2]) if in_list else ""
        with suppress(Exception):  # a traceback would break the command line that the user types
            every = dict.fromkeys(f"{before}{name}" for name in names(context, incomplete))
            return [name for name in every if name.startswith(incomplete)]
        return []

    return complete


def _experiment_names() -> list[str]:
    """Return short names where they are unique, else full names."""
    names = api.experiment_names(find_folders())
    return [short_name(full) if len(api.names_meant(names, short_name(full))) == 1 else full for full in names]


def _experiments_and_papers() -> list[str]:
    return [*_experiment_names(), *api.papers(api.experiment_names(find_folders()))]


@_completion
def bundle_words(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the word `verify`, experiments and papers; bundles after `verify`."""
    if "verify" in (context.params.get("what") or context.args):
        return map(str, Path(incomplete).parent.glob("*.tar.zst"))
    return ["verify", *_experiments_and_papers()]


@_completion
def scales(context: typer.Context, _: str) -> Iterable[str]:
    """Return the scales of the experiments on the command line."""
    return (scale for entry in _entries(context) for scale in api.scale_names(entry.experiment))


@_completion
def images(context: typer.Context, _: str) -> Iterable[str]:
    """Return the names of the images of the cluster on the line."""
    profile = api.find_cluster(find_folders(), _typed(context, "cluster") or api.default_cluster() or "")
    return (row.image for row in api.image_rows(profile))


def _case_pairs(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return `axis=value` for the axes that name the cases, and for their labels."""
    given = {pair.partition("=")[0] for pair in incomplete.split(",")[:-1]}
    named = [pair for case in _cases(context) for pair in (*case.point, ("label", case.settings.get("label")))]
    return (f"{axis}={api.shown_value(value)}" for axis, value in named if axis not in given and value is not None)


experiments = _completion(lambda *_: _experiment_names())
experiments_and_papers = _completion(lambda *_: _experiments_and_papers())
clusters = _completion(lambda *_: api.cluster_names(find_folders()))
programs = _completion(lambda *_: [*api.programs(), *api.submitted_programs()])
job_ids = _completion(lambda *_: api.job_ids())
jobs = _completion(lambda *_: [*_experiment_names(), *api.job_ids()])
states = _completion(lambda *_: map(str.lower, api.job_states()), in_list=True)
failure_classes = _completion(lambda *_: api.POLICIES, in_list=True)
cases = _completion(_case_pairs, in_list=True)


def _entries(context: typer.Context) -> list[api.Entry]:
    """Return the experiments on the line. Where an option lacks its value, click leaves all words unparsed."""
    given = context.params.get("names") or context.params.get("experiment") or context.args
    folders = find_folders()
    names = api.experiment_names(folders)
    words = [given] if isinstance(given, str) else list(given)
    named = [word for word in words if api.names_meant(names, word) or word in api.papers(names)]
    return [entry for name in named for entry in api.find_entries(folders, name)]


def _cases(context: typer.Context) -> list[api.Case]:
    """Return the cases of the experiments on the line, at its scale or at the largest one that fits its cluster."""
    scale, cluster = _typed(context, "scale"), _typed(context, "cluster")
    if scale is None and cluster is not None:
        profile = api.find_cluster(find_folders(), cluster)
        return [case for entry in _entries(context) for case in api.cases_at(entry, profile, None)]
    return [case for entry in _entries(context) for case in api.expand(entry, scale or "paper")]


def _typed(context: typer.Context, name: str) -> str | None:
    """Return the value of an option on the line. Where another option lacks its value, click leaves words unparsed."""
    typed = next((after for word, after in pairwise(context.args) if word == f"--{name}"), None)
    return typed or context.params.get(name) or None
