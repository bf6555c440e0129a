"""The progress of one request through the engine.

Positions of a sequence: the prompt, then the output (forced tokens first). `known` are the tokens
of the positions that are decided; KV is valid for the first `num_computed` of them.

    WAITING --admitted, blocks reserved--> RUNNING --> FINISHED
    WAITING --cancelled or replaced--> FINISHED

While RUNNING a sequence is first prefilling (given positions are not all fed), then decoding
(exactly the last known token is not fed).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from moss_stream.engine.earlier import Earlier
from moss_stream.engine.prefix import BlockKey, block_keys
from moss_stream.engine.request import Request, StopReason
from moss_stream.engine.tag_draft import TagDraft
from moss_stream.engine.verify import Draft
from moss_stream.types import TEXT_SLOT


class State(Enum):
    """Where a sequence is."""

    WAITING = auto()
    """Holds no blocks."""
    RUNNING = auto()
    """Holds all the blocks it may need."""
    FINISHED = auto()
    """Ended or cancelled; holds no blocks."""


class Sequence:
    """What the engine knows of one request.

    Args:
        id: Unique within the engine, and greater than those of earlier arrivals.
        request: What is asked for.
    """

    def __init__(self, id: int, request: Request) -> None:
        self.id = id
        self.request = request
        self.known: list[int] = [*request.prompt.ids, *request.forced]
        """Ids of the decided positions."""
        self.num_given = len(self.known)
        """Positions of the prompt and the forced tokens."""
        self.num_computed = 0
        """Leading positions whose KV is valid."""
        self.block_table: list[int] = []
        """Blocks of the positions, in order. Stays as it is when the sequence ends, since a forward
        may still be reading it."""
        self.num_published = 0
        """Leading blocks that can be found by others, or equal ones instead."""
        self.window_ready = [False] * len(request.windows)
        """Per window, whether its embeddings are at hand; set by whoever encodes."""
        self.state = State.WAITING
        self.stop_reason: StopReason | None = None
        """Why the output ended; None until then, and after a cancel."""
        self.rank: tuple[int, float, int] = (request.priority, request.deadline_s, id)
        """Order of service, lower first: priority, deadline, arrival."""
        self.draft = Draft(request.draft)
        self._earlier = Earlier(request.earlier)
        self._tag_draft: TagDraft | None = None
        if request.spelling is not None:
            audio_s = request.prompt.audio_tokens * request.spelling.time_step_s
            self._tag_draft = TagDraft(request.spelling, audio_s)
            self._tag_draft.observe(request.forced)
        self.prefix_hit_tokens = 0
        """Positions whose KV came from the prefix index."""
        self.draft_tokens = 0
        """Proposed tokens that were verified."""
        self.draft_accepted = 0
        """Those the model agreed with."""
        self.decode_steps = 0
        """Steps after the prefill."""
        self.words: list[int] = []
        """Output without times and speaker tags."""
        self.word_positions: list[int] = []
        """Position of each word."""
        for position in range(len(request.prompt.ids), self.num_given):
            self._note_word(position)
        self._keys: list[BlockKey] = []
        self._window_positions = _window_positions(request)

    def propose(self, limit: int) -> tuple[int, ...]:
        """Return at most `limit` tokens the output may go on with.

        Where the draft was wrong just now, what an older one went on with is the better guess, and
        then the tag that is foreseen, unless the next one says the same and more.
        """
        drafted = self.draft.propose(limit)
        if drafted and self.draft.agrees:
            return drafted
        guess = self._earlier.propose(self.known, limit)
        foreseen = self._tag_draft.propose(limit) if self._tag_draft is not None else ()
        for other in (foreseen, drafted):
            if len(other) > len(guess) and other[: len(guess)] == guess:
                guess = other
        return guess

    def append(self, token: int) -> bool:
        """Add a token to the output; True when it is a word."""
        self.known.append(token)
        self.draft.observe((token,))
        if self._tag_draft is not None:
            self._tag_draft.observe((token,))
        return self._note_word(len(self.known) - 1)

    def _note_word(self, position: int) -> bool:
        is_word = self.known[position] not in self.request.markup_ids
        if is_word:
            self.words.append(self.known[position])
            self.word_positions.append(position)
        return is_word

    @property
    def output(self) -> list[int]:
        """A copy of the tokens after the prompt, forced ones included."""
        return self.known[len(self.request.prompt.ids) :]

    @property
    def max_positions(self) -> int:
        """Positions the sequence may take in the end."""
        return len(self.request.prompt.ids) + self.request.max_new_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether positions of the prompt or of the forced tokens are still to be fed."""
        return self.num_computed < self.num_given

    @property
    def ready_until(self) -> int:
        """Known positions before this one may be fed: no window they need is missing."""
        missing = next(self.missing_windows(), None)
        if missing is None:
            return len(self.known)
        return max(self._window_positions[missing].start, self.num_computed)

    def missing_windows(self) -> Iterator[int]:
        """Yield the windows that are not ready and that unfed positions need, in order.

        A window whose positions are all computed, such as after a prefix hit, is never needed.
        """
        for window, positions in enumerate(self._window_positions):
            if positions.stop > self.num_computed and not self.window_ready[window]:
                yield window

    def keys(self, num_blocks: int, block_tokens: int) -> list[BlockKey]:
        """Return the keys of the first `num_blocks` blocks, which must be full."""
        if len(self._keys) < num_blocks:
            self._keys += block_keys(
                self.request.prompt,
                self.request.windows,
                self.output,
                block_tokens,
                first=len(self._keys),
                parent=self._keys[-1] if self._keys else None,
            )
        return self._keys[:num_blocks]


def _window_positions(request: Request) -> list[range]:
    """Per window, the positions from its first audio slot to its last; empty without any."""
    places = [at for at, slot in enumerate(request.prompt.audio_slots) if slot != TEXT_SLOT]
    positions = []
    first = 0
    for tokens in request.prompt.window_tokens:
        own = places[first : first + tokens]
        positions.append(range(own[0], own[-1] + 1) if own else range(0))
        first += tokens
    return positions
