"""Memory slots of a pipeline stage's microbatches in the order of Megatron-Core's schedules."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st
from megatron.core.pipeline_parallel.schedules import get_schedule_table

from orchestrator.megatron.memory import chunks_in_flight
from orchestrator.megatron.model import Layout
from orchestrator.pretrain.arguments import microbatch_slots

STAGES = st.integers(2, 6).flatmap(
    lambda p: st.tuples(st.just(p), st.integers(1, 4), st.integers(1, 5).map(lambda groups: groups * p))
)


def passes(p: int, v: int, m: int, stage: int) -> Iterator[tuple[str, int]]:
    """Yield the passes of a stage in order: `forward` or `backward`, and the chunk."""
    table = [chunk for _, chunk in get_schedule_table(m, v, p)]
    ahead = p - stage - 1 if v == 1 else min(2 * (p - stage - 1) + (v - 1) * p, len(table))
    for i in range(len(table) + ahead):
        if i < len(table):
            yield "forward", table[i]
        if i >= ahead:
            yield "backward", v - 1 - table[i - ahead]


@given(STAGES)
def test_a_memory_slot_is_free_when_its_next_microbatch_starts(sizes: tuple[int, int, int]) -> None:
    p, v, m = sizes
    for stage in range(p):
        slots = microbatch_slots(p, v, m, stage)
        assert [len(numbers) for numbers in slots] == [m] * v
        begun, ended, in_use = [0] * v, [0] * v, set[int]()
        for direction, chunk in passes(p, v, m, stage):
            if direction == "forward":
                slot = slots[chunk][begun[chunk]]
                assert slot not in in_use
                in_use.add(slot)
                begun[chunk] += 1
            else:
                in_use.remove(slots[chunk][ended[chunk]])
                ended[chunk] += 1
        assert not in_use


@given(STAGES)
def test_a_stage_has_a_slot_for_each_chunk_in_flight_and_one_for_the_loss(
    sizes: tuple[int, int, int],
) -> None:
    p, v, m = sizes
    for stage in range(p):
        slots = microbatch_slots(p, v, m, stage)
        in_flight = chunks_in_flight(Layout(p, 1, p, 1, m, virtual_stages=v), stage)
        count = len({slot for numbers in slots for slot in numbers})
        has_own = stage == p - 1 and v > 1
        assert count in ((in_flight, in_flight + 1) if has_own else (in_flight,))
        if has_own:
            others = {slot for numbers in slots[:-1] for slot in numbers}
            assert not others.intersection(slots[-1])
