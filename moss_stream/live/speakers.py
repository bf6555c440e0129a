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


def age(name: str) -> tuple[int, str]:
    """Sorts names by when they were given."""
    return len(name), name


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
        max_speakers: Most speakers that are carried over to a new origin, the last heard ones.
            Twice as many keep a snippet, so that they are known when they come back.
    """

    def __init__(self, max_snippet_s: float, max_speakers: int) -> None:
        self._max_snippet_s = max_snippet_s
        self._max_speakers = max_speakers
        self._next_number = 1
        self._given: set[str] = set()  # all names but those merged into others
        self._learned: set[str] = set()  # names that have had a snippet
        self._names: dict[str, str] = {}  # label since the origin -> name
        self.snippets: dict[str, Snippet] = {}
        """By name, the last heard speaker last."""

    def peeker(self) -> Callable[[str], str]:
        """Names behind the labels of one text that may change, without learning new ones."""
        names, next_number = dict(self._names), self._next_number

        def peek(label: str) -> str:
            nonlocal next_number
            if label and label not in names:
                names[label], next_number = _new_name(label, next_number)
            return names.get(label, label)

        return peek

    def name(self, label: str) -> str:
        """The name behind a label since the last origin; a new label is a new speaker."""
        if not label:
            return label
        if label not in self._names:
            self._names[label], self._next_number = _new_name(label, self._next_number)
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
            Speakers who have their first snippet by now.
        """
        # Before, so that who comes back can still be compared with whom this would make room for.
        while len(self.snippets) > 2 * self._max_speakers:
            self.snippets.pop(next(iter(self.snippets)))
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
        new = [name for name in self.snippets if name not in self._learned]
        self._learned.update(new)
        return new

    def restart(self) -> tuple[tuple[str, Snippet], ...]:
        """Begin a new origin behind the known snippets.

        Returns:
            Label and snippet of each speaker carried over, in the order they are to be laid.
        """
        heard = list(self.snippets)[max(0, len(self.snippets) - self._max_speakers) :]
        carried = sorted(heard, key=age)
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
        heard = list(self.snippets)
        snippet = self.snippets.pop(duplicate, None)
        if snippet is None:
            return
        if into not in self.snippets or heard.index(into) < heard.index(duplicate):
            self.snippets[into] = self.snippets.pop(into, snippet)

    def known(self) -> frozenset[str]:
        """Names the current labels stand for."""
        return frozenset(self._names.values())

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


def _new_name(label: str, next_number: int) -> tuple[str, int]:
    """A name nobody has, the label itself if possible, and the number after it."""
    number = next_number
    if label[1:].isdecimal():
        number = max(number, int(label[1:]))
    return speaker_label(number), number + 1
