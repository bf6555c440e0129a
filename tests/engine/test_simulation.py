"""The scheduler under anything that may happen, with a model whose every mistake shows.

Requests, cancels at any moment and windows that become ready in any order; after each step the KV
blocks must add up, and in the end every output must equal that of a run alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.scheduling import (
    BLOCK,
    LOOPING,
    SPELLING,
    STOP,
    VOCABULARY,
    Simulation,
    make_request,
    run_alone,
)

from moss_stream.engine.request import Priority, Request
from moss_stream.engine.scheduler import Row
from moss_stream.engine.sequence import Sequence, State
from moss_stream.errors import CapacityError

TOKENS = st.integers(1, VOCABULARY - 1)


@st.composite
def make_requests(draw: st.DrawFn) -> Request:
    """Requests that share windows and prompts often, with all kinds of drafts."""
    request = make_request(
        draw(st.lists(st.integers(0, 1), max_size=3)),
        head=draw(st.sampled_from([(3,), (3, 4, 6, 8), (LOOPING, 4)])),
        tail=draw(st.sampled_from([(5,), (5, 6, 7), (5, 6, 7, 8)])),
        max_new_tokens=draw(st.sampled_from([1, 2, 3, 9, 40])),
        priority=draw(st.sampled_from(Priority)),
        deadline_s=draw(st.sampled_from([1.0, 2.0, float("inf")])),
        stream_id=draw(st.sampled_from([None, "a", "b"])),
        stop_loops=draw(st.booleans()),
        spelling=draw(st.sampled_from([None, SPELLING])),
    )
    forced = draw(st.just([]) | st.lists(TOKENS, max_size=request.max_new_tokens - 1))
    request = replace(request, forced=tuple(forced))
    truth = tuple(run_alone(request)[0][len(forced) :])
    at = draw(st.integers(0, len(truth)))
    noise = tuple(draw(st.lists(TOKENS, max_size=6)))
    draft = draw(
        st.sampled_from(
            [
                (),
                truth,
                noise,
                (*truth, *noise),
                (*truth, STOP, *noise),
                (*truth[:at], STOP, *truth[at:]),
                (*truth[:at], *noise, *truth[at:]),
                (*truth[:at], *noise, *truth[at + 1 :]),
                truth[at:],
                truth * 20,
            ]
        )
    )
    earlier = draw(
        st.sampled_from([(), (truth,), (noise, truth[at:]), (truth * 3, (STOP, *noise))])
    )
    return replace(request, draft=draft, earlier=earlier)


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        step_tokens=st.sampled_from([1, 7, 64, 4096]),
        max_rows=st.sampled_from([1, 2, 5]),
        num_blocks=st.sampled_from([13, 24, 60]),
        wait_s=st.sampled_from([0.0, 1.0]),
    )
    def start(self, step_tokens: int, max_rows: int, num_blocks: int, wait_s: float) -> None:
        self.step_tokens = step_tokens
        self.simulation = Simulation(
            num_blocks,
            step_tokens=step_tokens,
            max_rows=max_rows,
            coalesce_target=2,
            coalesce_wait_s=wait_s,
        )
        self.ended: set[int] = set()
        """Ids of the sequences that were cancelled or replaced."""

    @rule(request=make_requests())
    def submit(self, request: Request) -> None:
        queued = {s.id for s in self.simulation.sequences if s.state is State.WAITING}
        try:
            self.simulation.submit(request)
        except CapacityError:
            allowed = self.simulation.scheduler.pool.num_blocks * BLOCK
            assert len(request.prompt.ids) + request.max_new_tokens > allowed
        waiting = {s.id for s in self.simulation.sequences if s.state is State.WAITING}
        self.ended |= queued - waiting

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        for sequence in self._draw_sequences(data):
            self.simulation.scheduler.cancel(sequence)

    @precondition(lambda self: self.simulation.scheduler.has_work)
    @rule(data=st.data(), encode=st.integers(0, 2), passed_s=st.sampled_from([0.0, 0.6]))
    def step(self, data: st.DataObject, encode: int, passed_s: float) -> None:
        cancelled = self._draw_sequences(data) if data.draw(st.integers(0, 4)) == 0 else []
        before = [s for s in self.simulation.sequences if s.state is State.WAITING]
        rows = self.simulation.step(encode=encode, cancel=cancelled)
        self.simulation.now_s += passed_s
        self._check_rows(rows)
        self._check_admission(before)

    @invariant()
    def blocks_add_up(self) -> None:
        scheduler = self.simulation.scheduler
        running = [s for s in self.simulation.sequences if s.state is State.RUNNING]
        held = {block for sequence in running for block in sequence.block_table}
        assert scheduler.pool.num_used == len(held)
        assert scheduler.num_active == len(running)
        # What a sequence may still write is its own.
        for sequence in running:
            writable = set(sequence.block_table[sequence.num_computed // BLOCK :])
            others = {b for other in running if other is not sequence for b in other.block_table}
            assert writable.isdisjoint(others)

    def teardown(self) -> None:
        if not hasattr(self, "simulation"):
            return
        self.simulation.finish()
        self.simulation.scheduler.pool.check_idle()
        assert self.simulation.scheduler.pool.num_used == 0
        for sequence in self.simulation.sequences:
            assert sequence.state is State.FINISHED
            if sequence.id not in self.ended:
                self._check_result(sequence)

    def _draw_sequences(self, data: st.DataObject) -> list[Sequence]:
        if not self.simulation.sequences:
            return []
        chosen = data.draw(st.lists(st.sampled_from(self.simulation.sequences), max_size=2))
        self.ended |= {s.id for s in chosen if s.state is not State.FINISHED}
        return chosen

    def _check_rows(self, rows: list[Row]) -> None:
        assert sum(len(row.ids) for row in rows) <= self.step_tokens
        assert len({row.sequence.id for row in rows}) == len(rows)
        prefills = [row.start < row.sequence.num_given for row in rows]
        assert prefills == sorted(prefills), "prefills come after the others"
        for kind in (False, True):
            ranks = [row.sequence.rank for row, p in zip(rows, prefills, strict=True) if p is kind]
            assert ranks == sorted(ranks)

    def _check_admission(self, before: list[Sequence]) -> None:
        admitted = [s.rank for s in before if s.block_table]
        left = [s.rank for s in before if s.state is State.WAITING]
        assert not admitted or not left or max(admitted) < min(left), "somebody was overtaken"

    def _check_result(self, sequence: Sequence) -> None:
        request = sequence.request
        output, reason = run_alone(request)
        assert (sequence.output, sequence.stop_reason) == (output, reason)
        decided = output[len(request.forced) :]
        agreed = 0
        while decided[agreed : agreed + 1] == [*request.draft[agreed : agreed + 1]] != []:
            agreed += 1
        assert sequence.draft.accepted_length == agreed
        streamed = self.simulation.streamed[sequence.id]
        # Of a loop, part was handed out before it was one.
        assert streamed[: len(decided)] == decided
        assert reason == "loop" or streamed == decided
        assert 0 <= sequence.draft_accepted <= sequence.draft_tokens


@pytest.mark.parametrize("steps", [15, 60])
def test_every_request_ends_as_alone_whatever_happens(steps: int) -> None:
    run_state_machine_as_test(
        SchedulerMachine,
        settings=settings(
            max_examples=3000 // steps,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
