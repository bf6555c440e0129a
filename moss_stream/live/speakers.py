"""Who speaks in a session: names that last, whatever the model calls them since its last origin.

The model numbers speakers anew in each context. The book maps its labels to names of the session
and keeps, for each speaker, one clean snippet of speech: laid before a new context with the label
as known text, it makes the model go on with the same labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moss_stream.errors import InvalidMessage, NotFound
from moss_stream.live.config import SAMPLE_RATE_HZ
from moss_stream.live.timeline import Span
from moss_stream.types import Segment

_MIN_SNIPPET_S = 1.0  # shorter ones hardly show a voice


def speaker_label(number: int) -> str:
    """The model's label of its `number`-th speaker, from 1."""
    return f"S{number:02d}"


@dataclass(frozen=True, slots=True, eq=False)
class Snippet:
    """A few seconds in which one known speaker alone says known words."""

    span: Span
    """Where in the session."""
    text: str
    """The words."""
    samples: npt.NDArray[np.float32]
    """[len(span)] float32: a copy, the session's own audio does not last."""


class SpeakerBook:
    """The speakers of one session.

    Args:
        max_snippet_s: Longest snippet, seconds.
        max_speakers: Most speakers that keep a snippet; those silent for longest lose theirs.
    """

    def __init__(self, max_snippet_s: float, max_speakers: int) -> None:
        self._max_snippet_s = max_snippet_s
        self._max_speakers = max_speakers
        self._next_number = 1
        self._given: set[str] = set()  # all names but those merged into others
        self._names: dict[str, str] = {}  # label since the origin -> name
        self.snippets: dict[str, Snippet] = {}
        """By name, the last heard speaker last."""

    def peek(self, label: str) -> str:
        """The name behind a label, without learning a new one: for text that may change."""
        if not label or label in self._names:
            return self._names.get(label, label)
        return self._new_name(label)[0]

    def name(self, label: str) -> str:
        """The name behind a label since the last origin; a new label is a new speaker."""
        if not label:
            return label
        if label not in self._names:
            self._names[label], self._next_number = self._new_name(label)
            self._given.add(self._names[label])
        return self._names[label]

    def learn(
        self, segments: Sequence[Segment], read: Callable[[int, int], npt.NDArray[np.float32]]
    ) -> list[str]:
        """Look for better snippets in final segments.

        Args:
            segments: Of one utterance, with names and session times.
            read: Copies the samples between two positions; asked only for parts of segments.

        Returns:
            Speakers that have their first snippet by now.
        """
        before = frozenset(self.snippets)
        for segment in segments:
            if not segment.speaker:
                continue
            known = self.snippets.pop(segment.speaker, None)
            if self._is_clean(segment, segments):
                span = Span(
                    round(segment.start_s * SAMPLE_RATE_HZ), round(segment.end_s * SAMPLE_RATE_HZ)
                )
                if known is None or len(span) > len(known.span):
                    known = Snippet(span, segment.text, read(span.start_at, span.end_at))
            if known is not None:
                self.snippets[segment.speaker] = known
        while len(self.snippets) > self._max_speakers:
            self.snippets.pop(next(iter(self.snippets)))
        return [name for name in self.snippets if name not in before]

    def restart(self) -> tuple[tuple[str, Snippet], ...]:
        """Begin a new origin behind the known snippets.

        Returns:
            Label and snippet of each speaker carried over, in the order they are to be laid.
        """
        carried = sorted(self.snippets, key=lambda name: (len(name), name))
        self._names = {speaker_label(i): name for i, name in enumerate(carried, start=1)}
        return tuple((label, self.snippets[name]) for label, name in self._names.items())

    def merge(self, duplicate: str, into: str) -> None:
        """Take two names for one speaker from now on.

        Raises:
            NotFound: Nobody is called so, or not any more.
            InvalidMessage: They are the same name.
        """
        for field, name in (("speaker", duplicate), ("into", into)):
            if name not in self._given:
                raise NotFound(f"no speaker is called {name[:80]!r} in this session", field=field)
        if duplicate == into:
            raise InvalidMessage(f"into is {into!r}, the speaker itself", field="into")
        self._given.discard(duplicate)
        self._names = {
            label: into if name == duplicate else name for label, name in self._names.items()
        }
        snippet = self.snippets.pop(duplicate, None)
        if snippet is not None:
            self.snippets.setdefault(into, snippet)

    def known(self) -> frozenset[str]:
        """Names the current labels stand for."""
        return frozenset(self._names.values())

    def _new_name(self, label: str) -> tuple[str, int]:
        """A name nobody has, the label itself if possible, and the number after it."""
        number = self._next_number
        if label[1:].isdecimal():
            number = max(number, int(label[1:]))
        return speaker_label(number), number + 1

    def _is_clean(self, segment: Segment, others: Sequence[Segment]) -> bool:
        duration_s = segment.end_s - segment.start_s
        return (
            bool(segment.text)
            and _MIN_SNIPPET_S <= duration_s <= self._max_snippet_s
            and not any(
                other.speaker != segment.speaker
                and other.start_s < segment.end_s
                and segment.start_s < other.end_s
                for other in others
            )
        )
