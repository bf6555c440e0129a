"""How late a stream's texts are, for the metrics."""

from __future__ import annotations

import time
from collections import deque

from moss_stream.live.events import Event, Final, Hypothesis, SpeechStopped
from moss_stream.server.metrics import Metrics


class Delays:
    """Measures one stream.

    Args:
        metrics: Told the delays.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._arrivals = Arrivals()
        self._speech_end_at: dict[int, int] = {}

    def received(self, received_at: int, now_s: float) -> None:
        """All samples before `received_at` are here at `now_s`."""
        self._arrivals.note(received_at, now_s)

    def observe(self, event: Event) -> None:
        """Look at an event that is told now."""
        now_s = time.monotonic()
        match event:
            case SpeechStopped():
                self._speech_end_at[event.utterance_id] = event.speech_end_at
            case Hypothesis():
                self._metrics.observe_lag(event.lag_s)
                self._metrics.observe_partial_age(now_s - self._arrivals.time_s(event.end_at))
            case Final():
                end_at = self._speech_end_at.pop(event.utterance_id, event.end_at)
                self._metrics.observe_final_delay(now_s - self._arrivals.time_s(end_at))


class Arrivals:
    """When audio came, for the last while."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque(maxlen=4096)

    def note(self, received_at: int, now_s: float) -> None:
        """All samples before `received_at` are here at `now_s`."""
        self._marks.append((received_at, now_s))

    def time_s(self, at: int) -> float:
        """When the samples before `at` were here; of long ago the oldest that is known."""
        time_s = self._marks[-1][1]
        for received_at, now_s in reversed(self._marks):
            if received_at < at:
                break
            time_s = now_s
        return time_s
