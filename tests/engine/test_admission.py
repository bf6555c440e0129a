"""Who waits in the queue of the scheduler, who overtakes whom, and who is let in.

With `make_request`, a prompt is 2 text positions, 7 for each window (6 audio), then 1 of text;
blocks have 4 positions.
"""

from __future__ import annotations

import pytest
from support.scheduling import LONG, Simulation, make_request

from moss_stream.engine.request import Priority
from moss_stream.engine.sequence import Sequence, State
from moss_stream.errors import CapacityError, QueueFull, StateError


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
