"""Where utterances start, pause and end, from the speech probability of each VAD frame.

States and transitions:

    QUIET     -> STARTING  a frame reaches the threshold
    STARTING  -> QUIET     a frame falls below the exit threshold: it was a noise
    STARTING  -> SPEAKING  speech lasted `min_speech_s`: `Onset`
    SPEAKING  -> STOPPING  a frame falls below the exit threshold
    STOPPING  -> STOPPING  silence lasted `pause_s`: `Pause`
    STOPPING  -> SPEAKING  a frame reaches the threshold: `Resume`, if there was a pause
    STOPPING  -> QUIET     silence lasted as long as the endpoint needs: `Endpoint`
    SPEAKING  -> SPEAKING  `max_utterance_s` is near: `SplitLikely`, the quietest point so far
    SPEAKING  -> SPEAKING  `max_utterance_s` is reached: `Endpoint`, `Onset` at the quietest point
    STOPPING  -> QUIET     the same in a pause: `Endpoint`

Positions are samples since the start of the session. It knows nothing of text but the hint.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from moss_stream.errors import StateError
from moss_stream.live.config import VAD_FRAME_SAMPLES, LiveConfig, to_samples

_EXIT_STEP = 0.15  # between the two thresholds, as silero's own iterator has it
_SPLIT_SETTLE = to_samples(0.5)
"""How long a point has been the quietest before it is told: seldom is it decoded in vain."""
_SPLIT_LEAD = to_samples(0.5)
"""How long before a split its point is settled: as long as a final takes."""


class Hint(Enum):
    """What the text so far says about the speaker having finished."""

    NONE = "none"
    SENTENCE_END = "sentence_end"
    MID_PHRASE = "mid_phrase"


_SENTENCE_ENDS = tuple(".?!。？！")
_PHRASE_MARKS = (*",;:-–—，、；：", "...", "…")
_OPEN_WORDS = frozenset(
    "a an the and or but so because if when that which who of to in on at for with from by "
    "my your our their is are was were um uh".split()
)  # English words that hardly end a turn; other languages have the punctuation alone


def text_hint(text: str) -> Hint:
    """Judge from the end of `text` whether its speaker has finished."""
    text = text.rstrip()
    if text.endswith(_PHRASE_MARKS):
        return Hint.MID_PHRASE
    if text.endswith(_SENTENCE_ENDS):
        return Hint.SENTENCE_END
    last_word = text[text.rfind(" ") + 1 :].lower()
    return Hint.MID_PHRASE if last_word in _OPEN_WORDS else Hint.NONE


@dataclass(frozen=True, slots=True)
class Onset:
    """An utterance starts."""

    start_at: int
    """Its first sample, pre-roll included."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Speech stopped for now; the utterance may be over."""

    speech_end_at: int
    """After the last speech frame."""
    end_at: int
    """Where the utterance ends unless speech resumes."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Speech goes on after a pause."""


@dataclass(frozen=True, slots=True)
class SplitLikely:
    """Speech goes on for so long that it will be split, here unless a quieter point is told."""

    end_at: int
    """Where the utterance then ends."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The utterance is over."""

    speech_end_at: int
    """After the last speech frame, or the point of a split."""
    end_at: int
    """After the utterance's last sample."""
    is_split: bool
    """Whether its length ended it and speech goes on."""


EndpointEvent = Onset | Pause | Resume | SplitLikely | Endpoint


class _State(Enum):
    QUIET = 0
    STARTING = 1
    SPEAKING = 2
    STOPPING = 3


class Endpointer:
    """The state machine of one session.

    Args:
        config: Thresholds and durations.
    """

    def __init__(self, config: LiveConfig) -> None:
        self.configure(config)
        self._hint = Hint.NONE
        self._state = _State.QUIET
        self._floor_at = 0  # no utterance starts before: what precedes is dealt with
        self._examined_at = 0
        self._start_at = 0  # of the utterance; in STARTING of the first speech frame
        self._quiet_at = 0  # start of the silence, in STOPPING
        self._pause_told = False
        self._likely_at: int | None = None  # where the utterance will be split, if it is
        # Probability of each recent frame by its position, for the quietest point of a split.
        self._recent: deque[tuple[int, float]] = deque(
            maxlen=max(1, to_samples(config.split_search_s) // VAD_FRAME_SAMPLES)
        )

    def configure(self, config: LiveConfig) -> None:
        """Take other thresholds and durations from the next frame on."""
        self._threshold = config.threshold
        self._exit_threshold = max(config.threshold - _EXIT_STEP, 0.01)
        self._min_speech = to_samples(config.min_speech_s)
        self._pre_roll = to_samples(config.pre_roll_s)
        self._pause = to_samples(config.pause_s)
        self._max_utterance = to_samples(config.max_utterance_s)
        self._split_search = to_samples(config.split_search_s)
        self._endpoint_s = {
            Hint.NONE: config.endpoint_s,
            Hint.SENTENCE_END: config.endpoint_min_s,
            Hint.MID_PHRASE: config.endpoint_max_s,
        }

    @property
    def quiet_until(self) -> int:
        """Samples before this belong to no utterance that is open or still to come."""
        if self._state is _State.QUIET:
            return max(self._floor_at, self._examined_at - self._pre_roll)
        if self._state is _State.STARTING:
            return max(self._floor_at, self._start_at - self._pre_roll)
        return self._floor_at

    def hint(self, hint: Hint) -> None:
        """Adapt the silence an endpoint needs; counts until speech resumes."""
        if self._state is _State.STOPPING:
            self._hint = hint

    def push(self, frame_at: int, frame_end: int, probability: float) -> Sequence[EndpointEvent]:
        """Take the speech probability of the frame `frame_at`..`frame_end`.

        Raises:
            StateError: The frame is empty or lies before one that was pushed.
        """
        if not self._examined_at <= frame_at < frame_end:
            raise StateError(
                f"frame {frame_at} to {frame_end} came after audio up to {self._examined_at}"
            )
        self._examined_at = frame_end
        match self._state:
            case _State.QUIET:
                if probability < self._threshold:
                    return ()
                self._state, self._start_at = _State.STARTING, max(frame_at, self._floor_at)
                return self._confirm(frame_end)
            case _State.STARTING:
                if probability < self._exit_threshold:
                    self._state = _State.QUIET
                    return ()
                return self._confirm(frame_end)
            case _State.SPEAKING:
                self._remember(frame_at, frame_end, probability)
                if probability >= self._exit_threshold:
                    return self._split_if_long(frame_end)
                self._state, self._quiet_at = _State.STOPPING, frame_at
                self._pause_told, self._hint = False, Hint.NONE
                return self._silence(frame_end)
            case _State.STOPPING:
                self._remember(frame_at, frame_end, probability)
                if probability < self._threshold:
                    return self._silence(frame_end)
                self._state = _State.SPEAKING
                resumed = (Resume(),) if self._pause_told else ()
                return (*resumed, *self._split_if_long(frame_end))

    def flush(self, at: int) -> Sequence[EndpointEvent]:
        """End the open utterance at `at`, by command or because the stream ends.

        Speech that has not lasted long enough to be confirmed counts. If there was an utterance,
        nothing before `at` belongs to a later one.
        """
        if self._state is _State.QUIET:
            return ()  # the audio before `at` may still be the pre-roll of what comes
        events: list[EndpointEvent] = []
        if self._state is _State.STARTING:
            events.append(self._begin())
        if self._state is _State.SPEAKING:
            events.append(Endpoint(at, at, is_split=False))
        elif self._state is _State.STOPPING:
            speech_end = min(self._quiet_at, at)
            events.append(Endpoint(speech_end, min(at, self._tail_end()), is_split=False))
        self.reset(at)
        return events

    def reset(self, at: int) -> None:
        """Forget the open utterance; nothing before `at` belongs to a later one."""
        self._state = _State.QUIET
        self._floor_at = max(self._floor_at, at)
        self._likely_at = None
        self._recent.clear()

    def _confirm(self, frame_end: int) -> Sequence[EndpointEvent]:
        if frame_end - self._start_at < self._min_speech:
            return ()
        return (self._begin(),)

    def _begin(self) -> Onset:
        self._state = _State.SPEAKING
        self._start_at = max(self._floor_at, self._start_at - self._pre_roll)
        self._floor_at = self._start_at
        return Onset(self._start_at)

    def _tail_end(self) -> int:
        """End of the utterance when the present silence ends it."""
        return self._quiet_at + self._pause

    def _silence(self, frame_end: int) -> Sequence[EndpointEvent]:
        """Judge the silence that lasts until `frame_end`."""
        events: list[EndpointEvent] = []
        silence = frame_end - self._quiet_at
        if not self._pause_told and silence >= self._pause:
            self._pause_told = True
            events.append(Pause(self._quiet_at, self._tail_end()))
        needed_s = self._endpoint_s[self._hint]
        needed = to_samples(needed_s) if math.isfinite(needed_s) else math.inf
        is_long = frame_end - self._start_at >= self._max_utterance
        if silence >= self._pause and (silence >= needed or is_long):
            end_at = self._tail_end()
            events.append(Endpoint(self._quiet_at, end_at, is_split=False))
            self.reset(end_at)
        return events

    def _remember(self, frame_at: int, frame_end: int, probability: float) -> None:
        # Nothing is split in the last frame of a stream, which may be shorter.
        if frame_end - frame_at == VAD_FRAME_SAMPLES:
            self._recent.append((frame_at, probability))

    def _split_if_long(self, frame_end: int) -> Sequence[EndpointEvent]:
        limit_at = self._start_at + self._max_utterance
        if frame_end >= limit_at:
            at = self._likely_at or self._quietest(0, frame_end) or frame_end
            self._start_at = self._floor_at = at
            self._likely_at = None
            self._recent.clear()
            return (Endpoint(at, at, is_split=True), Onset(at))
        search_at = limit_at - self._split_search
        if not search_at < frame_end <= limit_at - _SPLIT_LEAD:
            return ()
        likely_at = self._quietest(search_at, frame_end)
        if likely_at in (None, self._likely_at) or frame_end - likely_at < _SPLIT_SETTLE:
            return ()
        self._likely_at = likely_at
        return (SplitLikely(likely_at),)

    def _quietest(self, first_at: int, end_at: int) -> int | None:
        """Middle of the quietest recent frame that lies between; None when there is none."""
        frames = [frame for frame in self._recent if first_at <= frame[0] < end_at]
        if not frames:
            return None
        # The later of equally quiet frames: the longer the first part, the better its context.
        frame_at, _ = min(frames, key=lambda frame: (frame[1], -frame[0]))
        return frame_at + VAD_FRAME_SAMPLES // 2
