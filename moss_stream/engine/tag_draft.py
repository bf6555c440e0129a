"""Foreseeing tags, of which half of a transcript's tokens are made.

Most of a tag follows from what stands before it: after `[12` comes a dot, after `[12.5` the digit
that makes a multiple of the model's time step, after the end of a segment the start of one about
then. What is foreseen is proposed like a draft: a wrong guess costs a little computation and
changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from moss_stream.transcript.spelling import Spelling

PAUSE_S = 0.3
"""From the end of a segment to the start of the next, as expected."""
WORD_S = 0.25
"""Length of a word's token, as expected before any is heard..."""
WORD_S_COUNTS = 4
"""...and how many heard ones outweigh it."""
DECIMALS = 2
"""Digits after the dot."""
ROUNDED_S = 0.005
"""How far they may be from the time."""
SENTENCE_ENDS = tuple(".?!。？！")
"""After these a segment may well end."""
TAIL = 24
"""Characters of the output that are looked at: longer than a tag."""

_OPEN = re.compile(r"\[(?:(?P<whole>[0-9]*)(?:\.(?P<decimals>[0-9]*))?|(?P<speaker>S[0-9]*))\Z")
_CLOSED = re.compile(r"\[(?:(?P<time>[0-9]+\.[0-9]+)|(?P<speaker>S[0-9]+))\]\Z")


class Tag(Enum):
    """What a segment is marked by, in this order."""

    START = auto()
    SPEAKER = auto()
    END = auto()


class TagDraft:
    """What the output's tags will probably go on with.

    On 54 recordings of the small checkpoint: 0.57 decode steps an output token.

    Args:
        spelling: The model's.
        audio_s: Length of the audio, seconds.
    """

    def __init__(self, spelling: Spelling, audio_s: float) -> None:
        self._spelling = spelling
        self._audio_s = audio_s
        self._tail = ""
        """The last characters of the output."""
        self._next = Tag.START
        """The tag that comes next."""
        self._time_s = 0.0
        """The last time tag."""
        self._on_grid = True
        """Whether all times were multiples of the step."""
        self._speakers: list[str] = []
        """Tags of those heard, the latest last."""
        self._words = 0
        """Words of this segment."""
        self._heard_words = WORD_S_COUNTS
        self._heard_s = WORD_S_COUNTS * WORD_S

    def observe(self, tokens: Sequence[int]) -> None:
        """Take note of tokens that were emitted."""
        for token in tokens:
            text = self._spelling.text(token)
            # A token may close one tag and open the next, as `][`.
            closes = [self._read(letter) for letter in text]
            if text.strip() and not any(closes) and not _OPEN.search(self._tail):
                self._note_word()

    def propose(self, limit: int) -> tuple[int, ...]:
        """Return at most `limit` tokens that may come next."""
        following = self._foresee()
        if not following or limit <= 0:
            return ()
        since_tag = self._tail[max(self._tail.rfind("["), 0) :]
        written = since_tag if _OPEN.search(self._tail) or _CLOSED.search(self._tail) else ""
        return self._spelling.continued(written, following)[:limit]

    def _read(self, letter: str) -> bool:
        """Read on by a letter; True when it closes a tag."""
        self._tail = (self._tail + letter)[-TAIL:]
        closed = _CLOSED.search(self._tail) if letter == "]" else None
        if closed is None:
            return False
        if closed["speaker"]:
            self._note_speaker(closed[0])
        else:
            self._note_time(float(closed["time"]))
        return True

    def _note_word(self) -> None:
        self._words += 1
        if self._next is Tag.SPEAKER:  # There is none.
            self._next, self._words = Tag.END, 1

    def _note_speaker(self, tag: str) -> None:
        self._next, self._words = Tag.END, 0
        if tag in self._speakers:
            self._speakers.remove(tag)
        self._speakers.append(tag)

    def _note_time(self, time_s: float) -> None:
        if self._next is Tag.END:
            self._next = Tag.START
            self._heard_words += self._words
            self._heard_s += max(time_s - self._time_s, 0.0)
        else:
            self._next = Tag.SPEAKER
        self._time_s = time_s
        self._on_grid = self._on_grid and self._is_on_grid(time_s)

    def _foresee(self) -> str:
        opened = _OPEN.search(self._tail)
        if opened is None:
            if self._next is Tag.END:
                is_due = self._tail.endswith(SENTENCE_ENDS)
            else:
                is_due = not self._tail or bool(_CLOSED.search(self._tail))
            return self._beginning(self._next, self._time_s) if is_due else ""
        if opened["speaker"] or self._next is Tag.SPEAKER:
            tag = self._speaker_tag()
            return tag.removeprefix(opened[0]) if tag.startswith(opened[0]) else ""
        if opened["decimals"] is None:
            return self._whole_seconds(opened["whole"])
        return self._decimals(opened["whole"], opened["decimals"])

    def _beginning(self, tag: Tag, after_s: float) -> str:
        """As much of a tag as can be foreseen before any of it is known."""
        if tag is Tag.SPEAKER:
            return self._speaker_tag()
        return f"[{int(self._expected_s(tag, after_s))}."

    def _whole_seconds(self, written: str) -> str:
        expected = str(int(self._expected_s(self._next, self._time_s)))
        if expected.startswith(written):
            return f"{expected.removeprefix(written)}."
        return "." if len(written) >= len(expected) else ""

    def _decimals(self, whole: str, written: str) -> str:
        if len(written) == DECIMALS - 1 and self._on_grid:
            times = (f"{whole}.{written}{digit}" for digit in range(10))
            time = next((time for time in times if self._is_on_grid(float(time))), "")
        else:
            time = f"{whole}.{written}" if len(written) >= DECIMALS else ""
        if not time:
            return ""
        tag_after = Tag.START if self._next is Tag.END else Tag.SPEAKER
        rest = time.removeprefix(f"{whole}.{written}")
        return f"{rest}]{self._beginning(tag_after, float(time))}"

    def _expected_s(self, tag: Tag, after_s: float) -> float:
        if tag is not Tag.END:
            return after_s + PAUSE_S
        length_s = max(self._words, 1) * self._heard_s / self._heard_words
        return max(after_s, min(after_s + length_s, self._audio_s))

    def _speaker_tag(self) -> str:
        """The tag of whoever spoke before the last one."""
        return self._speakers[-2:][0] if self._speakers else "[S01]"

    def _is_on_grid(self, time_s: float) -> bool:
        step_s = self._spelling.time_step_s
        off_s = abs(round(time_s / step_s) * step_s - time_s)
        return off_s < ROUNDED_S
