"""A hub that neither finds speech nor decodes, for what is around live streams."""

from __future__ import annotations

from typing import Any

from support.live import CODEC

from moss_stream.server.metrics import Metrics


class IdleHub:
    """Scores and decodes nothing."""

    codec = CODEC

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.streams: list[Any] = []

    def add(self, stream: Any) -> None:
        self.streams.append(stream)

    def remove(self, stream: Any) -> None:
        self.streams.remove(stream)

    def notice(self, stream: Any) -> None:
        pass

    def examine(self) -> None:
        """Find silence in everything received."""
        for stream in list(self.streams):
            batch = stream.pending_frames()
            stream.scored(batch.first_frame, [0.0] * len(batch.samples))
