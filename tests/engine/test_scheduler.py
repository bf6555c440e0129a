"""One behaviour of the scheduler at a time, and by name each bug that engines like it have had.

With `make_request`, a prompt is 2 text positions, 7 for each window (6 audio), then 1 of text;
blocks have 4 positions.
"""

from __future__ import annotations

import pytest
from support.scheduling import BLOCK, LOOPING, Simulation, make_request, run_alone

from moss_stream.engine.request import Priority, StopReason
from moss_stream.engine.scheduler import Row
from moss_stream.engine.sequence import Sequence, State
from moss_stream.errors import CapacityError, QueueFull, StateError

LONG = {"max_new_tokens": 12, "stop_ids": frozenset[int](), "stop_loops": False}
"""Fields of a request whose output has its full length."""


def step_until_decoding(simulation: Simulation, sequence: Sequence) -> None:
    while sequence.state is State.WAITING or sequence.is_prefilling:
        simulation.step()


# Bugs of other engines.


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


# Queue and admission.


def test_finals_overtake_partials_overtake_files() -> None:
    simulation = Simulation(max_rows=1)
    submitted = [
        simulation.submit(make_request(**LONG, priority=priority))
        for priority in (Priority.FILE, Priority.PARTIAL, Priority.FINAL)
    ]
    served = []
    for rows in simulation.finish():
        served += [row.sequence for row in rows if row.sequence not in served]
    assert served == submitted[::-1]


def test_earlier_deadlines_go_first_within_a_priority() -> None:
    simulation = Simulation(max_rows=1)
    late = simulation.submit(make_request(**LONG, deadline_s=9.0))
    early = simulation.submit(make_request(**LONG, deadline_s=3.0))
    simulation.step()
    assert (early.state, late.state) == (State.RUNNING, State.WAITING)


def test_nobody_overtakes_the_first_in_the_queue_for_being_small() -> None:
    simulation = Simulation(num_blocks=7)
    simulation.submit(make_request(**LONG))
    large = simulation.submit(make_request(**LONG, head=range(3, 12)))
    small = simulation.submit(make_request(max_new_tokens=1))
    simulation.step()
    assert (large.state, small.state) == (State.WAITING, State.WAITING)


def test_request_that_never_fits_is_refused() -> None:
    simulation = Simulation(num_blocks=3)
    with pytest.raises(CapacityError, match=r"take 15 tokens.* holds 12"):
        simulation.submit(make_request(**LONG))
    assert not simulation.scheduler.has_work


def test_request_beyond_the_queue_is_refused() -> None:
    simulation = Simulation(max_waiting=1)
    simulation.submit(make_request())
    with pytest.raises(QueueFull, match="limit is 1"):
        simulation.submit(make_request())


def test_sequence_is_submitted_once() -> None:
    simulation = Simulation()
    sequence = simulation.submit(make_request())
    with pytest.raises(StateError):
        simulation.scheduler.submit(sequence)
    simulation.finish()
    with pytest.raises(StateError):
        simulation.scheduler.submit(sequence)


def make_refresh(name: int, stream_id: str | None = "a", **fields: object) -> Sequence:
    fields = {"priority": Priority.PARTIAL} | fields
    return Sequence(name, make_request(**LONG, stream_id=stream_id, **fields))


def test_newer_refresh_replaces_the_waiting_one_of_its_stream() -> None:
    scheduler = Simulation(max_waiting=1).scheduler
    older = make_refresh(0)
    assert scheduler.submit(older) is None
    assert scheduler.submit(make_refresh(1)) is older
    assert (older.state, older.stop_reason) == (State.FINISHED, None)
    assert scheduler.num_waiting == 1


def test_newer_refresh_takes_the_place_of_the_older_one() -> None:
    # Else a stream that refreshes faster than it is served never is.
    simulation = Simulation(max_rows=1)
    scheduler = simulation.scheduler
    refreshes = [
        make_refresh(0, deadline_s=1.0),
        make_refresh(1, "b", deadline_s=2.0),
        make_refresh(2, deadline_s=3.0),
    ]
    for refresh in refreshes:
        scheduler.submit(refresh)
    assert [row.sequence for row in scheduler.plan(0.0)] == [refreshes[2]]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ({"stream_id": "b"}, {}),
        ({"stream_id": None}, {"stream_id": None}),
        ({"priority": Priority.FINAL}, {}),
        ({}, {"priority": Priority.FINAL}),
    ],
)
def test_refresh_replaces_nothing_else(older: dict[str, object], newer: dict[str, object]) -> None:
    scheduler = Simulation().scheduler
    scheduler.submit(make_refresh(0, **older))  # type: ignore[arg-type]
    assert scheduler.submit(make_refresh(1, **newer)) is None  # type: ignore[arg-type]
    assert scheduler.num_waiting == 2


def test_refresh_does_not_replace_one_that_has_started() -> None:
    scheduler = Simulation().scheduler
    older = make_refresh(0)
    scheduler.submit(older)
    scheduler.plan(0.0)
    assert scheduler.submit(make_refresh(1)) is None
    assert older.state is State.RUNNING


def test_lone_prefill_waits_for_company_but_not_for_ever() -> None:
    simulation = Simulation(coalesce_target=2, coalesce_wait_s=0.5)
    simulation.submit(make_request(**LONG))
    simulation.now_s = 10.0
    assert simulation.step() == []
    simulation.now_s = 10.4
    assert simulation.step() == []
    simulation.now_s = 10.5
    assert len(simulation.step()) == 1
    # Something runs now: nobody waits.
    simulation.submit(make_request(**LONG))
    assert len(simulation.step()) == 2


def test_prefills_in_company_start_at_once() -> None:
    simulation = Simulation(coalesce_target=2, coalesce_wait_s=0.5)
    simulation.submit(make_request(**LONG))
    assert simulation.step() == []
    simulation.submit(make_request(**LONG))
    assert len(simulation.step()) == 2


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
    for step in range(600):
        if step % 6 == 0:
            simulation.submit(make_request([1], priority=Priority.FINAL, **LONG))
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


def test_windows_are_wanted_in_order_of_service_and_only_where_needed() -> None:
    simulation = Simulation(step_tokens=16)
    simulation.run(make_request([1, 2], **LONG))
    file = simulation.submit(make_request([1, 3], **LONG))
    refresh = simulation.submit(make_request([4, 5], **LONG, priority=Priority.PARTIAL))
    simulation.step(encode=0)
    wanted = simulation.scheduler.windows_wanted
    # The file's first window ends within the block that touches its second.
    assert wanted(9) == [(refresh, 0), (refresh, 1), (file, 0), (file, 1)]
    assert wanted(3) == [(refresh, 0), (refresh, 1), (file, 0)]
    refresh.window_ready[0] = True
    assert wanted(2) == [(refresh, 1), (file, 0)]


def test_windows_covered_by_a_prefix_hit_are_never_wanted() -> None:
    simulation = Simulation()
    simulation.run(make_request([1, 2], **LONG))
    simulation.submit(make_request([1, 2], **LONG))
    assert simulation.scheduler.plan(0.0)[0].start == 16
    assert simulation.scheduler.windows_wanted(9) == []


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
        for asked, window in simulation.scheduler.windows_wanted(9):
            asked.window_ready[window] = True
        for row in simulation.scheduler.plan(0.0):
            chosen = script[len(sequence.output) : len(sequence.output) + row.num_logits]
            simulation.scheduler.complete(row, chosen)
        simulation.scheduler.end_step()
    assert sequence.stop_reason is StopReason.LOOP
    assert sequence.output == [4, 5, 6, 100, 7, 8, 9, 101]
