"""The events of a stream as frozen values, and how they are read from the wire.

Positions named `*_samples` count samples at the stream's rate from its start, across reconnects;
`start` and `end` are seconds from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from moss_stream_client.errors import ProtocolError

Raw = Mapping[str, Any]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """Speech begins; `item_id` names the utterance in everything that follows."""

    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The utterance ended; its final text follows."""

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The utterance's audio is complete; `previous_item_id` gives the order of utterances."""

    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class Delta:
    """Words to append to the utterance's text; they never change."""

    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Segment:
    """One final segment: who said what and when, seconds. It never changes."""

    item_id: str
    id: str
    speaker: str | None
    start: float
    end: float
    text: str


@dataclass(frozen=True, slots=True)
class Completed:
    """The utterance's final text; `usage` is what the server counted, as it came."""

    item_id: str
    transcript: str
    usage: Raw = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The utterance could not be transcribed; the stream goes on."""

    item_id: str
    code: str | None
    message: str


@dataclass(frozen=True, slots=True)
class HypothesisSegment:
    """One segment of a snapshot; it may still change unless `committed`."""

    speaker: str | None
    start: float
    end: float
    text: str
    committed: bool


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A full snapshot of the growing utterance; it replaces the one before."""

    item_id: str
    revision: int
    committed_text: str
    partial_text: str
    segments: tuple[HypothesisSegment, ...]
    lag_ms: float


@dataclass(frozen=True, slots=True)
class Ack:
    """How far the server has received and decoded; `degraded` when it refreshes less often."""

    received_samples: int
    decoded_samples: int
    lag_ms: float
    degraded: bool


@dataclass(frozen=True, slots=True)
class Warning:
    """Something the server repaired, refused or noticed."""

    code: str
    message: str
    item_id: str | None


@dataclass(frozen=True, slots=True)
class Relabel:
    """Segments of `speaker` belong to `replaced_by`."""

    speaker: str
    replaced_by: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Audio that lies in no transcript, and why."""

    start_samples: int
    end_samples: int
    reason: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """A new connection took over; `replayed` events that were missed follow."""

    received_samples: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event: all audio is transcribed."""

    received_samples: int


@dataclass(frozen=True, slots=True)
class ServerError:
    """The server refused one message of this client; the stream goes on."""

    type: str
    code: str | None
    message: str
    param: str | None


@dataclass(frozen=True, slots=True)
class Unknown:
    """An event this version does not know, as it came."""

    raw: Raw


Event = (
    SpeechStarted
    | SpeechStopped
    | Committed
    | Delta
    | Segment
    | Completed
    | Failed
    | Hypothesis
    | Ack
    | Warning
    | Relabel
    | Gap
    | Resumed
    | Finished
    | ServerError
    | Unknown
)
"""Everything a stream yields."""


def parse_event(raw: Raw) -> Event:
    """Read one server event.

    Raises:
        ProtocolError: A known event lacks a field or carries the wrong kind of value.
    """
    reader = _READERS.get(raw.get("type", ""))
    return Unknown(raw) if reader is None else reader(raw)


def need(raw: Raw, name: str, kind: type[_T]) -> _T:
    """Return a field that must be there.

    Raises:
        ProtocolError: It is missing or of another kind.
    """
    value = raw.get(name)
    if not isinstance(value, kind):
        where = raw.get("type", "a part of an event")
        raise ProtocolError(f"{where}: {name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def number(raw: Raw, name: str) -> float:
    """Return a numeric field that must be there.

    Raises:
        ProtocolError: It is missing or not a number.
    """
    value = raw.get(name)
    return float(value) if isinstance(value, int) else need(raw, name, float)


def _maybe(raw: Raw, name: str, kind: type[_T]) -> _T | None:
    return None if raw.get(name) is None else need(raw, name, kind)


def _hypothesis_segment(raw: Raw) -> HypothesisSegment:
    return HypothesisSegment(
        speaker=_maybe(raw, "speaker", str),
        start=number(raw, "start"),
        end=number(raw, "end"),
        text=need(raw, "text", str),
        committed=need(raw, "committed", bool),
    )


def _hypothesis(raw: Raw) -> Hypothesis:
    return Hypothesis(
        item_id=need(raw, "item_id", str),
        revision=need(raw, "revision", int),
        committed_text=need(raw, "committed_text", str),
        partial_text=need(raw, "partial_text", str),
        segments=tuple(_hypothesis_segment(part) for part in need(raw, "segments", list)),
        lag_ms=number(raw, "lag_ms"),
    )


def _segment(raw: Raw) -> Segment:
    return Segment(
        item_id=need(raw, "item_id", str),
        id=need(raw, "id", str),
        speaker=_maybe(raw, "speaker", str),
        start=number(raw, "start"),
        end=number(raw, "end"),
        text=need(raw, "text", str),
    )


def _failed(raw: Raw) -> Failed:
    error = need(raw, "error", dict)
    return Failed(
        item_id=need(raw, "item_id", str),
        code=_maybe(error, "code", str),
        message=_maybe(error, "message", str) or "",
    )


def _server_error(raw: Raw) -> ServerError:
    error = need(raw, "error", dict)
    return ServerError(
        type=_maybe(error, "type", str) or "error",
        code=_maybe(error, "code", str),
        message=need(error, "message", str),
        param=_maybe(error, "param", str),
    )


def _ack(raw: Raw) -> Ack:
    return Ack(
        received_samples=need(raw, "received_samples", int),
        decoded_samples=need(raw, "decoded_samples", int),
        lag_ms=number(raw, "lag_ms"),
        degraded=need(raw, "degraded", bool),
    )


_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_READERS: Mapping[str, Callable[[Raw], Event]] = {
    "input_audio_buffer.speech_started": lambda raw: SpeechStarted(
        need(raw, "item_id", str), need(raw, "audio_start_ms", int)
    ),
    "input_audio_buffer.speech_stopped": lambda raw: SpeechStopped(
        need(raw, "item_id", str), need(raw, "audio_end_ms", int)
    ),
    "input_audio_buffer.committed": lambda raw: Committed(
        need(raw, "item_id", str), _maybe(raw, "previous_item_id", str)
    ),
    f"{_TRANSCRIPTION}.delta": lambda raw: Delta(
        need(raw, "item_id", str), _maybe(raw, "delta", str) or ""
    ),
    f"{_TRANSCRIPTION}.segment": _segment,
    f"{_TRANSCRIPTION}.completed": lambda raw: Completed(
        need(raw, "item_id", str),
        need(raw, "transcript", str),
        _maybe(raw, "usage", dict) or {},
    ),
    f"{_TRANSCRIPTION}.failed": _failed,
    "moss.hypothesis": _hypothesis,
    "moss.ack": _ack,
    "moss.warning": lambda raw: Warning(
        need(raw, "code", str), need(raw, "message", str), _maybe(raw, "item_id", str)
    ),
    "moss.relabel": lambda raw: Relabel(need(raw, "speaker", str), need(raw, "replaced_by", str)),
    "moss.gap": lambda raw: Gap(
        need(raw, "start_samples", int),
        need(raw, "end_samples", int),
        need(raw, "reason", str),
    ),
    "moss.resumed": lambda raw: Resumed(
        need(raw, "received_samples", int), need(raw, "replayed", int)
    ),
    "moss.finished": lambda raw: Finished(need(raw, "received_samples", int)),
    "error": _server_error,
}
