"""A model made of hashes: drives the scheduler without torch and knows what it must not do.

The next token is a function of everything before it, ids and audio alike, so a sequence that reads
one wrong KV slot continues differently from a run alone; besides that every read is checked.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from moss_stream.config import EngineConfig
from moss_stream.engine.request import Request, StopReason
from moss_stream.engine.scheduler import Row, Scheduler
from moss_stream.engine.sequence import Sequence, State
from moss_stream.transcript.guards import loop_length
from moss_stream.transcript.spelling import Spelling
from moss_stream.types import TEXT_SLOT, Prompt, Window

BLOCK = 4
STOP = 0
AUDIO = 1
LOOPING = 2
"""A prompt that begins with this id makes the model say the same few words for ever."""
VOCABULARY = 12
_CHARACTERS = "???[S012.]ab"
"""What each token stands for, so that tags are foreseen in the noise."""
SPELLING = Spelling(
    encode=lambda text: [max(_CHARACTERS.find(character), 3) for character in text],
    decode=lambda tokens: "".join(_CHARACTERS[token] for token in tokens),
    time_step_s=0.1,
)
LONG: dict[str, Any] = {"max_new_tokens": 12, "stop_ids": frozenset[int](), "stop_loops": False}
"""Fields of a request whose output has its full length."""


def make_prompt(
    window_tokens: Seq[int] = (), *, head: Seq[int] = (), tail: Seq[int] = (5,)
) -> Prompt:
    """A prompt of text, audio with a marker within each window, and text."""
    ids, slots = [*head], [TEXT_SLOT] * len(head)
    placed = 0
    for tokens in window_tokens:
        for index in range(tokens):
            if index == 3:
                ids.append(7)
                slots.append(TEXT_SLOT)
            ids.append(AUDIO)
            slots.append(placed + index)
        placed += tokens
    return Prompt(
        (*ids, *tail), (*slots, *[TEXT_SLOT] * len(tail)), window_tokens=tuple(window_tokens)
    )


def make_window(content: int) -> Window:
    """A window whose digest depends on `content` alone."""
    return Window(np.full(4, content, dtype=np.float32))


def make_request(
    contents: Seq[int] = (), *, window_tokens: int = 6, head: Seq[int] = (3, 4), **fields: Any
) -> Request:
    """A request with one window per content."""
    tail = fields.pop("tail", (5,))
    return Request(
        prompt=make_prompt([window_tokens] * len(contents), head=head, tail=tail),
        windows=tuple(make_window(content) for content in contents),
        **({"max_new_tokens": 8, "stop_ids": frozenset({STOP})} | fields),
    )


def make_scheduler(num_blocks: int = 64, **config: Any) -> Scheduler:
    return Scheduler(EngineConfig(**({"block_tokens": BLOCK} | config)), num_blocks)


def histories(request: Request, ids: Seq[int]) -> list[int]:
    """Per position a number that stands for everything up to it: what KV depends on."""
    audio = [
        (int.from_bytes(window.digest), offset)
        for window, tokens in zip(request.windows, request.prompt.window_tokens, strict=True)
        for offset in range(tokens)
    ]
    states = []
    state = 0
    for position, token in enumerate(ids):
        slots = request.prompt.audio_slots
        slot = slots[position] if position < len(slots) else TEXT_SLOT
        state = hash((state, token, *(audio[slot] if slot != TEXT_SLOT else ())))
        states.append(state)
    return states


def next_token(request: Request, ids: Seq[int], position: int, state: int) -> int:
    """What the model says after a position."""
    if ids[0] == LOOPING:
        return 3 + position % 2
    return hash((state, 1)) % VOCABULARY


def run_alone(request: Request) -> tuple[list[int], StopReason]:
    """Output of a request as a loop without cache, draft or company gives it."""
    ids = [*request.prompt.ids, *request.forced]
    first = len(request.prompt.ids)
    while True:
        token = next_token(request, ids, len(ids) - 1, histories(request, ids)[-1])
        if token in request.stop_ids:
            return ids[first:], StopReason.END
        ids.append(token)
        if request.stop_loops and (repeated := loop_length(ids[first:])):
            return ids[first : max(len(ids) - repeated, first + len(request.forced))], (
                StopReason.LOOP
            )
        if len(ids) - first == request.max_new_tokens:
            return ids[first:], StopReason.LENGTH


class FakeRunner:
    """Computes rows as a model with paged KV would, and checks every slot it touches."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._slots: dict[int, tuple[int, int]] = {}
        """Slot -> position and history of what is in it."""

    def forward(self, rows: Seq[Row]) -> list[list[int]]:
        """Choices of each row.

        Raises:
            AssertionError: Two rows write one slot, a row reads a slot that does not hold its own
                history, a window it needs is not ready, or it wants more choices than it feeds.
        """
        written: set[int] = set()
        states = []
        for row in rows:
            sequence = row.sequence
            assert len(row.ids) >= max(row.num_logits, 1), "a choice without a position"
            ids = [*sequence.known[: row.start], *row.ids]
            states.append(histories(sequence.request, ids))
            for position in range(row.start, len(ids)):
                self._check_window(row.sequence, position)
                slot = self._slot(sequence, position)
                assert slot not in written, "two rows write one slot"
                written.add(slot)
                self._slots[slot] = (position, states[-1][position])
        for row, own in zip(rows, states, strict=True):
            for position, state in enumerate(own):
                slot = self._slot(row.sequence, position)
                assert self._slots.get(slot) == (position, state), "a row reads another's KV"
        return [self._choose(row, own) for row, own in zip(rows, states, strict=True)]

    def _slot(self, sequence: Sequence, position: int) -> int:
        block = sequence.block_table[position // self.block_tokens]
        return block * self.block_tokens + position % self.block_tokens

    def _check_window(self, sequence: Sequence, position: int) -> None:
        prompt = sequence.request.prompt
        if position >= len(prompt.ids) or (slot := prompt.audio_slots[position]) == TEXT_SLOT:
            return
        ends = np.cumsum(prompt.window_tokens)
        window = int(np.searchsorted(ends, slot, side="right"))
        assert sequence.window_ready[window], "a window that is not ready is fed"

    def _choose(self, row: Row, states: Seq[int]) -> list[int]:
        ids = [*row.sequence.known[: row.start], *row.ids]
        return [
            next_token(row.sequence.request, ids, position, states[position])
            for position in range(len(ids) - row.num_logits, len(ids))
        ]


class Simulation:
    """An engine without a model or a clock, one step at a time."""

    def __init__(self, num_blocks: int = 64, **config: Any) -> None:
        self.scheduler = make_scheduler(num_blocks, **config)
        self.runner = FakeRunner(self.scheduler.pool.block_tokens)
        self.now_s = 0.0
        self.sequences: list[Sequence] = []
        self.cached: set[bytes] = set()
        """Digests of windows that need no encoding."""
        self.streamed: dict[int, list[int]] = {}
        """Sequence id -> tokens that `complete` returned."""

    def submit(self, request: Request) -> Sequence:
        sequence = Sequence(len(self.sequences), request)
        self.scheduler.submit(sequence)
        self.sequences.append(sequence)
        self.streamed[sequence.id] = []
        return sequence

    def step(self, *, encode: int = 64, cancel: Seq[Sequence] = ()) -> list[Row]:
        """Run a step; `cancel` is cancelled while the model runs."""
        rows = self.scheduler.plan(self.now_s)
        chosen = self.runner.forward(rows)
        for sequence in cancel:
            self.scheduler.cancel(sequence)
        for row, tokens in zip(rows, chosen, strict=True):
            self.streamed[row.sequence.id] += self.scheduler.complete(row, tokens)
        self.scheduler.end_step()
        for sequence, window in self.scheduler.plan_windows(encode, self.cached.__contains__):
            sequence.window_ready[window] = True
        return rows

    def finish(self, max_steps: int = 2000) -> list[list[Row]]:
        """Step until nothing is left to do; returns the rows of every step."""
        steps = []
        while self.scheduler.has_work:
            assert len(steps) < max_steps, "the scheduler makes no progress"
            steps.append(self.step())
            self.now_s += 1.0
        return steps

    def run(self, request: Request) -> Sequence:
        """Run a request to its end with whatever else is queued."""
        sequence = self.submit(request)
        self.finish()
        assert sequence.state is State.FINISHED
        return sequence
