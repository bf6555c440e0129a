"""One behaviour of the steps of the scheduler at a time.

With `make_request`, a prompt is 2 text positions, 7 for each window (6 audio), then 1 of text;
blocks have 4 positions.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.scheduling import (
    LONG,
    LOOPING,
    Simulation,
    make_request,
    make_window,
    run_alone,
)

from moss_stream.engine.request import Priority, StopReason
from moss_stream.engine.scheduler import Row
from moss_stream.engine.sequence import Sequence, State
from moss_stream.engine.turns import STEPS_A_WINDOW
from moss_stream.errors import StateError


def step_until_decoding(simulation: Simulation, sequence: Sequence) -> None:
    while sequence.state is State.WAITING or sequence.is_prefilling:
        simulation.step()


def plan_windows(simulation: Simulation, limit: int) -> list[tuple[Sequence, int]]:
    return simulation.scheduler.plan_windows(limit, simulation.cached.__contains__)


# Steps.


def test_decode_rows_come_before_prefill_chunks_under_one_budget() -> None:
    simulation = Simulation(step_tokens=4)
    running = simulation.submit(make_request(**LONG))
    simulation.step()
    simulation.submit(make_request(**LONG, priority=Priority.FINAL, tail=range(3, 12)))
    decode, prefill = simulation.step()
    assert (decode.sequence, len(decode.ids), decode.num_logits) == (running, 1, 1)
    assert (len(prefill.ids), prefill.num_draft, prefill.num_logits) == (3, 0, 0)


def test_every_decoding_sequence_gets_its_token_before_any_gets_proposals() -> None:
    simulation = Simulation(step_tokens=6)
    simulation.submit(make_request(**LONG))
    simulation.submit(make_request(**LONG))
    simulation.step()
    for sequence in simulation.sequences:
        truth = run_alone(sequence.request)[0]
        sequence.draft = type(sequence.draft)(truth[1:])
    rows = simulation.step()
    assert [(len(row.ids), row.num_draft) for row in rows] == [(5, 4), (1, 0)]


def test_last_chunk_carries_the_draft_as_far_as_the_budget_allows() -> None:
    request = make_request(**LONG)
    drafted = make_request(**LONG, draft=tuple(run_alone(request)[0]))
    simulation = Simulation(step_tokens=8)
    sequence = simulation.submit(drafted)
    (row,) = simulation.step()
    assert (row.start, len(row.ids), row.num_draft, row.num_logits) == (0, 8, 5, 6)
    # Then the rest of it is verified, with room for one more token.
    (row,) = simulation.step()
    assert (row.start, row.num_draft) == (8, 5)
    assert (sequence.output, sequence.stop_reason) == (run_alone(request)[0], StopReason.LENGTH)
    assert (sequence.draft_tokens, sequence.draft_accepted, sequence.decode_steps) == (10, 10, 1)
    assert sequence.draft.accepted_length == 12


def test_draft_agreed_with_to_the_end_is_done_in_one_step() -> None:
    head = next(
        (3, 4, first)
        for first in range(3, 12)
        if len(run_alone(make_request(head=(3, 4, first)))[0]) in range(3, 7)
    )
    output, reason = run_alone(make_request(head=head))
    simulation = Simulation()
    sequence = simulation.submit(make_request(head=head, draft=tuple(output)))
    simulation.step()
    assert (sequence.output, sequence.stop_reason) == (output, reason) == (output, StopReason.END)
    assert sequence.decode_steps == 0


def test_prefill_goes_no_further_than_the_windows_that_are_ready() -> None:
    simulation = Simulation()
    sequence = simulation.submit(make_request([1, 2], head=(3, 4, 6, 3, 4), **LONG))
    rows = [simulation.step(encode=0)[0]]
    assert simulation.step(encode=1) == []
    rows += [simulation.step(encode=1)[0], simulation.step()[0]]
    assert [(row.start, len(row.ids), row.num_logits) for row in rows] == [
        (0, 5, 0),
        (5, 7, 0),
        (12, 8, 1),
    ]
    assert sequence.prefix_hit_tokens == 0


def test_less_than_a_block_waits_for_the_window_behind_it() -> None:
    simulation = Simulation()
    simulation.submit(make_request([1], **LONG))
    assert simulation.step(encode=1) == []
    assert [(row.start, row.num_logits) for row in simulation.step()] == [(0, 1)]


def test_a_step_smaller_than_a_block_still_moves_a_prompt_on() -> None:
    simulation = Simulation(step_tokens=1)
    simulation.submit(make_request([1], **LONG))
    assert [len(row.ids) for row in simulation.step(encode=0)] == [1]


def test_refreshes_are_neither_encoded_nor_prefilled_while_a_final_is_decoded() -> None:
    simulation = Simulation()
    final = simulation.submit(make_request([1], priority=Priority.FINAL, **LONG))
    step_until_decoding(simulation, final)
    encoded = simulation.submit(make_request([1], priority=Priority.PARTIAL, **LONG))
    encoded.window_ready = [True]
    other = simulation.submit(make_request([2], priority=Priority.PARTIAL, **LONG))
    while final.state is State.RUNNING:
        assert {row.sequence for row in simulation.step()} == {final}
        assert final.state is not State.RUNNING or not any(other.window_ready)
    assert {row.sequence for row in simulation.step()} == {encoded}
    assert {row.sequence for row in simulation.step()} == {encoded, other}


def test_refresh_begun_before_a_final_waits_for_it() -> None:
    simulation = Simulation()
    refresh = simulation.submit(make_request([2], priority=Priority.PARTIAL, **LONG))
    simulation.step(encode=0)
    assert refresh.state is State.RUNNING
    final = simulation.submit(make_request([1], priority=Priority.FINAL, **LONG))
    while final.state is not State.FINISHED:
        assert refresh not in {row.sequence for row in simulation.step()}
        assert final.state is State.FINISHED or refresh.window_ready == [False]
    simulation.finish()
    assert refresh.state is State.FINISHED


def test_finals_without_end_do_not_starve_the_others() -> None:
    simulation = Simulation()
    others = [
        simulation.submit(make_request([2, 3], priority=priority, **LONG))
        for priority in (Priority.PARTIAL, Priority.FILE)
    ]
    finals: list[Sequence] = []
    for _ in range(600):
        finals = [final for final in finals if final.state is not State.FINISHED]
        # Enough that one always wants the next window.
        for _ in range(4 - len(finals)):
            content = len(simulation.sequences)
            final = make_request([content], priority=Priority.FINAL, **LONG)
            finals.append(simulation.submit(final))
        simulation.step()
    assert all(other.state is State.FINISHED for other in others)


def test_refresh_is_not_begun_while_a_final_is_decoded_so_a_newer_one_replaces_it() -> None:
    simulation = Simulation()
    final = simulation.submit(make_request([1], priority=Priority.FINAL, **LONG))
    step_until_decoding(simulation, final)
    old, new = (
        make_request([2], priority=Priority.PARTIAL, stream_id="a", **LONG) for _ in range(2)
    )
    first = simulation.submit(old)
    simulation.step()
    assert (final.state, first.state) == (State.RUNNING, State.WAITING)
    simulation.submit(new)
    assert first.state is State.FINISHED


def test_windows_are_planned_in_order_of_service_and_only_where_needed() -> None:
    simulation = Simulation(step_tokens=16)
    simulation.run(make_request([1, 2], **LONG))
    later = simulation.submit(make_request([4, 5], **LONG, deadline_s=2.0))
    sooner = simulation.submit(make_request([1, 3], **LONG, deadline_s=1.0))
    simulation.step(encode=0)
    # The first window of `sooner` ends within the block that touches its second.
    assert plan_windows(simulation, 9) == [(sooner, 0), (sooner, 1), (later, 0), (later, 1)]
    assert plan_windows(simulation, 3) == [(sooner, 0), (sooner, 1), (later, 0)]
    sooner.window_ready[0] = True
    assert plan_windows(simulation, 2) == [(sooner, 1), (later, 0)]


def test_windows_covered_by_a_prefix_hit_are_never_planned() -> None:
    simulation = Simulation()
    simulation.run(make_request([1, 2], **LONG))
    simulation.submit(make_request([1, 2], **LONG))
    assert simulation.scheduler.plan(0.0)[0].start == 16
    assert plan_windows(simulation, 9) == []


def test_cached_windows_and_those_of_others_come_besides_the_limit() -> None:
    simulation = Simulation()
    first, second = (simulation.submit(make_request([1, 2, 3], **LONG)) for _ in range(2))
    simulation.cached = {make_window(2).digest}
    simulation.step(encode=0)
    same = [(sequence, window) for sequence in (first, second) for window in (0, 1)]
    assert plan_windows(simulation, 1) == same
    assert plan_windows(simulation, 0) == []


def test_windows_are_encoded_one_at_a_time_while_live_sequences_are_served() -> None:
    simulation = Simulation()
    file = simulation.submit(make_request([1, 2], **LONG))
    refresh = simulation.submit(make_request([3], priority=Priority.PARTIAL, **LONG))
    simulation.step(encode=0)
    assert plan_windows(simulation, 9) == [(refresh, 0)]
    refresh.window_ready[0] = True
    assert plan_windows(simulation, 9) == [(file, 0)]
    simulation.scheduler.cancel(refresh)
    assert plan_windows(simulation, 9) == [(file, 0), (file, 1)]


@pytest.mark.parametrize("priority", [Priority.FINAL, Priority.PARTIAL])
def test_window_waits_for_some_steps_of_live_sequences_that_decode(priority: Priority) -> None:
    simulation = Simulation(num_blocks=256)
    fields = LONG | {"max_new_tokens": 100, "priority": priority}
    decoding = simulation.submit(make_request([1], **fields))
    step_until_decoding(simulation, decoding)
    others = [simulation.submit(make_request([2 + index], **fields)) for index in range(3)]
    encoded_at = []
    for step in range(100):
        num_ready = sum(other.window_ready[0] for other in others)
        simulation.step()
        if sum(other.window_ready[0] for other in others) > num_ready:
            encoded_at.append(step)
    assert np.diff(encoded_at).tolist() == [STEPS_A_WINDOW] * 2
    assert decoding.decode_steps >= 99


def test_cached_windows_wait_for_nobody() -> None:
    simulation = Simulation(num_blocks=256)
    fields = LONG | {"max_new_tokens": 100, "priority": Priority.FINAL}
    decoding = simulation.submit(make_request([1], **fields))
    step_until_decoding(simulation, decoding)
    simulation.submit(make_request([2], **fields))
    while not simulation.sequences[1].window_ready[0]:
        simulation.step()
    simulation.cached = {make_window(3).digest}
    cached = simulation.submit(make_request([3, 4], **fields))
    simulation.step()
    assert cached.window_ready == [True, False]


def test_window_waits_for_no_file_that_decodes() -> None:
    simulation = Simulation()
    file = simulation.submit(make_request([1], **LONG | {"max_new_tokens": 100}))
    step_until_decoding(simulation, file)
    final = simulation.submit(make_request([2, 3], priority=Priority.FINAL, **LONG))
    for _ in range(2):
        simulation.step()
    assert final.window_ready == [True, True]


def test_sequence_counts_its_hits_and_steps() -> None:
    simulation = Simulation(step_tokens=5)
    request = make_request(**LONG, tail=range(3, 12))
    sequence = simulation.run(request)
    assert (sequence.prefix_hit_tokens, sequence.decode_steps) == (0, 11)
    sequence = simulation.run(request)
    assert (sequence.prefix_hit_tokens, sequence.decode_steps) == (8, 11)


def test_loop_ends_the_output_where_it_does_without_a_draft() -> None:
    fields = {"head": (LOOPING,), "max_new_tokens": 60}
    plain = Simulation().run(make_request(**fields))
    assert plain.stop_reason is StopReason.LOOP
    assert len(plain.output) == 2
    drafted = Simulation().run(make_request(**fields, draft=(4, 3) * 20))
    assert (drafted.output, drafted.stop_reason) == (plain.output, plain.stop_reason)
    assert drafted.draft.accepted_length == 2


def test_loop_cut_keeps_forced_tokens() -> None:
    request = make_request(head=(LOOPING,), max_new_tokens=60, forced=(4, 3) * 10)
    sequence = Simulation().run(request)
    assert sequence.stop_reason is StopReason.LOOP
    assert tuple(sequence.output) == request.forced


# Cancelling and misuse.


@pytest.mark.parametrize("state", ["waiting", "prefilling", "decoding", "finished"])
def test_cancel_works_in_every_state_and_twice(state: str) -> None:
    simulation = Simulation(step_tokens=2)
    sequence = simulation.submit(make_request(**LONG))
    if state == "prefilling":
        simulation.step()
    elif state == "decoding":
        step_until_decoding(simulation, sequence)
    elif state == "finished":
        simulation.finish()
    for _ in range(2):
        simulation.scheduler.cancel(sequence)
        assert sequence.state is State.FINISHED
        assert not simulation.scheduler.has_work
        assert simulation.scheduler.pool.num_used == 0
    assert (sequence.stop_reason is None) == (state != "finished")


def test_complete_of_a_cancelled_sequence_does_nothing() -> None:
    simulation = Simulation()
    sequence = simulation.submit(make_request(**LONG))
    (row,) = simulation.scheduler.plan(0.0)
    simulation.scheduler.cancel(sequence)
    assert simulation.scheduler.complete(row, [3]) == ()
    assert sequence.output == []
    simulation.scheduler.end_step()
    simulation.scheduler.pool.check_idle()
    assert simulation.scheduler.plan(0.0) == []


def test_step_begins_only_when_the_previous_one_is_complete() -> None:
    simulation = Simulation()
    simulation.submit(make_request(**LONG))
    (row,) = simulation.scheduler.plan(0.0)
    with pytest.raises(StateError, match="not completed"):
        simulation.scheduler.plan(0.0)
    simulation.scheduler.complete(row, [3])
    with pytest.raises(StateError, match="completed already"):
        simulation.scheduler.complete(row, [3])
    assert len(simulation.scheduler.plan(0.0)) == 1


def test_complete_refuses_the_wrong_number_of_choices() -> None:
    simulation = Simulation()
    simulation.submit(make_request(**LONG))
    (row,) = simulation.scheduler.plan(0.0)
    with pytest.raises(StateError, match="2 choices for 1"):
        simulation.scheduler.complete(row, [3, 4])


def test_complete_refuses_a_row_of_another_plan() -> None:
    simulation = Simulation()
    sequence = simulation.submit(make_request(**LONG))
    simulation.scheduler.plan(0.0)
    with pytest.raises(StateError):
        simulation.scheduler.complete(Row(sequence, 0, (3,), 0, 1), [3])


def test_loop_under_new_times_is_cut() -> None:
    # The same three words again and again, each time under another time tag.
    script = [4, 5, 6, *(token for again in range(20) for token in (100 + again, 7, 8, 9))]
    request = make_request(max_new_tokens=90, markup_ids=frozenset(range(100, 200)))
    simulation = Simulation()
    sequence = simulation.submit(request)
    while sequence.state is not State.FINISHED:
        for asked, window in plan_windows(simulation, 9):
            asked.window_ready[window] = True
        for row in simulation.scheduler.plan(0.0):
            chosen = script[len(sequence.output) : len(sequence.output) + row.num_logits]
            simulation.scheduler.complete(row, chosen)
        simulation.scheduler.end_step()
    assert sequence.stop_reason is StopReason.LOOP
    assert sequence.output == [4, 5, 6, 100, 7, 8, 9, 101]
