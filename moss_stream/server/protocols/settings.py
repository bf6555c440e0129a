"""What a client of the OpenAI Realtime protocol may set for its session, checked and merged.

An update changes what it names and nothing else; `null` clears. A wrong value changes nothing.
Fields this server does not know are let pass, those that it knows and has no use for are named, so
that nobody believes they work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moss_stream.audio.pcm import Encoding
from moss_stream.errors import InvalidMessage, OutOfOrder, UnsupportedAudio
from moss_stream.live.config import LiveConfig
from moss_stream.server.config import PRESETS

Json = dict[str, Any]

PCM_RATES_HZ = (8_000, 16_000, 24_000, 48_000)
TELEPHONE_RATE_HZ = 8_000
_ENCODINGS = {
    "audio/pcm": Encoding.S16LE,
    "audio/pcmu": Encoding.MULAW,
    "audio/pcma": Encoding.ALAW,
}
MAX_KEYWORDS = 100
MAX_KEYWORD_CHARACTERS = 100
_EAGERNESS = {  # shortest, usual and longest silence that ends a turn, seconds
    "high": (0.35, 0.6, 2.0),
    "medium": (0.5, 0.9, 4.0),
    "auto": (0.5, 0.9, 4.0),
    "low": (0.8, 1.5, 8.0),
}
_MIN_PRE_ROLL_S, _MAX_PRE_ROLL_S = 0.3, 2.0
_MIN_THRESHOLD, _MAX_THRESHOLD = 0.05, 0.99


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """How a client writes its samples."""

    type: str = "audio/pcm"
    rate_hz: int = 24_000

    @property
    def encoding(self) -> Encoding:
        """The same for the decoder."""
        return _ENCODINGS[self.type]

    def wire(self) -> Json:
        """As the protocol writes it."""
        return {"type": self.type, "rate": self.rate_hz}


@dataclass(frozen=True, slots=True)
class ServerVad:
    """Turns end after a silence. None leaves a knob to the preset."""

    threshold: float | None = None
    prefix_padding_ms: float | None = None
    silence_duration_ms: float | None = None
    idle_timeout_ms: float | None = None

    def applied(self, live: LiveConfig) -> LiveConfig:
        """Live options with these knobs. A silence that is given holds whatever the text says."""
        if self.threshold is not None:
            live = replace(live, threshold=min(max(self.threshold, _MIN_THRESHOLD), _MAX_THRESHOLD))
        if self.prefix_padding_ms is not None:
            pre_roll_s = self.prefix_padding_ms / 1000
            live = replace(live, pre_roll_s=min(max(pre_roll_s, _MIN_PRE_ROLL_S), _MAX_PRE_ROLL_S))
        if self.silence_duration_ms is not None:
            silence_s = self.silence_duration_ms / 1000
            live = replace(
                live,
                pause_s=min(live.pause_s, silence_s),
                endpoint_min_s=silence_s,
                endpoint_s=silence_s,
                endpoint_max_s=silence_s,
            )
        return live

    def wire(self, live: LiveConfig) -> Json:
        """What is in force."""
        return {
            "type": "server_vad",
            "threshold": live.threshold,
            "prefix_padding_ms": round(live.pre_roll_s * 1000),
            "silence_duration_ms": round(live.endpoint_s * 1000),
            "idle_timeout_ms": self.idle_timeout_ms,
        }


@dataclass(frozen=True, slots=True)
class SemanticVad:
    """Turns end after a silence that depends on whether the text sounds finished."""

    eagerness: str = "auto"

    def applied(self, live: LiveConfig) -> LiveConfig:
        """Live options with the silences of this eagerness."""
        shortest, usual, longest = _EAGERNESS[self.eagerness]
        return replace(live, endpoint_min_s=shortest, endpoint_s=usual, endpoint_max_s=longest)

    def wire(self, live: LiveConfig) -> Json:
        """What is in force."""
        return {"type": "semantic_vad", "eagerness": self.eagerness}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a client has set."""

    preset: str
    format: AudioFormat = field(default_factory=AudioFormat)
    turns: ServerVad | SemanticVad | None = field(default_factory=ServerVad)
    """How turns end; None when the client ends them itself."""
    language: str | None = None
    """A hint that is kept for the client; the model finds the language itself."""
    keywords: tuple[str, ...] = ()
    """Words likely to be said."""
    snapshots: bool = False
    """Whether whole hypotheses are told."""
    acks: bool = False
    """Whether positions are told while audio flows."""

    @property
    def live(self) -> LiveConfig:
        """The live options that follow."""
        live = PRESETS[self.preset]()
        return live.with_manual_endpoints() if self.turns is None else self.turns.applied(live)

    def wire(self, model: str) -> Json:
        """The effective configuration, without what identifies the session."""
        transcription = {
            "model": model,
            "language": self.language,
            "prompt": None,
            "keywords": list(self.keywords),
        }
        return {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": self.format.wire(),
                    "noise_reduction": None,
                    "transcription": transcription,
                    "turn_detection": None if self.turns is None else self.turns.wire(self.live),
                }
            },
            "include": [],
        }

    def updated(self, session: Json, *, has_audio: bool) -> tuple[Settings, tuple[str, ...]]:
        """Merge the `session` of an update.

        Args:
            session: What the client sent.
            has_audio: Whether audio was received, so that the format is fixed.

        Returns:
            The new settings, and the fields that were given a value and have no effect.

        Raises:
            InvalidMessage: A value is wrong; names the field and what is allowed.
            UnsupportedAudio: No such format.
            OutOfOrder: The format or the preset would change under way.
        """
        kind = session.get("type", "transcription")
        if kind != "transcription":
            raise InvalidMessage(
                f"session.type is {shown_value(kind)}, this server has transcription alone",
                field="session.type",
            )
        audio = _object(session, "audio", "session")
        given = _object(audio, "input", "session.audio")
        settings, ignored = self, list[str]()
        if "format" in given:
            settings = replace(settings, format=_format(_object(given, "format", _INPUT)))
        if "turn_detection" in given:
            settings = replace(settings, turns=_turns(given["turn_detection"], self.turns))
        if "transcription" in given:
            settings, unused = _transcription(settings, given["transcription"])
            ignored += unused
        if given.get("noise_reduction") is not None:
            ignored.append(f"{_INPUT}.noise_reduction")
        if session.get("include"):
            ignored.append("session.include")
        settings = _own(settings, _object(session, "moss", "session"))
        _check_fixed(self, settings, has_audio)
        return settings, tuple(ignored)


_INPUT = "session.audio.input"


def _check_fixed(old: Settings, new: Settings, has_audio: bool) -> None:
    for name, field_name in (("format", f"{_INPUT}.format"), ("preset", "session.moss.preset")):
        if has_audio and getattr(old, name) != getattr(new, name):
            raise OutOfOrder(
                f"{field_name} can change only before the first audio", field=field_name
            )


def _format(given: Json) -> AudioFormat:
    path = f"{_INPUT}.format"
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _ENCODINGS:
        known = ", ".join(_ENCODINGS)
        raise UnsupportedAudio(
            f"{path}.type is {shown_value(kind)}, allowed are {known}", field=f"{path}.type"
        )
    allowed = PCM_RATES_HZ if kind == "audio/pcm" else (TELEPHONE_RATE_HZ,)
    rate_hz = given.get("rate", 24_000 if kind == "audio/pcm" else TELEPHONE_RATE_HZ)
    if isinstance(rate_hz, bool) or rate_hz not in allowed:
        known = ", ".join(str(rate) for rate in allowed)
        raise UnsupportedAudio(
            f"{path}.rate is {shown_value(rate_hz)}, allowed for {kind} are {known}",
            field=f"{path}.rate",
        )
    return AudioFormat(kind, int(rate_hz))


def _turns(given: object, old: ServerVad | SemanticVad | None) -> ServerVad | SemanticVad | None:
    path = f"{_INPUT}.turn_detection"
    if given is None:
        return None
    if not isinstance(given, dict):
        raise _wrong(path, given, "an object or null")
    kind = given.get("type", "server_vad")
    if kind == "semantic_vad":
        eagerness = given.get("eagerness", "auto")
        if not isinstance(eagerness, str) or eagerness not in _EAGERNESS:
            raise _wrong(f"{path}.eagerness", eagerness, f"one of {', '.join(_EAGERNESS)}")
        return SemanticVad(eagerness)
    if kind != "server_vad":
        raise _wrong(f"{path}.type", kind, "server_vad or semantic_vad")
    vad = old if isinstance(old, ServerVad) else ServerVad()
    bounds = {
        "threshold": (0, 1),
        "prefix_padding_ms": (0, 2000),
        "silence_duration_ms": (100, 30_000),
        "idle_timeout_ms": (5000, 30_000),
    }
    values = {
        name: _number(given[name], f"{path}.{name}", low, high)
        for name, (low, high) in bounds.items()
        if name in given
    }
    return replace(vad, **values)


def _transcription(settings: Settings, given: object) -> tuple[Settings, list[str]]:
    path = f"{_INPUT}.transcription"
    if given is None:
        return replace(settings, language=None, keywords=()), []
    if not isinstance(given, dict):
        raise _wrong(path, given, "an object or null")
    if "language" in given:
        language = given["language"]
        if language is not None and not (isinstance(language, str) and len(language) <= 35):
            raise _wrong(f"{path}.language", language, "a language code such as en")
        settings = replace(settings, language=language or None)
    if "keywords" in given:
        settings = replace(settings, keywords=_keywords(given["keywords"], f"{path}.keywords"))
    unused = ("prompt", "languages", "delay")
    return settings, [f"{path}.{name}" for name in unused if given.get(name)]


def _keywords(given: Any, path: str) -> tuple[str, ...]:
    given = [] if given is None else given
    is_list = isinstance(given, list) and len(given) <= MAX_KEYWORDS
    if not is_list or not all(
        isinstance(word, str) and len(word) <= MAX_KEYWORD_CHARACTERS for word in given
    ):
        raise _wrong(
            path,
            given,
            f"a list of up to {MAX_KEYWORDS} strings of up to {MAX_KEYWORD_CHARACTERS} characters",
        )
    return tuple(word.strip() for word in given if word.strip())


def _own(settings: Settings, given: Json) -> Settings:
    for name in ("snapshots", "acks"):
        if name in given and not isinstance(given[name], bool):
            raise _wrong(f"session.moss.{name}", given[name], "true or false")
    preset = given.get("preset", settings.preset)
    if not isinstance(preset, str) or preset not in PRESETS:
        raise _wrong("session.moss.preset", preset, f"one of {', '.join(PRESETS)}")
    return replace(
        settings,
        preset=preset,
        snapshots=given.get("snapshots", settings.snapshots),
        acks=given.get("acks", settings.acks),
    )


def _object(parent: Mapping[str, Any], key: str, path: str) -> Json:
    value = parent.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(f"{path}.{key}", value, "an object")
    return value


def _number(value: object, path: str, low: float, high: float) -> float | None:
    """A number in bounds; null leaves the choice to the server."""
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or math.isnan(value):  # type: ignore[operator,arg-type]
        raise _wrong(path, value, f"{low:g} to {high:g}")
    return value  # type: ignore[return-value]


def _wrong(path: str, value: object, expected: str) -> InvalidMessage:
    return InvalidMessage(f"{path} is {shown_value(value)}, expected {expected}", field=path)


def shown_value(value: object) -> str:
    """A client's value for a message: at most 80 characters, as the message is kept and sent."""
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
