"""Views of the model's markup while it is still growing: plain text, times, split segments.

The markup is `[start][Sxx]words[end]`, possibly cut anywhere. Nothing here repairs it; that is the
parser's work on a whole output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from moss_stream.types import Segment

_TAG = re.compile(r"\[(?:S\d{1,3}|(?:\d{1,3}:){0,2}\d{1,6}(?:\.\d{1,6})?)\]")
_TIME_TAG = re.compile(r"\[((?:\d{1,3}:){0,2}\d{1,6}(?:\.\d{1,6})?)\](?:\[S\d{1,3}\])?")
"""With the speaker after it, which takes no time to say."""
_CUT_TAG = re.compile(r"\[(?:\d[\d.:]{0,15}|S\d{0,3})?$")
_CUT_CHARACTER = "\ufffd"  # what a tokenizer gives for bytes that are no character yet

_UNSPACED = "\u2e80"  # from here on lie the scripts of East Asia, which put no space between words


class TextCodec(Protocol):
    """Token ids to text and back: what this package needs of a tokenizer."""

    def encode(self, text: str, /) -> Sequence[int]:
        """Token ids of `text`."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """Text of `ids`; of a prefix it is a prefix, apart from a cut character at its end."""
        ...


def is_cut(markup: str, rest: str) -> bool:
    """Whether `markup`, which `rest` follows, ends inside a tag, a character or a word."""
    if markup.endswith(_CUT_CHARACTER) or _CUT_TAG.search(markup):
        return True
    around = markup[-1:] + rest[:1]
    return len(around) == 2 and all(c.isalnum() and c < _UNSPACED for c in around)


def plain_text(markup: str) -> str:
    """The words alone, single-spaced, without a tag or character that is cut at the end.

    More markup after `markup` only ever lengthens the result.
    """
    whole = _CUT_TAG.sub("", markup.rstrip(_CUT_CHARACTER))
    return " ".join(_TAG.sub(" ", whole).split())


class MarkupClock:
    """When each character of a growing output is spoken, from its own time tags.

    Between two tags time runs evenly over the characters; after the last one it runs to the end
    of the audio. Times never decrease and never pass the end of the audio.

    Args:
        markup: Output so far.
        start_s: Time before its first character, seconds.
        edge_s: End of the audio, seconds.
    """

    def __init__(self, markup: str, start_s: float, edge_s: float) -> None:
        positions, times = [0], [min(start_s, edge_s)]
        for tag in _TIME_TAG.finditer(markup):
            time_s = min(max(_tag_seconds(tag[1]), times[-1]), edge_s)
            if tag.start() > positions[-1]:
                positions.append(tag.start())
                times.append(time_s)
            positions.append(tag.end())
            times.append(time_s)
        if len(markup) > positions[-1]:
            positions.append(len(markup))
            times.append(edge_s)
        self._positions, self._times = positions, times

    def time_s(self, position: int) -> float:
        """Time at which the characters before `position` are spoken, seconds."""
        return float(np.interp(position, self._positions, self._times))


def _tag_seconds(time: str) -> float:
    """Seconds of `12.5`, `1:02.5` or `1:02:03`."""
    seconds = 0.0
    for part in time.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds


def split_segments(
    segments: Iterable[Segment], num_characters: int
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Split segments where their joined text is `num_characters` long.

    A segment that the split cuts becomes two, its time shared by the length of their texts.
    Segments without text are left out.
    """
    before: list[Segment] = []
    after: list[Segment] = []
    left = num_characters
    for segment in segments:
        length = len(segment.text)
        if not length:
            continue
        if left >= length:
            before.append(segment)
        elif left <= 0:
            after.append(segment)
        else:
            middle_s = segment.start_s + (segment.end_s - segment.start_s) * left / length
            before.append(replace(segment, end_s=middle_s, text=segment.text[:left].rstrip()))
            after.append(replace(segment, start_s=middle_s, text=segment.text[left:].lstrip()))
        left -= length + 1
    return tuple(before), tuple(after)
