"""Simulated searches against published times, beside other orders: the table of docs/how-to/search.md.

    python -m benchmarks.search            # prints the table
    python -m benchmarks.search --write    # writes it into the page

A list has the cases of a figure that train the same model with the same batch size on as many GPUs. Figure 17 of SC21
and figure 9 of ATC'24 have no such lists, so theirs have all cases of a model, and compare the GPU time per sequence.
Each number is the number of measured cases until one is within 2 % of the fastest published one. Random order and
Optuna's TPE sampler (pip install optuna) have the mean of 20 seeds. Of Alpa's lists only the fastest case is published,
so their searches learn nothing from measurements, and the number is the place of that case.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.measured_times import CHECKOUT, TUTORIALS
from orchestrator.catalog.library import find_experiment
from orchestrator.megatron.case import TrainingCase, published_time
from orchestrator.megatron.search.candidates import Candidate, candidates, decide, simulate
from orchestrator.paths import find_folders
from orchestrator.planning.target import Target
from tests.cases import expand

PAGE = CHECKOUT / "docs" / "how-to" / "search.md"
BEGIN, END = "<!-- python -m benchmarks.search -->", "<!-- end of benchmarks.search -->"
SEEDS = 20
CLOSE = 0.02
"""Relative distance from the fastest case within which a case counts as found."""
FIGURES = (*(f"sc21/figure-{number}" for number in (13, 14, 15, 16)), *(f"tutorials/{name}" for name in TUTORIALS))
FIGURES_PER_SEQUENCE = ("sc21/figure-17", "atc24/atc-figure-9")
LEAST_CASES = 3
"""Shortest list. With two cases a search has nothing to leave out."""


@dataclass(frozen=True, slots=True)
class CaseList:
    """Candidates of one model, batch size and number of GPUs, in the order of their file, with published times.

    `known_ms` has the times of all candidates, or that of the fastest one only.
    """

    title: str
    candidates: Sequence[Candidate]
    known_ms: Mapping[str, float]

    @property
    def quarter(self) -> int:
        """Return a quarter of the list, rounded up."""
        return math.ceil(len(self.candidates) / 4)


def lists() -> Iterator[CaseList]:
    """Yield the lists whose times are all published."""
    for name in FIGURES:
        for (_, batch, gpus), group, target in _groups(name, _task):
            title = f"{name.rpartition('/')[2]}, {gpus} GPUs, batch {batch}"
            if len(group) >= LEAST_CASES:
                yield _list(title, group, target, lambda _: 1.0)
    for name in FIGURES_PER_SEQUENCE:
        for _, group, target in _groups(name, lambda case: (case.model,)):
            cases = [case for case, _ in group]
            model = f", {cases[0].settings['model']}" if "model" in cases[0].settings else ""
            gpus = {case.layout.gpus for case in cases}
            number = f"{min(gpus)} to {max(gpus)}" if len(gpus) > 1 else f"{max(gpus)}"
            title = f"{name.rpartition('/')[2]}{model}, {number} GPUs, time per sequence"
            yield _list(title, group, target, lambda case: case.layout.gpus / case.layout.global_batch_size)


def _groups(
    name: str, key: Callable[[TrainingCase], tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], list[tuple[TrainingCase, float]], Target]]:
    """Yield the cases with a published time, grouped by a key, in the order of their file."""
    entry = find_experiment(find_folders(), name)
    target = Target.of_paper(entry)
    groups: dict[tuple[Any, ...], list[tuple[TrainingCase, float]]] = {}
    for case in expand(entry):
        time = None if case.reference_only else published_time(case, target.hardware.gpu)
        if time is not None:
            groups.setdefault(key(case), []).append((case, time[1]))
    for value, group in groups.items():
        yield value, group, target


def _list(
    title: str, group: Sequence[tuple[TrainingCase, float]], target: Target, weight: Callable[[TrainingCase], float]
) -> CaseList:
    """Return the list of a group. Times are multiplied by the weight of their case."""
    known = {case.name: time * weight(case) for case, time in group}
    chosen = {one.name: one for one in candidates([case for case, _ in group], target)[0]}
    weighted = [
        replace(one, iteration_ms=one.iteration_ms * weight(one.case), gpu_ms=one.gpu_ms * weight(one.case))
        for one in (chosen[name] for name in known if name in chosen)
    ]
    return CaseList(title, weighted, {one.name: known[one.name] for one in weighted})


def alpa_lists() -> Iterator[CaseList]:
    """Yield Alpa's lists with a batch of 1024 sequences (128 on one GPU) whose fastest case is published."""
    folders = find_folders()
    best = {_task(case): case for case in expand(find_experiment(folders, "alpa/alpa-gpt"))}
    entry = find_experiment(folders, "alpa/alpa-search")
    target = Target.of_paper(entry)
    groups: dict[tuple[object, ...], list[TrainingCase]] = {}
    for case in expand(entry):
        groups.setdefault(_task(case), []).append(case)
    for task, group in groups.items():
        if task in best and len(group) >= LEAST_CASES:
            fastest = next(case for case in group if case.layout == best[task].layout)
            kept, _ = candidates(group, target)
            names = [case.name for case in group]
            known = published_time(best[task], target.hardware.gpu)
            assert known is not None
            title = f"alpa-search, {fastest.settings['model']}, {fastest.layout.gpus} GPUs, {len(names)} cases"
            yield CaseList(title, sorted(kept, key=lambda one: names.index(one.name)), {fastest.name: known[1]})


def _task(case: TrainingCase) -> tuple[object, ...]:
    return case.model, case.layout.global_batch_size, case.layout.gpus


def cases_until_close(one: CaseList, order: Sequence[str]) -> int:
    """Return the number of measured cases until one is within 2 % of the fastest."""
    best = min(one.known_ms.values())
    return next(i for i, name in enumerate(order, 1) if one.known_ms.get(name, math.inf) <= best * (1 + CLOSE))


def by_repro(one: CaseList) -> list[str]:
    """Return the order of `repro search`, continued with all cases, and learned from the times that are known."""
    measured: dict[str, float] = {}
    order: list[str] = []
    while len(order) < len(one.candidates):
        left = [candidate for candidate in one.candidates if candidate.name not in order]
        decision = decide([*left, *(c for c in one.candidates if c.name in measured)], measured)
        names = [each.candidate.name for each in decision.order] or [*decision.pruned]
        order.append(names[0])
        if len(one.known_ms) > 1:
            measured[names[0]] = one.known_ms[names[0]]
    return order


def by_alpas_rules(one: CaseList) -> list[str]:
    """Return the order of Alpa's rules: most data parallelism, least tensor parallelism, largest microbatch."""

    def key(candidate: Candidate) -> tuple[int, int, int]:
        layout = candidate.case.layout
        return -layout.data_parallel, layout.tensor_parallel, -layout.micro_batch_size

    return [candidate.name for candidate in sorted(one.candidates, key=key)]


def at_random(one: CaseList) -> float:
    """Return the mean number of cases in a random order."""
    names = [candidate.name for candidate in one.candidates]
    return statistics.fmean(
        cases_until_close(one, random.Random(seed).sample(names, len(names))) for seed in range(SEEDS)
    )


def by_tpe(one: CaseList) -> float:
    """Return the mean number of cases with Optuna's TPE sampler, which knows the parallel sizes and switches."""
    return statistics.fmean(cases_until_close(one, _tpe_order(one, seed)) for seed in range(SEEDS))


def _tpe_order(one: CaseList, seed: int) -> list[str]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    axes = {candidate.name: _axes(candidate.case) for candidate in one.candidates}
    values = {axis: sorted({of_case[axis] for of_case in axes.values()}) for axis in next(iter(axes.values()))}
    spread: dict[str, optuna.distributions.BaseDistribution] = {
        axis: optuna.distributions.CategoricalDistribution(v) for axis, v in values.items() if len(v) > 1
    }
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=2))
    rest = random.Random(seed)
    order: list[str] = []
    while len(order) < len(axes):
        left = [name for name in axes if name not in order]
        for _ in range(100):
            trial = study.ask(spread)
            name = next((name for name in left if all(axes[name][axis] == trial.params[axis] for axis in spread)), None)
            if name is not None:
                break
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            name = rest.choice(left)
            study.enqueue_trial({axis: axes[name][axis] for axis in spread})
            trial = study.ask(spread)
        study.tell(trial, one.known_ms[name])
        order.append(name)
    return order


def _axes(case: TrainingCase) -> dict[str, str | int | float]:
    layout, training = case.layout, case.training
    return {
        "tp": layout.tensor_parallel,
        "pp": layout.pipeline_parallel,
        "cp": layout.context_parallel,
        "ep": layout.expert_parallel,
        "vp": layout.virtual_stages,
        "mbs": layout.micro_batch_size,
        "sequence_parallel": str(layout.sequence_parallel),
        "recompute": str(training.recompute),
        "cp_comm": str(training.cp_comm),
        "offload": training.offload,
        "gpus": layout.gpus,
        "gbs": layout.global_batch_size,
    }


def table() -> str:
    """Return the table in Markdown."""
    has_optuna = importlib.util.find_spec("optuna") is not None
    lines = [
        "| list | cases | a quarter | `repro search` | stops after | Alpa's rules | random | Optuna TPE |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in lists():
        own, simulated = cases_until_close(one, by_repro(one)), simulate(one.candidates, one.known_ms)
        tpe = f"{by_tpe(one):.1f}" if has_optuna else "-"
        lines.append(_line(one, own, str(len(simulated.measured_ms)), tpe))
    lines += [_line(one, cases_until_close(one, by_repro(one)), "-", "-") for one in alpa_lists()]
    return "\n".join(lines)


def _line(one: CaseList, own: int, stops: str, tpe: str) -> str:
    rules, chance = cases_until_close(one, by_alpas_rules(one)), at_random(one)
    return f"| {one.title} | {len(one.candidates)} | {one.quarter} | {own} | {stops} | {rules} | {chance:.1f} | {tpe} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/how-to/search.md")
    text = table()
    print(text)
    if parser.parse_args().write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
