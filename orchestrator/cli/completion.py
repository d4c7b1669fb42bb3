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


def experiments(incomplete: str) -> list[str]:
    """Return short names where they are unique, else full names."""
    return _matching(incomplete, _experiment_names)


def experiments_and_papers(incomplete: str) -> list[str]:
    """Return the names of experiments and papers."""
    return _matching(incomplete, lambda: [*_experiment_names(), *api.papers(api.experiment_names(find_folders()))])


def bundle_words(context: typer.Context, incomplete: str) -> list[str]:
    """Return the word `verify`, experiments and papers; bundles after `verify`."""
    if "verify" in (context.params.get("what") or context.args):
        return _matching(incomplete, lambda: map(str, Path(incomplete).parent.glob("*.tar.zst")))
    return [*_matching(incomplete, lambda: ["verify"]), *experiments_and_papers(incomplete)]


def clusters(incomplete: str) -> list[str]:
    """Return the names of clusters."""
    return _matching(incomplete, lambda: api.cluster_names(find_folders()))


def scales(context: typer.Context, incomplete: str) -> list[str]:
    """Return the scales of the experiments on the command line."""
    return _matching(
        incomplete, lambda: [scale for entry in _entries(context) for scale in api.scale_names(entry.experiment)]
    )


def images(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the images of the cluster on the line."""

    def names() -> Iterable[str]:
        profile = api.find_cluster(find_folders(), _typed(context, "cluster") or api.default_cluster() or "")
        return (row.image for row in api.image_rows(profile))

    return _matching(incomplete, names)


def states(incomplete: str) -> list[str]:
    """Return states and verdicts after the last comma."""
    return _matching(incomplete, lambda: _in_list(incomplete, (name.lower() for name in api.job_states())))


def failure_classes(incomplete: str) -> list[str]:
    """Return failure classes after the last comma."""
    return _matching(incomplete, lambda: _in_list(incomplete, api.POLICIES))


def workloads(incomplete: str) -> list[str]:
    """Return the names of the programs."""
    return _matching(incomplete, api.workloads)


def cases(context: typer.Context, incomplete: str) -> list[str]:
    """Return `axis=value` for the axes that name the cases, and for their labels, after the last comma."""

    def pairs() -> Iterable[str]:
        given = {pair.partition("=")[0] for pair in incomplete.split(",")[:-1]}
        named = [pair for case in _cases(context) for pair in (*case.point, ("label", case.settings.get("label")))]
        points = [(axis, value) for axis, value in named if axis not in given and value is not None]
        return _in_list(incomplete, (f"{axis}={api.shown_value(value)}" for axis, value in points))

    return _matching(incomplete, pairs)


def jobs(incomplete: str) -> list[str]:
    """Return experiments and job ids."""
    return _matching(incomplete, lambda: [*_experiment_names(), *api.job_ids()])


def job_ids(incomplete: str) -> list[str]:
    """Return job ids."""
    return _matching(incomplete, api.job_ids)


def _matching(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    with suppress(Exception):  # a traceback would break the command line that the user types
        return [name for name in dict.fromkeys(names()) if name.startswith(incomplete)]
    return []


def _in_list(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the incomplete list with each name as its last item."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names]


def _experiment_names() -> list[str]:
    names = api.experiment_names(find_folders())
    return [short_name(full) if len(api.names_meant(names, short_name(full))) == 1 else full for full in names]


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
