"""Captions as text for a terminal: pure, events in, characters to write out.

`FinalLines` gives whole lines and never takes one back. `LiveScreen` draws the growing utterance
below them, committed words solid and partial words faint, and redraws only its own last rows.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator

from moss_stream_client.events import (
    Completed,
    Event,
    Failed,
    Gap,
    Hypothesis,
    Relabel,
    Resumed,
    Segment,
    ServerError,
    Warning,
)

_FAINT, _PLAIN = "\x1b[2m", "\x1b[0m"
_MAX_LIVE_ROWS = 12
_Word = tuple[str, bool]
"""Text without spaces, and whether it is committed."""


class FinalLines:
    """Lines that are final: the segments of each completed utterance, and notices."""

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._segments: dict[str, list[Segment]] = {}

    def feed(self, event: Event) -> list[str]:
        """Return the lines the event completes."""
        match event:
            case Segment(item_id=item_id):
                self._segments.setdefault(item_id, []).append(event)
                return []
            case Completed(item_id=item_id, transcript=transcript):
                segments = self._segments.pop(item_id, [])
                lines = [_segment_line(segment) for segment in segments]
                return lines or ([printable(transcript)] if transcript.strip() else [])
            case Failed(item_id=item_id, message=message):
                self._segments.pop(item_id, None)
                return [f"[not transcribed: {printable(message)}]"]
            case Relabel(speaker=speaker, replaced_by=replaced_by):
                return [f"[{printable(speaker)} is {printable(replaced_by)}]"]
            case Gap(start_samples=start, end_samples=end, reason=reason):
                span = f"{start / self._rate_hz:.2f}-{end / self._rate_hz:.2f}"
                return [f"[no transcript for {span}: {printable(reason)}]"]
            case Warning(message=message) | ServerError(message=message):
                return [f"[server: {printable(message)}]"]
            case Resumed():
                return ["[reconnected]"]
        return []


class LiveScreen:
    """Final lines with the growing utterance below them.

    Args:
        rate_hz: Sample rate of the stream.
        size: Asked for the terminal's size before each drawing.
    """

    def __init__(self, rate_hz: int, size: Callable[[], os.terminal_size]) -> None:
        self._finals = FinalLines(rate_hz)
        self._size = size
        self._live: Hypothesis | None = None
        self._num_rows = 0

    def feed(self, event: Event) -> str:
        """Return what to write for the event, empty when nothing changes."""
        lines = self._finals.feed(event)
        before = self._live
        if isinstance(event, Hypothesis):
            self._live = event
        elif isinstance(event, Completed | Failed) and before and before.item_id == event.item_id:
            self._live = None
        if not lines and self._live is before:
            return ""
        return self.erase() + "".join(f"{line}\n" for line in lines) + self._draw()

    def erase(self) -> str:
        """Return what removes the growing utterance from the screen."""
        rows, self._num_rows = self._num_rows, 0
        if rows == 0:
            return ""
        up = f"\x1b[{rows - 1}A" if rows > 1 else ""
        return f"\r{up}\x1b[J"

    def _draw(self) -> str:
        if self._live is None:
            return ""
        size = self._size()
        # The last column stays free: a full row would wrap and the next erase miss one.
        columns = max(size.columns - 1, 8)
        rows = [row for line in _live_lines(self._live) for row in _wrap(line, columns)]
        rows = rows[-max(1, min(size.lines - 1, _MAX_LIVE_ROWS)) :]
        self._num_rows = len(rows)
        return "\n".join(_styled(row) for row in rows)


def printable(text: str) -> str:
    """Replace control characters: a server must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _segment_line(segment: Segment) -> str:
    times = f"[{segment.start:.2f}-{segment.end:.2f}]"
    return printable(f"{segment.speaker or '?'} {times} {segment.text}")


def _live_lines(live: Hypothesis) -> Iterator[list[_Word]]:
    """Yield one list of words for each run of one speaker."""
    if not live.segments:
        yield _words(live.committed_text, True) + _words(live.partial_text, False)
        return
    line: list[_Word] = []
    speaker: str | None = None
    for segment in live.segments:
        if line and segment.speaker == speaker:
            line += _words(segment.text, segment.committed)
            continue
        if line:
            yield line
        speaker = segment.speaker
        line = _words(f"{speaker or '?'} {segment.text}", segment.committed)
    yield line


def _words(text: str, committed: bool) -> list[_Word]:
    return [(word, committed) for word in printable(text).split()]


def _wrap(words: list[_Word], columns: int) -> Iterator[list[_Word]]:
    row: list[_Word] = []
    used = 0
    for word, committed in words:
        for piece in _split(word, columns):
            width = _width(piece)
            if row and used + 1 + width > columns:
                yield row
                row, used = [], 0
            used += width + (1 if row else 0)
            row.append((piece, committed))
    if row:
        yield row


def _split(word: str, columns: int) -> Iterator[str]:
    """Cut a word wider than a row; scripts without spaces are one word."""
    piece, used = "", 0
    for char in word:
        width = _width(char)
        if used + width > columns:
            yield piece
            piece, used = "", 0
        piece += char
        used += width
    yield piece


def _width(text: str) -> int:
    """Count terminal columns: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _styled(row: list[_Word]) -> str:
    parts: list[str] = []
    is_faint = False
    for word, committed in row:
        space = " " if parts else ""
        if committed == is_faint:
            is_faint = not committed
            parts.append(space + (_FAINT if is_faint else _PLAIN) + word)
        else:
            parts.append(space + word)
    return "".join(parts) + (_PLAIN if is_faint else "")
