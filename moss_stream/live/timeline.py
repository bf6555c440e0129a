"""Model time and session time: which speech a request holds and where it was said.

A request's audio is speech only: spans of the session laid end to end from a fixed origin and cut
into 30 s windows. Model seconds count from that origin, session seconds from the stream's start.
Positions are integer samples inside; a timeline is a value, growing it makes a new one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from moss_stream.errors import StateError
from moss_stream.live.config import SAMPLE_RATE_HZ, to_seconds

WINDOW_SAMPLES = 30 * SAMPLE_RATE_HZ
"""Samples of a closed window: what the encoder sees at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """Samples of the session."""

    start_at: int
    """First sample."""
    end_at: int
    """After the last sample."""

    def __post_init__(self) -> None:
        if not 0 <= self.start_at < self.end_at:
            raise StateError(f"a span cannot go from sample {self.start_at} to {self.end_at}")

    def __len__(self) -> int:
        return self.end_at - self.start_at


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """One window of the grid, in model samples."""

    start_at: int
    """First sample, a multiple of the window's length."""
    end_at: int
    """After the last sample that is there."""

    @property
    def is_closed(self) -> bool:
        """Whether the window is full, so that it never changes again."""
        return self.end_at - self.start_at == WINDOW_SAMPLES


@dataclass(frozen=True, slots=True)
class Timeline:
    """Spans of the session laid end to end."""

    spans: tuple[Span, ...] = ()
    """In the order of the model's audio; after an origin of anchors not in session order."""
    _starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Timeline:
        """Lay `spans` end to end from a new origin."""
        timeline = cls()
        for span in spans:
            timeline = timeline.followed_by(span)
        return timeline

    def followed_by(self, span: Span) -> Timeline:
        """This timeline with `span` after it."""
        return Timeline((*self.spans, span), (*self._starts, self.num_samples))

    @property
    def num_samples(self) -> int:
        """Model samples there are."""
        return self._starts[-1] + len(self.spans[-1]) if self.spans else 0

    @property
    def duration_s(self) -> float:
        """Model seconds there are."""
        return to_seconds(self.num_samples)

    def windows(self) -> tuple[WindowSpan, ...]:
        """The windows of the grid: closed ones, then the open one, if the grid is not filled."""
        end = self.num_samples
        return tuple(
            WindowSpan(start, min(start + WINDOW_SAMPLES, end))
            for start in range(0, end, WINDOW_SAMPLES)
        )

    def session_s(self, model_s: float) -> float:
        """Where a model time was said, seconds of the session.

        Times outside the audio give its first or last moment; a time where two spans meet gives
        the start of the later one.

        Raises:
            StateError: The timeline is empty.
        """
        if not self.spans:
            raise StateError("an empty timeline has no times")
        position = model_s * SAMPLE_RATE_HZ
        index = max(0, bisect_right(self._starts, position) - 1)
        span = self.spans[index]
        inside = min(max(position - self._starts[index], 0.0), len(span))
        return (span.start_at + inside) / SAMPLE_RATE_HZ

    def model_s(self, session_s: float) -> float | None:
        """Where a moment of the session lies in the model's audio, seconds; None if it does not.

        Where spans overlap, as an anchor's may with a later one, the last laid one counts.
        """
        position = session_s * SAMPLE_RATE_HZ
        for start, span in zip(reversed(self._starts), reversed(self.spans), strict=True):
            inside = position - span.start_at
            if -0.5 <= inside <= len(span) + 0.5:  # seconds are not exact, samples are meant
                return (start + min(max(inside, 0.0), len(span))) / SAMPLE_RATE_HZ
        return None
