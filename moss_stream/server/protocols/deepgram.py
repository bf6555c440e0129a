"""Deepgram's live protocol (`/v1/listen`): a pure translator, for all channels of one socket.

What is ours lies under a key `moss`. Messages of unknown types would be taken for results by
Deepgram's own clients, so warnings and renamed speakers travel with the next result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from moss_stream.errors import InvalidMessage, MossStreamError
from moss_stream.live.events import Event
from moss_stream.server.protocols.deepgram_query import ListenOptions, check_keywords
from moss_stream.server.protocols.deepgram_results import (
    Message,
    Notes,
    RequestInfo,
    ResultTeller,
)

_MAX_SHOWN = 200
"""Most characters of a message that are shown to its sender again."""


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """The client is there, though it sends no audio."""


@dataclass(frozen=True, slots=True)
class Finalize:
    """The client wants the text of all audio so far."""

    channel: int | None
    """Of this channel, None for all."""


@dataclass(frozen=True, slots=True)
class CloseStream:
    """The client has no more audio."""


@dataclass(frozen=True, slots=True)
class Configure:
    """The client changes its options."""

    keywords: tuple[str, ...] | None
    """Words to expect from now on; None to leave them."""


Command = KeepAlive | Finalize | CloseStream | Configure


class Deepgram:
    """The protocol's state for one socket.

    Args:
        info: What is fixed.
        options: What the client wants.
    """

    def __init__(self, info: RequestInfo, options: ListenOptions) -> None:
        self._info = info
        self._options = options
        self._notes = Notes()
        self._channels = [
            ResultTeller(index, options, info, self._notes) for index in range(options.num_streams)
        ]
        for name in options.ignored:
            self.warn("option_ignored", f"{name} has no effect on this server")

    # From the client.

    def read(self, text: str) -> Command:
        """Take a text message.

        Raises:
            InvalidMessage: It is none of the protocol's.
        """
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidMessage(f"not JSON: {error.msg}") from error
        match message:
            case {"type": "KeepAlive"}:
                return KeepAlive()
            case {"type": "Finalize"}:
                return Finalize(self._channel(message.get("channel")))
            case {"type": "CloseStream"}:
                return CloseStream()
            case {"type": "Configure"}:
                return Configure(_keyterms(message.get("keyterms")))
        raise InvalidMessage(
            "expected an object of type KeepAlive, Finalize, CloseStream or Configure", field="type"
        )

    def _channel(self, value: object) -> int | None:
        count = len(self._channels)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < count:
            raise InvalidMessage(
                f"channel is {str(value)[:40]!r}, expected a whole number from 0 to {count - 1}",
                field="channel",
            )
        return value

    # To the client.

    def tell(self, channel: int, event: Event) -> Iterator[Message]:
        """Translate an event of a channel's live session."""
        return self._channels[channel].tell(event)

    def advance(self, channel: int, examined_at: int) -> Iterator[Message]:
        """What silence on a channel brings about."""
        return self._channels[channel].advance(examined_at)

    def is_overdue(self, channel: int) -> bool:
        """Whether a channel's growing utterance has gone without words for so long as to end."""
        return self._channels[channel].is_overdue

    def committing(self, channel: int, *, is_finalize: bool) -> None:
        """A commit is on its way on a channel; one that is a `Finalize` gets an answer."""
        self._channels[channel].committing(is_finalize=is_finalize)

    def refuse(self, text: str, error: MossStreamError) -> Message:
        """The answer to a text message that cannot be obeyed; the stream goes on."""
        return {
            "type": "Error",
            "variant": "SchemaError",
            "description": error.message,
            "message": text[:_MAX_SHOWN],
        }

    def warn(self, code: str, message: str) -> None:
        """Say with the next result what the client should know."""
        self._notes.warn(code, message)

    def metadata(self, sha256: str, duration_s: float) -> Message:
        """The last message of a stream.

        Args:
            sha256: Digest of the audio as it came, hexadecimal.
            duration_s: Of the audio, seconds.
        """
        info = self._info
        return {
            "type": "Metadata",
            "transaction_key": "deprecated",
            "request_id": info.request_id,
            "sha256": sha256,
            "created": info.created,
            "duration": round(duration_s, 3),
            "channels": self._options.channels,
            "models": [info.model_uuid],
            "model_info": {info.model_uuid: info.model_info},
            "moss": self._notes.take(),
        }


def _keyterms(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise InvalidMessage("keyterms is no list of strings", field="keyterms")
    return check_keywords(value, "keyterms")
