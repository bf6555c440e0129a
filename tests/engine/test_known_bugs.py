"""By name, each bug of the scheduler that engines like it have had.

With `make_request`, a prompt is 2 text positions, 7 for each window (6 audio), then 1 of text;
blocks have 4 positions.
"""

from __future__ import annotations

import pytest
from support.scheduling import BLOCK, LONG, Simulation, make_request, run_alone

from moss_stream.engine.sequence import State


@pytest.mark.parametrize("tail", [(5, 6), (5, 6, 7, 8, 9, 10)])
def test_full_hit_of_an_exact_multiple_of_the_block_size_computes_something(
    tail: tuple[int, ...],
) -> None:
    # A hit of the whole prompt would leave nothing whose logits could be taken.
    simulation = Simulation()
    request = make_request(tail=tail, **LONG)
    assert len(request.prompt.ids) % BLOCK == 0
    simulation.run(request)
    again = simulation.run(request)
    assert again.prefix_hit_tokens == len(request.prompt.ids) - BLOCK
    assert again.output == run_alone(request)[0]


def test_sibling_in_the_same_step_does_not_hit_blocks_that_are_not_written() -> None:
    simulation = Simulation()
    request = make_request(**LONG, tail=range(3, 12))
    first, second = simulation.submit(request), simulation.submit(request)
    simulation.step()
    assert set(first.block_table).isdisjoint(second.block_table)
    assert second.prefix_hit_tokens == 0
    # Now they are.
    third = simulation.submit(request)
    simulation.finish()
    assert third.prefix_hit_tokens == 8
    assert first.output == second.output == third.output == run_alone(request)[0]


def test_chunk_is_counted_from_behind_the_prefix_hit() -> None:
    simulation = Simulation(step_tokens=5)
    request = make_request(**LONG, tail=range(3, 12))
    simulation.run(request)
    simulation.submit(request)
    (row,) = simulation.step()
    assert (row.start, row.ids) == (8, (9, 10, 11))


def test_duplicate_blocks_stay_with_the_sequence_that_wrote_them() -> None:
    # Freeing a duplicate in favour of the published block leaves a block table pointing at it.
    simulation = Simulation()
    request = make_request(**LONG, tail=range(3, 12))
    first, second = simulation.submit(request), simulation.submit(request)
    simulation.step()
    tables = [*first.block_table], [*second.block_table]
    other = simulation.submit(make_request(**LONG, tail=range(4, 12)))
    simulation.step()
    assert set(other.block_table).isdisjoint({*tables[0], *tables[1]})
    simulation.finish()
    assert ([*first.block_table], [*second.block_table]) == tables


def test_block_table_is_the_same_from_prefill_to_the_last_step() -> None:
    simulation = Simulation(step_tokens=3)
    sequence = simulation.submit(make_request([1], **LONG))
    simulation.step()
    table = [*sequence.block_table]
    while simulation.scheduler.has_work:
        simulation.step()
        assert sequence.block_table == table


@pytest.mark.parametrize("during_forward", [False, True])
def test_abort_in_the_prefill_does_not_poison_the_prefix(during_forward: bool) -> None:
    simulation = Simulation(step_tokens=6)
    request = make_request(**LONG, tail=range(3, 12))
    aborted = simulation.submit(request)
    if during_forward:
        simulation.step(cancel=[aborted])
    else:
        simulation.step()
        simulation.scheduler.cancel(aborted)
    assert simulation.scheduler.pool.num_used == 0
    # Somebody else's blocks come where the aborted ones were.
    simulation.submit(make_request(head=(7,), **LONG, tail=range(1, 12)))
    again = simulation.submit(request)
    simulation.finish()
    assert again.prefix_hit_tokens == (0 if during_forward else BLOCK)
    assert again.output == run_alone(request)[0]


def test_blocks_freed_in_a_step_are_not_used_again_in_it() -> None:
    # Seven blocks: both need four.
    simulation = Simulation(num_blocks=7)
    scheduler = simulation.scheduler
    first = simulation.submit(make_request(**LONG))
    simulation.step()
    second = simulation.submit(make_request(**LONG, head=(6, 7)))
    (row,) = scheduler.plan(0.0)
    scheduler.cancel(first)
    assert scheduler.pool.num_used == 4
    assert second.state is State.WAITING
    assert scheduler.complete(row, [3]) == ()
    scheduler.end_step()
    assert scheduler.pool.num_used == 0
    simulation.finish()
    assert second.output == run_alone(second.request)[0]


def test_block_table_can_be_read_by_a_forward_whose_sequence_is_cancelled() -> None:
    simulation = Simulation()
    sequence = simulation.submit(make_request(**LONG))
    (row,) = simulation.scheduler.plan(0.0)
    simulation.scheduler.cancel(sequence)
    assert len(simulation.runner.forward([row])) == 1


def test_prefix_hit_needs_the_same_audio_and_not_only_the_same_ids() -> None:
    simulation = Simulation()
    first = simulation.run(make_request([1, 2], **LONG))
    second = simulation.run(make_request([1, 3], **LONG))
    assert first.request.prompt.ids == second.request.prompt.ids
    assert second.prefix_hit_tokens == 2 * BLOCK
    assert second.output == run_alone(second.request)[0]


def test_rejected_draft_tokens_are_never_published() -> None:
    simulation = Simulation()
    request = make_request(**LONG)
    truth = run_alone(request)[0]
    wrong = (*truth[:1], *(token % 11 + 1 for token in truth[1:]))
    assert wrong[1] != truth[1]
    drafted = simulation.submit(make_request(**LONG, draft=wrong))
    simulation.step()
    # Prompt and output fill one block; the rejected tail of the draft would fill three.
    assert drafted.num_published == 1
    # A sequence that is forced to say what was rejected must not find it.
    forced = simulation.run(make_request(**LONG, forced=wrong[:-1]))
    assert forced.prefix_hit_tokens <= BLOCK
    assert forced.output == run_alone(forced.request)[0]
