"""When a stream's audio was heard, on the clock of the room it is spoken in.

A stream counts samples. It falls behind the room's clock when its microphone is off for a while,
and its audio comes late when the network was away. In the first case the samples after the hole
keep coming late, in the second they come in a burst until they are not late any more. So after a
hole the least delay seen is the right one, and it never shrinks below that of the first audio.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

HOLE_S: Final = 1.0
"""Time without any audio after which the microphone may have been off, seconds."""
_MAX_STRETCHES = 64


@dataclass(slots=True)
class _Stretch:
    """Audio that came without a hole."""

    start_s: float
    """Its first sample, seconds of the stream."""
    delay_s: float
    """Room time minus stream time."""


class StreamClock:
    """The time of one stream in its room."""

    def __init__(self) -> None:
        self._stretches: deque[_Stretch] = deque(maxlen=_MAX_STRETCHES)
        self._least_s = 0.0
        self._received_s = 0.0
        self._now_s = 0.0

    def note(self, received_s: float, now_s: float) -> None:
        """Audio has come.

        Args:
            received_s: All audio before this is here, seconds of the stream.
            now_s: Seconds of the room.
        """
        if not self._stretches:
            self._least_s = max(0.0, now_s - received_s)
        delay_s = max(self._least_s, now_s - received_s)
        if not self._stretches or now_s - self._now_s > HOLE_S:
            self._stretches.append(_Stretch(self._received_s, delay_s))
        for stretch in self._stretches:
            stretch.delay_s = min(stretch.delay_s, delay_s)
        self._received_s, self._now_s = received_s, now_s

    def room_s(self, stream_s: float) -> float:
        """When something was heard, seconds of the room.

        Args:
            stream_s: The same in seconds of the stream.
        """
        for stretch in reversed(self._stretches):
            if stream_s >= stretch.start_s:
                return stream_s + stretch.delay_s
        return stream_s + (self._stretches[0].delay_s if self._stretches else self._least_s)
