"""The model's markup, `[start][S01]words[end]` again and again, to segments; whatever comes.

The parser never raises. Segments come in the order of the output, each with 0 <= start <= end and
words; overlaps and times that go back from one segment to the next are kept. What it repairs it
reports, by these codes:

- `speaker_missing`: no speaker tag; the previous speaker goes on, or the label is empty.
- `start_missing`: no start; the segment starts where the previous one ended, the first at 0.
- `end_missing`: no end; it ends at the next start, or with the audio.
- `end_before_start`: the end is moved to the start.
- `time_estimated`: the speaker changes within a segment; the moment is placed by the length of the
  words on both sides.
- `segment_empty`: times or a speaker without words; dropped.
- `tag_extra`: one tag too many; the last one of its kind counts.
- `tag_broken`: remains of a tag; dropped.

A time after words ends their segment, with one exception, since people's words may hold numbers in
brackets: `[5]`, `[3:16]` and times before the segment's start count as words when more words follow
directly; before another bracket and at the end of the output they are times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from moss_stream.transcript.tags import Broken, Lexer, Speaker, Text, Time, Token
from moss_stream.types import Segment, TranscriptWarning

_LEFTOVER = re.compile(r"(?:\s*(?:S[0-9]{1,3}|[0-9]{1,6}(?:[.:][0-9]{1,6}){0,3})?\])+")
"""What a tag without its opening bracket leaves at the head of the words."""


@dataclass(frozen=True, slots=True)
class ParsedMarkup:
    """A whole output, parsed."""

    segments: tuple[Segment, ...]
    """In the order of the output."""
    repairs: tuple[TranscriptWarning, ...]
    """What was repaired, in order."""


def parse_markup(text: str, duration_s: float | None = None) -> ParsedMarkup:
    """Parse a whole output.

    Args:
        text: What the model wrote.
        duration_s: End of the audio, for a last segment without an end, seconds.
    """
    parser = MarkupParser(duration_s)
    segments = [*parser.feed(text), *parser.finish()]
    return ParsedMarkup(tuple(segments), tuple(parser.repairs))


def write_markup(segments: Iterable[Segment]) -> str:
    """Write segments as the model does; times to the hundredth of a second."""
    return "".join(
        f"[{segment.start_s:.2f}]{f'[{segment.speaker}]' if segment.speaker else ''}"
        f"{segment.text}[{segment.end_s:.2f}]"
        for segment in segments
    )


@dataclass(slots=True)
class _Part:
    """Words of one speaker within an open segment."""

    speaker: str | None
    text: str = ""


class MarkupParser:
    """Parses one output as it grows; the result does not depend on how the text is cut.

    State: the open segment, as its start if that is known and its parts, one for each speaker.
    The last part has no words yet between a tag and the first of them. A time that may yet be
    words waits in `_doubt` for what follows it.

    Args:
        duration_s: End of the audio, seconds, for a last segment without an end; without it such a
            segment ends at its start.
    """

    def __init__(self, duration_s: float | None = None) -> None:
        self.repairs: list[TranscriptWarning] = []
        """What was repaired so far, in order."""
        self._duration_s = duration_s or 0.0
        self._lexer = Lexer()
        self._closed: list[Segment] = []
        self._start_s: float | None = None
        self._parts = [_Part(None)]
        self._doubt: tuple[Time, str] | None = None
        self._last_end_s = 0.0
        self._last_speaker = ""

    @property
    def open_segment(self) -> Segment | None:
        """The unfinished segment, ending at its start; None if it has no words yet.

        It never shows half a tag. A speaker change within it is not shown before its time is known.
        """
        text = _join(part.text for part in self._parts)
        if not text:
            return None
        start_s = self._start()
        return Segment(start_s, start_s, self._parts[0].speaker or self._last_speaker, text)

    def feed(self, text: str) -> list[Segment]:
        """Take the next piece of output.

        Returns:
            The segments it closes.
        """
        for token in self._lexer.feed(text):
            self._take(token)
        return self._give()

    def finish(self) -> list[Segment]:
        """End the output.

        Returns:
            The segments that this closes.
        """
        for token in self._lexer.finish():
            self._take(token)
        self._resolve_doubt(is_time=True)
        if self._has_words():
            if not self._part.text.strip():
                self._report("segment_empty", "a speaker has no words and is left out")
                self._parts.pop()
            self._report("end_missing", "a segment is the last and has no end")
            self._close(max(self._duration_s, self._start()))
        elif self._start_s is not None or self._part.speaker is not None:
            self._drop_empty()
        return self._give()

    def _give(self) -> list[Segment]:
        closed, self._closed = self._closed, []
        return closed

    @property
    def _part(self) -> _Part:
        return self._parts[-1]

    def _start(self) -> float:
        return self._last_end_s if self._start_s is None else self._start_s

    def _report(self, code: str, message: str, at_s: float | None = None) -> None:
        at_s = self._start() if at_s is None else at_s
        self.repairs.append(TranscriptWarning(code, message, at_s))

    def _take(self, token: Token) -> None:
        if isinstance(token, Text):
            self._take_text(token.text)
            return
        self._resolve_doubt(is_time=True)
        self._clean_part()
        if isinstance(token, Broken):
            self._report("tag_broken", "a tag is broken and left out")
        elif isinstance(token, Speaker):
            self._take_speaker(token.label)
        else:
            self._take_time(token)

    def _take_text(self, text: str) -> None:
        if self._doubt is None:
            self._part.text += text
            return
        # Space between a doubtful time and what follows decides nothing.
        time, space = self._doubt
        self._doubt = (time, space + text)
        if text.strip():
            self._resolve_doubt(is_time=False)

    def _resolve_doubt(self, *, is_time: bool) -> None:
        """Settle the waiting time: an end, or words after all."""
        if self._doubt is None:
            return
        time, after = self._doubt
        self._doubt = None
        if is_time:
            self._close(time.value_s)
        else:
            self._part.text += time.raw + after

    def _clean_part(self) -> None:
        """Take the remains of tags off the words of a part that ends."""
        leftover = _LEFTOVER.match(self._part.text)
        if leftover:
            self._part.text = self._part.text[leftover.end() :]
            self._report("tag_broken", "a tag is broken and left out")

    def _has_words(self) -> bool:
        self._clean_part()
        return any(part.text.strip() for part in self._parts)

    def _take_time(self, time: Time) -> None:
        if self._part.text.strip():
            if time.is_certain and time.value_s >= self._start():
                self._close(time.value_s)
            else:
                self._doubt = (time, "")
        elif len(self._parts) > 1:
            # Words, another speaker, then a time: the old words have no end, the new ones a start.
            speaker = self._parts.pop().speaker
            self._report("end_missing", "a segment has no end, the next start is taken")
            self._close(time.value_s)
            self._start_s, self._part.speaker = time.value_s, speaker
        elif self._start_s is None:
            self._start_s = time.value_s
        elif self._part.speaker is None:
            self._report("tag_extra", "a segment has two starts, the last is taken")
            self._start_s = time.value_s
        else:
            self._drop_empty()
            self._last_end_s = time.value_s

    def _take_speaker(self, label: str) -> None:
        part = self._part
        if not part.text.strip():
            if part.speaker is not None:
                self._report("tag_extra", "a segment has two speakers, the last is taken")
            part.speaker = label
        elif label == (part.speaker or self._last_speaker):
            self._report("tag_extra", "a speaker is named twice")
            part.speaker = label
            part.text += " "
        else:
            self._parts.append(_Part(label))

    def _drop_empty(self) -> None:
        self._report("segment_empty", "a segment has no words and is left out")
        self._start_s, self._parts = None, [_Part(None)]

    def _close(self, end_s: float) -> None:
        """End the open segment, which has words, at `end_s`; split it where the speaker changes."""
        start_s = self._start()
        if self._start_s is None:
            self._report("start_missing", "a segment has no start, the previous end is taken")
        if end_s < start_s:
            self._report("end_before_start", "a segment ends before it starts, it gets no length")
            end_s = start_s
        parts = [part for part in self._parts if part.text.strip()]
        lengths = [len(part.text.strip()) for part in parts]
        letter_s = (end_s - start_s) / sum(lengths)
        ends_s = [start_s + letter_s * said for said in accumulate(lengths)]
        ends_s[-1] = end_s
        for part, part_end_s in zip(parts, ends_s, strict=True):
            self._emit(part, start_s, part_end_s)
            start_s = part_end_s
        for at_s in ends_s[:-1]:
            self._report("time_estimated", "the time of a speaker change is estimated", at_s)
        self._last_end_s = end_s
        self._start_s, self._parts = None, [_Part(None)]

    def _emit(self, part: _Part, start_s: float, end_s: float) -> None:
        if part.speaker is None:
            heir = f"taken for {self._last_speaker}" if self._last_speaker else "left without one"
            self._report("speaker_missing", f"a segment names no speaker, {heir}", start_s)
        speaker = self._last_speaker if part.speaker is None else part.speaker
        self._last_speaker = speaker
        self._closed.append(Segment(start_s, end_s, speaker, part.text.strip()))


def _join(texts: Iterable[str]) -> str:
    return " ".join(text.strip() for text in texts if text.strip())
