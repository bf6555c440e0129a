"""What a request holds before the utterance itself: earlier speech and its text.

With a context, final utterances stay in front of the next one, audio and tokens, from a fixed
origin: closed windows and known text then cost nothing again and speaker labels hold. When the
context is long enough, or not fit to go on from, it starts anew in one hop, behind a snippet of
each known speaker. Without a context every utterance starts from nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moss_stream.live.config import LiveConfig, to_samples, to_seconds
from moss_stream.live.speakers import Snippet, SpeakerBook
from moss_stream.live.text import TextCodec
from moss_stream.live.timeline import Span, Timeline
from moss_stream.transcript.markup import write_markup
from moss_stream.types import Segment

Audio = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class AudioWindow:
    """One encoder input of a request."""

    samples: Audio
    """[n] float32, up to 30 s, not padded; not to be modified."""
    is_closed: bool
    """Whether it is full, so that it never changes again."""


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """What precedes an utterance in its requests."""

    timeline: Timeline = field(default_factory=Timeline)
    """Where its audio comes from."""
    samples: Audio = field(default_factory=lambda: np.zeros(0, np.float32))
    """[timeline.num_samples] float32."""
    token_ids: tuple[int, ...] = ()
    """Its text."""

    def followed_by(self, span: Span, samples: Audio, token_ids: tuple[int, ...]) -> Base:
        """This base with a final utterance after it."""
        return Base(
            self.timeline.followed_by(span),
            np.concatenate((self.samples, samples)),
            self.token_ids + token_ids,
        )

    def windows(self, samples: Audio) -> tuple[AudioWindow, ...]:
        """The windows of a request: this base, then `samples` of the utterance.

        Returns:
            Windows on the grid. Those that lie in the base are views of it.
        """
        known = len(self.samples)
        timeline = self.timeline.followed_by(Span(0, len(samples)))
        windows = []
        for window in timeline.windows():
            audio = self.samples[window.start_at : window.end_at]
            if window.end_at > known:
                rest = samples[max(0, window.start_at - known) : window.end_at - known]
                audio = np.concatenate((audio, rest)) if len(audio) else rest
            windows.append(AudioWindow(audio, window.is_closed))
        return tuple(windows)


class Context:
    """The growing context of one session.

    Args:
        config: Its limits.
        codec: Writes the anchors' text as tokens.
    """

    def __init__(self, config: LiveConfig, codec: TextCodec) -> None:
        self._limit = to_samples(config.context_s)
        self._codec = codec
        self._base = Base()
        self._must_restart = False
        self.speakers = SpeakerBook(config.anchor_s, config.max_anchors)

    @property
    def is_kept(self) -> bool:
        """Whether utterances stay for later ones, so that they must be decoded in order."""
        return self._limit > 0

    def begin(self) -> tuple[Base, frozenset[str]]:
        """Start an utterance.

        Returns:
            What precedes it, and the names of speakers that are not recognised any more.
        """
        if not self._must_restart and len(self._base.samples) < max(self._limit, 1):
            return self._base, frozenset()
        before = self.speakers.known()
        self._base = anchored(self.speakers.restart(), self._codec)
        self._must_restart = False
        return self._base, before - self.speakers.known()

    def add(
        self,
        base: Base,
        span: Span,
        token_ids: tuple[int, ...],
        segments: tuple[Segment, ...],
        read: Callable[[int, int], Audio],
    ) -> list[str]:
        """Keep a final utterance for later ones.

        Args:
            base: What preceded it in its requests.
            span: Its samples.
            token_ids: Its own output.
            segments: The same with names and session times.
            read: Copies the samples between two positions of the span.

        Returns:
            Speakers whose voice is known now and was not before.
        """
        if not self.is_kept:
            return []
        samples = read(span.start_at, span.end_at)
        self._base = base.followed_by(span, samples, token_ids)
        return self.speakers.learn(segments, read)

    def spoil(self) -> None:
        """Do not go on from the last utterance: its text is missing or broken."""
        self._must_restart = self.is_kept

    def name(self, label: str) -> str:
        """Name of a label in final text; without a context labels are names."""
        return self.speakers.name(label) if self.is_kept else label

    def peeker(self) -> Callable[[str], str]:
        """The same for the labels of one text that may change."""
        return self.speakers.peeker() if self.is_kept else lambda label: label


def anchored(snippets: Iterable[tuple[str, Snippet]], codec: TextCodec) -> Base:
    """Put snippets of speech one after the other, with their text under the given labels."""
    base, segments = Base(), []
    for label, snippet in snippets:
        start_s = base.timeline.duration_s
        end_s = start_s + to_seconds(len(snippet.span))
        segments.append(Segment(start_s, end_s, label, snippet.text))
        base = base.followed_by(snippet.span, snippet.samples, ())
    return Base(base.timeline, base.samples, tuple(codec.encode(write_markup(segments))))
