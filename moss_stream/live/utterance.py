"""What a session remembers of one utterance until its final is out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from moss_stream.live.commit import CommitPolicy
from moss_stream.live.context import Base
from moss_stream.live.events import DecodeRequest
from moss_stream.types import TranscriptWarning, Usage

EARLIER_HYPOTHESES = 4
"""Remembered besides the last one; more save no steps."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A decode of the utterance to what may be its end."""

    end_at: int
    """After the last sample decoded."""
    token_ids: tuple[int, ...]
    """The utterance's own output."""
    is_complete: bool
    """Whether the model ended it by itself."""
    warnings: tuple[TranscriptWarning, ...]
    """Of the decoder, times in model time."""
    usage: Usage
    """What it cost."""


@dataclass(slots=True)
class Utterance:
    """One utterance from its onset to its final.

    It is placed, that is it has its base and its policy, once everything before it is final, and
    has at most one request out.
    """

    id: int
    """Counts from 1."""
    start_at: int
    """First sample, pre-roll included."""
    covered_at: int
    """After the last sample a refresh asked for; at first the start."""
    policy: CommitPolicy
    """What of its text is certain."""
    base: Base = field(default_factory=Base)
    """What precedes it in its requests."""
    is_placed: bool = False
    """Whether the base is fixed."""
    speech_end_at: int = 0
    """After the last speech; known in a pause and at the end."""
    pause_end_at: int | None = None
    """Where it ends if the present pause is the last."""
    split_at: int | None = None
    """Where it will probably be split, when it is nearly too long."""
    end_at: int | None = None
    """After its last sample, once it ended."""
    request: DecodeRequest | None = None
    """The outstanding request."""
    is_request_started: bool = False
    """Whether the engine works on it already, so that replacing it would waste the work."""
    token_ids: tuple[int, ...] = ()
    """Own output of the last hypothesis: the next draft."""
    earlier: tuple[tuple[int, ...], ...] = ()
    """Own outputs of some hypotheses before it, the newest first."""
    answer: Answer | None = None
    """A final that is there before its endpoint, or at it."""
    failed_eager_at: int | None = None
    """End whose eager final failed; it is not tried again."""
    revision: int = 0
    """Hypotheses told."""
    attempts: int = 0
    """Finals that failed."""
    retry_at_s: float = -math.inf
    """No final is asked for before."""

    def hear(self, token_ids: tuple[int, ...]) -> None:
        """Take the own output of a new hypothesis."""
        if self.token_ids:
            self.earlier = (self.token_ids, *self.earlier)[:EARLIER_HYPOTHESES]
        self.token_ids = token_ids

    def draft_after(self, known: tuple[int, ...]) -> tuple[int, ...]:
        """What the last hypothesis has after `known`; nothing if it begins otherwise."""
        if self.token_ids[: len(known)] != known:
            return ()
        return self.token_ids[len(known) :]
