"""Twilio Media Streams: the audio of a phone call as JSON messages. A pure translator.

waiting    `connected` may come, `start` must
streaming  `media` comes; `mark`, `dtmf` and events of later versions are passed over
over       after `stop`

A call has one or two tracks, each of 8 kHz mu-law. They run on one clock, that of the messages'
timestamps: where the wire leaves a track out, because nobody speaks on it or packets were lost, it
is given silence, so that times of both tracks compare and pauses end utterances.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from moss_stream.errors import InvalidMessage, OutOfOrder, UnsupportedAudio

TRACKS: Final = ("inbound", "outbound")
"""The caller's side and the other one."""
RATE_HZ: Final = 8_000
SILENCE: Final = b"\xff"
"""A mu-law sample of silence."""
SLACK_MS: Final = 40
"""Two packets: a track this far behind its timestamps is late, not silent."""
MAX_LAG_MS: Final = 500
"""How far a track may fall behind the other before it counts as silent."""
MAX_GAP_MS: Final = 600_000
"""Longest silence that a timestamp may stand for."""
MAX_PARAMETERS: Final = 32
MAX_PARAMETER_CHARACTERS: Final = 2_048

_SAMPLES_PER_MS = RATE_HZ // 1000


@dataclass(frozen=True, slots=True)
class Start:
    """The call begins."""

    stream_sid: str
    call_sid: str
    tracks: tuple[str, ...]
    """One or both of `TRACKS`."""
    parameters: Mapping[str, str]
    """What the call's TwiML says in `<Parameter>`."""


@dataclass(frozen=True, slots=True)
class Audio:
    """The next samples of a track."""

    track: str
    data: bytes
    """mu-law, 8 kHz."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The call is over, or the stream of it."""


class MediaStream:
    """One call's messages."""

    def __init__(self) -> None:
        self._stream_sid: str | None = None
        self._received: dict[str, int] = {}
        """Samples of each track so far, silence included."""
        self._is_over = False

    def read(self, text: str) -> Iterator[Start | Audio | Stop]:
        """Take a message.

        Yields:
            What it means; nothing for a message without a meaning here.

        Raises:
            InvalidMessage: It is no JSON object with an `event`, or a field is wrong.
            UnsupportedAudio: The call's audio is not mu-law at 8 kHz.
            OutOfOrder: Audio before `start` or after `stop`, or a second `start`.
        """
        message = _parse(text)
        match message.get("event"):
            case "start":
                yield self._start(message)
            case "media":
                yield from self._media(message)
            case "stop":
                self._check_streaming("stop")
                self._is_over = True
                yield Stop()
            case str():
                return
            case event:
                raise _wrong("event", event, "the name of an event")

    def _start(self, message: Mapping[str, Any]) -> Start:
        if self._stream_sid is not None:
            raise OutOfOrder("start came twice", field="event")
        given = _object(message, "start")
        _check_format(_object(given, "mediaFormat", "start."))
        tracks = given.get("tracks")
        is_known = isinstance(tracks, list) and all(track in TRACKS for track in tracks)
        if not is_known or not tracks or len(set(tracks)) != len(tracks):
            raise _wrong("start.tracks", tracks, f"one or both of {', '.join(TRACKS)}")
        start = Start(
            stream_sid=_name(given, "streamSid"),
            call_sid=_name(given, "callSid"),
            tracks=tuple(tracks),
            parameters=_parameters(given.get("customParameters", {})),
        )
        self._stream_sid = start.stream_sid
        self._received = dict.fromkeys(start.tracks, 0)
        return start

    def _media(self, message: Mapping[str, Any]) -> Iterator[Audio]:
        self._check_streaming("media")
        if message.get("streamSid", self._stream_sid) != self._stream_sid:
            raise _wrong("streamSid", message["streamSid"], "that of the start message")
        media = _object(message, "media")
        track = media.get("track")
        if not isinstance(track, str) or track not in self._received:
            raise _wrong("media.track", track, f"one of {', '.join(self._received)}")
        data = _payload(media.get("payload"))
        at = _milliseconds(media.get("timestamp")) * _SAMPLES_PER_MS
        gap = at - self._received[track]
        if gap > MAX_GAP_MS * _SAMPLES_PER_MS:
            raise _wrong(
                "media.timestamp",
                media["timestamp"],
                f"at most {MAX_GAP_MS} ms after the audio before it",
            )
        if gap > SLACK_MS * _SAMPLES_PER_MS:
            yield self._audio(track, SILENCE * gap)
        yield self._audio(track, data)
        for other, received in self._received.items():
            lag = self._received[track] - received - MAX_LAG_MS * _SAMPLES_PER_MS
            if lag > 0:
                yield self._audio(other, SILENCE * lag)

    def _audio(self, track: str, data: bytes) -> Audio:
        self._received[track] += len(data)
        return Audio(track, data)

    def _check_streaming(self, event: str) -> None:
        if self._stream_sid is None:
            raise OutOfOrder(f"{event} came before start", field="event")
        if self._is_over:
            raise OutOfOrder(f"{event} came after stop", field="event")


def _parse(text: str) -> Mapping[str, Any]:
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidMessage(f"not JSON: {error.msg}") from error
    if not isinstance(message, dict):
        raise InvalidMessage(f"a {type(message).__name__}, expected a JSON object")
    return message


def _object(parent: Mapping[str, Any], key: str, path: str = "") -> Mapping[str, Any]:
    value = parent.get(key)
    if not isinstance(value, dict):
        raise _wrong(f"{path}{key}", value, "an object")
    return value


def _name(start: Mapping[str, Any], key: str) -> str:
    value = start.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        raise _wrong(f"start.{key}", value, "a string of 1 to 64 characters")
    return value


def _check_format(given: Mapping[str, Any]) -> None:
    wanted = {"encoding": "audio/x-mulaw", "sampleRate": RATE_HZ, "channels": 1}
    for name, value in wanted.items():
        if str(given.get(name)) != str(value):
            raise UnsupportedAudio(
                f"start.mediaFormat.{name} is {_shown(given.get(name))}, expected {value}",
                field=f"start.mediaFormat.{name}",
            )


def _parameters(given: Any) -> Mapping[str, str]:
    is_wellformed = isinstance(given, dict) and len(given) <= MAX_PARAMETERS
    if not is_wellformed or not all(
        isinstance(value, str) and len(value) <= MAX_PARAMETER_CHARACTERS
        for value in given.values()
    ):
        # Not quoted: one of them may be a key.
        raise InvalidMessage(
            f"start.customParameters is no object of up to {MAX_PARAMETERS} strings of up to "
            f"{MAX_PARAMETER_CHARACTERS} characters",
            field="start.customParameters",
        )
    return dict(given)


def _milliseconds(value: object) -> int:
    """Twilio writes numbers as strings."""
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdecimal() and len(text) <= 12):
        raise _wrong("media.timestamp", value, "whole milliseconds")
    return int(text)


def _payload(value: object) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMessage(
            f"media.payload is not base64: {error}", field="media.payload"
        ) from error
    raise InvalidMessage("media.payload is no string, expected base64", field="media.payload")


def _wrong(path: str, value: object, expected: str) -> InvalidMessage:
    return InvalidMessage(f"{path} is {_shown(value)}, expected {expected}", field=path)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
