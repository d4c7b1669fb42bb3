"""Errors of predictions by their class, each time predicted with constants that were fitted without it.

A table, a machine or a site is left out of the fit in turn, and its times are predicted with the other ones. Within a
site that stays known, tables and machines are left out: the class is the one that `repro plan` prints. If a whole site
is left out, the class is the one that `repro plan` would print if that site had never been measured. A constant that
no other site determines then has the value of the most similar one. Times that no constant is fitted to are predicted
with the shipped constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.fits import OF_H100, OF_LOCAL_LAYERS, OF_PAPERS, OF_PRETRAIN, OF_TUTORIALS, START, refit
from benchmarks.measured_times import (
    ATC24,
    H100,
    H100_LATER,
    H100_QUAD,
    H100_QUAD_AGAIN,
    H100_QUAD_LATER,
    H200,
    H200_AGAIN,
    H200_LATER,
    H200_QUAD,
    H200_QUAD_LATER,
    LOCAL_LAYERS,
    NOT_FITTED,
    SC21,
    Row,
    published,
    rows,
    schedules,
    tutorials,
)
from orchestrator.megatron.time_constants import COLLECTIVE_MS, FITTED, Basis, Constants


@dataclass(frozen=True, slots=True)
class Judged:
    """A time and its prediction by constants of other times. `source` has its table or machine, and what is left out.

    `error` is the predicted time over the actual one, less one. `basis` is the class.
    """

    source: str
    name: str
    basis: Basis
    error: float

    @property
    def is_inside(self) -> bool:
        """Return whether the actual time is within the uncertainty of the class around the prediction.

        A plan may print more: an assumed bandwidth adds to it.
        """
        return abs(1 / (1 + self.error) - 1) <= self.basis.uncertainty


@cache
def judged() -> tuple[Judged, ...]:
    """Return every time with its class and error."""
    return (*_tables_left_out(), *_never_fitted(), *_sites_left_out())


def _of(source: str, times: Iterable[Row], constants: Constants, basis: Basis | None = None) -> Iterator[Judged]:
    for row in times:
        printed = basis or row.predicted(constants).basis
        yield Judged(source, row.name, printed, row.error(constants))


def _without(names: Sequence[str], sets: Iterable[Sequence[Row]], kept: Constants = FITTED) -> Constants:
    """Return the constants with some of them fitted again, to these sets only."""
    start = replace(kept, **{name: getattr(START, name) for name in names})
    return refit(list(sets), names, start, smallest_gain=1e-6)


def _tables_left_out() -> Iterator[Judged]:
    """Yield the fitted tables, each predicted without it."""
    sets, pipelines = rows(), schedules()
    atc24 = sets[ATC24]
    yield from _of("SC21, table 1 left out", sets[SC21], _without(OF_PAPERS, [atc24, pipelines]))
    yield from _of("SC21, figures 12 and 18 left out", pipelines, _without(OF_PAPERS, [atc24, sets[SC21]]))
    for model in ("llama-175b", "llama-65b", "llama2-70b"):
        own = [row for row in atc24 if f"model={model}," in row.name]
        others = [row for row in atc24 if row not in own]
        yield from _of("ATC'24, a model left out", own, _without(OF_PAPERS, [sets[SC21], pipelines, others]))
    for machine, other in ((H200, H200_QUAD), (H200_QUAD, H200)):
        yield from _of("`pretrain` on H200, a machine left out", sets[machine], _without(OF_PRETRAIN, [sets[other]]))
    for figure in ("figure-13", "figure-15"):
        own = [row for row in sets[H100_QUAD] if row.name.startswith(figure)]
        others = [row for row in sets[H100_QUAD] if row not in own]
        yield from _of("`pretrain` on four H100, a figure left out", own, _without(OF_H100, [others]))
    every = tutorials()
    for table in dict.fromkeys(row.name.partition(" ")[0] for row in every):
        own = [row for row in every if row.name.startswith(f"{table} ")]
        if table == "core-ep":  # no other table has experts
            yield from _of("tutorials, rows that were not fitted", [row for row in own if not row.fitted], FITTED)
            continue
        others = [row for row in every if row not in own]
        yield from _of("tutorials, a table left out", own, _without(OF_TUTORIALS, [others]))


def _never_fitted() -> Iterator[Judged]:
    """Yield the times to which no constant is fitted."""
    sets = rows()
    figures = [f"sc21/figure-{number}" for number in (11, 13, 14, 15, 16, 17)]
    yield from _of("SC21, other figures and tables", published(*figures, "sc21/table-2"), FITTED)
    yield from _of("SC21, section 5.8", published("sc21/fused-operators"), FITTED)
    yield from _of("ATC'24, demo and table 8", published("atc24/atc-demo", "atc24/atc-table-8"), FITTED)
    yield from _of("`pretrain` on H200, later machines", [*sets[H200_LATER], *sets[H200_QUAD_LATER]], FITTED)
    yield from _of("`pretrain` on H200, measured again", sets[H200_AGAIN], FITTED)
    yield from _of("`pretrain` on other H100", [*sets[H100], *sets[H100_LATER]], FITTED)
    yield from _of("`pretrain` on four H100, later machine", sets[H100_QUAD_LATER], FITTED)
    yield from _of("`pretrain` on four H100, measured again", sets[H100_QUAD_AGAIN], FITTED)
    yield from _of("tutorials, core-tp-pp", published(f"tutorials/{NOT_FITTED}"), FITTED)
    yield from _of("Megatron-Core's weak scaling", published("megatron-core/weak-scaling"), FITTED)
    yield from _of("MLSys'23 table 5", published("mlsys23/table-5"), FITTED)
    yield from _of("Alpa's Megatron-LM on V100", published("alpa/alpa-gpt"), FITTED)


def _sites_left_out() -> Iterator[Judged]:
    """Yield the times of each site to which constants are fitted, predicted without all times of the site."""
    sets, pipelines = rows(), schedules()
    atc24 = _without([name for name in OF_PAPERS if name in _OF_ATC24], [sets[ATC24]])
    no_sc21 = replace(
        atc24,
        a100_gemm_share=atc24.h800_gemm_share,
        transfer_share=atc24.network_share,
        transfer_ms=COLLECTIVE_MS,
    )
    fitted = [*sets[SC21], *pipelines]
    yield from _of("SC21 left out", fitted, no_sc21, Basis.NOT_COMPARED)
    sc21 = _without([name for name in OF_PAPERS if name not in _OF_ATC24_ALONE], [sets[SC21], pipelines])
    no_atc24 = replace(sc21, h800_gemm_share=FITTED.h100_gemm_share, exposed_share=1.0)
    yield from _of("ATC'24 left out", sets[ATC24], no_atc24, Basis.OTHER_PROGRAM)
    no_tutorials = replace(FITTED, h100_gemm_share=FITTED.h800_gemm_share)
    large = [row for row in tutorials() if row.predicted(FITTED).basis is Basis.OTHER_SITE]
    yield from _of("tutorials left out, without rows that the host limits", large, no_tutorials, Basis.OTHER_PROGRAM)
    no_h200 = _without(OF_PRETRAIN[1:] + OF_H100, [sets[H100_QUAD]])
    no_h200 = replace(no_h200, gh100_gemm_share=no_h200.pretrain_h100_gemm_share)
    h200 = [*sets[H200], *sets[H200_QUAD], *sets[H200_LATER], *sets[H200_QUAD_LATER]]
    yield from _of("`pretrain`, H200 left out", h200, no_h200, Basis.OTHER_SITE)
    no_h100 = replace(FITTED, pretrain_h100_gemm_share=FITTED.gh100_gemm_share)
    h100 = [*sets[H100_QUAD], *sets[H100_QUAD_LATER], *sets[H100], *sets[H100_LATER]]
    yield from _of("`pretrain`, H100 left out", h100, no_h100, Basis.OTHER_SITE)
    local = replace(FITTED, **dict.fromkeys(OF_LOCAL_LAYERS, FITTED.host_layer_ms))
    yield from _of("Megatron-LM's own layers, left out", sets[LOCAL_LAYERS], local)


_OF_ATC24_ALONE = ("h800_gemm_share", "exposed_share")
_OF_ATC24 = (*_OF_ATC24_ALONE, "memory_share", "network_share")
"""Constants that ATC'24 determines, alone or with SC21."""
