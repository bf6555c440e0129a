"""What the webhook of a call is told: numbered JSON objects, one for each thing that happened.

Every track of the call is a session of its own that speaks OpenAI's Realtime protocol; here its
messages become events of the call. A track is one known person, whatever label the model gives.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from moss_stream.server.protocols.twilio import RATE_HZ, TRACKS, Start

Json = dict[str, Any]

HIDDEN: Final = frozenset({"token", "webhook"})
"""Parameters that are not told again."""

_TRANSCRIPTION = "conversation.item.input_audio_transcription."
_WITHOUT_MEANING: Final = frozenset({"text_revised"})
"""Warnings about deltas, which a webhook does not get."""


class CallReport:
    """The events of one call.

    Args:
        start: How the call began. A parameter named like a track names its speaker.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._sequence = 0
        self._segments: dict[str, list[Json]] = defaultdict(list)
        """Segments of the turns that are not complete, by item."""

    def started(self) -> Json:
        """The first event."""
        parameters = {
            name: value
            for name, value in self._start.parameters.items()
            if name not in HIDDEN and name not in TRACKS
        }
        return self._event(
            "started",
            parameters=parameters,
            speakers={track: self.speaker(track) for track in self._start.tracks},
        )

    def stopped(self, reason: str) -> Json:
        """The last event; `reason` is empty when the call ended by itself."""
        return self._event("stopped", reason=reason)

    def told(self, track: str, message: Mapping[str, Any]) -> Json | None:
        """Translate a message of a track's session; None when it is not reported."""
        match message["type"].removeprefix(_TRANSCRIPTION):
            case "segment":
                segment = {name: message[name] for name in ("start", "end", "text")}
                self._segments[message["item_id"]].append(segment)
            case "completed":
                return self._final(track, self._segments.pop(message["item_id"], []), message)
            case "moss.gap":
                return self._event(
                    "gap",
                    track=track,
                    start=message["start_samples"] / RATE_HZ,
                    end=message["end_samples"] / RATE_HZ,
                    reason=message["reason"],
                )
            case "moss.warning" if message["code"] not in _WITHOUT_MEANING:
                return self._event(
                    "warning", track=track, code=message["code"], message=message["message"]
                )
        return None

    def _final(self, track: str, segments: list[Json], message: Mapping[str, Any]) -> Json | None:
        if not segments:
            return None
        return self._event(
            "final",
            track=track,
            speaker=self.speaker(track),
            start=min(segment["start"] for segment in segments),
            end=max(segment["end"] for segment in segments),
            text=message["transcript"],
            segments=segments,
        )

    def speaker(self, track: str) -> str:
        """Who speaks on a track."""
        return self._start.parameters.get(track, track)

    def _event(self, event: str, **fields: Any) -> Json:
        self._sequence += 1
        return {
            "event": event,
            "sequence": self._sequence,
            "call_sid": self._start.call_sid,
            "stream_sid": self._start.stream_sid,
            **fields,
        }
