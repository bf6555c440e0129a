"""Whether a new speaker is a known one under another name: the model itself is asked.

A question is one short window: a snippet of one speaker, whose words and label are known to the
model, then a snippet of the other. If the model goes on with the same label it takes them for one
person. As it may err, it is asked the other way round as well, and only twice the same counts: the
small checkpoint then finds 54 of 84 pairs of snippets of one person in the evaluation clips, and
makes one person of none of 84 pairs of two, where one question alone does of 2 of 60.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moss_stream.errors import CapacityError, MossStreamError
from moss_stream.live.config import LiveConfig, to_seconds
from moss_stream.live.context import anchored
from moss_stream.live.events import DecodeKind, DecodeRequest, Output, Relabel, SessionWarning
from moss_stream.live.speakers import SpeakerBook, age, speaker_label
from moss_stream.live.text import TextCodec
from moss_stream.transcript.markup import parse_markup, write_markup
from moss_stream.types import Segment

MAX_ATTEMPTS = 3
"""Times a question is asked when it fails."""
_LABEL = speaker_label(1)
_WANTED_S = 1.0
"""How soon an answer is wanted, seconds: what comes after it waits."""


@dataclass(slots=True)
class _Pair:
    """Two names that may be one person's."""

    known: str
    new: str
    is_confirming: bool = False
    """Whether the model has said once that they are."""
    attempts: int = 0
    """Decodes that failed."""
    retry_at_s: float = -math.inf


class Linker:
    """Compares the new speakers of one session with those it knows.

    Args:
        config: How long to wait before a question is asked again.
        codec: The tokenizer of the model that is asked.
        speakers: Who is known, with their snippets.
    """

    def __init__(self, config: LiveConfig, codec: TextCodec, speakers: SpeakerBook) -> None:
        self._config = config
        self._codec = codec
        self._speakers = speakers
        self._pairs: deque[_Pair] = deque()
        self._request: DecodeRequest | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something is still to be found out."""
        return bool(self._pairs)

    def suspect(self, names: Sequence[str]) -> None:
        """Compare speakers, who have their first snippet now, with all who had one before."""
        known = [name for name in self._speakers.snippets if name not in names]
        self._pairs.extend(_Pair(name, new) for new in names for name in known)

    def plan(self, new_id: Callable[[], int], now_s: float) -> list[Output]:
        """Ask the next question if none is out; `new_id` gives its request an id."""
        if self._request is not None:
            return []
        while self._pairs and not self._are_here(self._pairs[0]):
            self._pairs.popleft()
        if not self._pairs or now_s < self._pairs[0].retry_at_s:
            return []
        self._request = self._question(self._pairs[0], new_id(), now_s)
        return [self._request]

    def is_asked(self, request_id: int) -> bool:
        """Whether a request is a question that waits for its answer."""
        return self._request is not None and self._request.request_id == request_id

    def answer(self, token_ids: Sequence[int]) -> list[Output]:
        """Take the answer to the question that is out: all tokens, the forced ones first."""
        pair = self._pairs[0]
        own = self._codec.decode(token_ids[self._take_forced() :])
        segments = parse_markup(own).segments
        is_one = bool(segments) and segments[0].speaker == _LABEL
        if not is_one or not self._are_here(pair):
            self._pairs.popleft()
            return []
        if not pair.is_confirming:
            pair.is_confirming = True
            return []
        self._pairs.popleft()
        into, duplicate = sorted((pair.known, pair.new), key=age)
        self._speakers.merge(duplicate, into)
        return [Relabel(duplicate, into)]

    def fail(self, error: MossStreamError, now_s: float) -> list[Output]:
        """Take the failure of the question that is out.

        It is asked again if that may help. But speech waits for what can be done without: after few
        failures, or when the engine has no room, nobody is compared any more.
        """
        self._take_forced()
        pair = self._pairs[0]
        pair.attempts += 1
        may_help = error.retryable and not isinstance(error, CapacityError)
        if may_help and pair.attempts < MAX_ATTEMPTS:
            pair.retry_at_s = now_s + self._config.retry_delay_s * pair.attempts
            return []
        self._pairs.clear()
        message = f"{pair.new} was not compared with those known: {error.code}"
        return [SessionWarning("speaker_not_compared", message, None)]

    def _are_here(self, pair: _Pair) -> bool:
        """Whether neither was merged meanwhile, or has lost its snippet."""
        return {pair.known, pair.new} <= self._speakers.snippets.keys()

    def _take_forced(self) -> int:
        request, self._request = self._request, None
        return 0 if request is None else len(request.forced)

    def _question(self, pair: _Pair, request_id: int, now_s: float) -> DecodeRequest:
        names = (pair.new, pair.known) if pair.is_confirming else (pair.known, pair.new)
        first, second = (self._speakers.snippets[name] for name in names)
        base = anchored([(_LABEL, first)], self._codec)
        start_s = base.timeline.duration_s
        end_s = start_s + to_seconds(len(second.span))
        guess = write_markup([Segment(start_s, end_s, _LABEL, second.text)])
        return DecodeRequest(
            request_id=request_id,
            utterance_id=0,
            kind=DecodeKind.LINK,
            windows=base.windows(second.samples),
            forced=base.token_ids,
            draft=tuple(self._codec.encode(guess)),
            start_at=second.span.start_at,
            end_at=second.span.end_at,
            deadline_s=now_s + _WANTED_S,
        )
