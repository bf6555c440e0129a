"""Words with times, for protocols that want them: the model itself times whole segments.

A segment's time is shared out among its words by their length, so word times are estimates: they
keep the order and the ends of the segment, and know nothing of pauses inside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from moss_stream.types import Segment

_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Scripts that put no space between words: each of their characters counts as one."""
_WORD = re.compile(rf"[{_EAST_ASIAN}][^\w\s]*|[^\s{_EAST_ASIAN}]+")
_AROUND = re.compile(r"^[^\w]+|[^\w]+$")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a segment."""

    text: str
    """As written, with the punctuation around it."""
    start_s: float
    """Estimated start, seconds."""
    end_s: float
    """Estimated end, seconds."""
    speaker: str
    """Label of the segment's speaker."""

    @property
    def bare(self) -> str:
        """In lower case, without the punctuation around it, unless there is nothing else."""
        return (_AROUND.sub("", self.text) or self.text).lower()


def estimated_words(segments: Iterable[Segment]) -> tuple[Word, ...]:
    """The words of segments, in their order."""
    return tuple(word for segment in segments for word in _words(segment))


def _words(segment: Segment) -> Iterable[Word]:
    texts = _WORD.findall(segment.text)
    num_characters = sum(map(len, texts))
    duration_s = max(0.0, segment.end_s - segment.start_s)
    before = 0
    for text in texts:
        start_s = segment.start_s + duration_s * before / num_characters
        before += len(text)
        end_s = segment.start_s + duration_s * before / num_characters
        yield Word(text, round(start_s, 3), round(end_s, 3), segment.speaker)
