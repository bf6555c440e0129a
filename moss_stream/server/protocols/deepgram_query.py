"""What a client of Deepgram's live protocol asks for in the address, checked.

Parameters this server does not know are let pass; those that it knows and cannot do are named, so
that nobody believes they work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moss_stream.audio.pcm import Encoding
from moss_stream.audio.resample import check_rate
from moss_stream.errors import InvalidMessage, UnsupportedAudio
from moss_stream.live.config import LiveConfig
from moss_stream.server.config import PRESETS
from moss_stream.server.protocols.settings import (
    MAX_KEYWORD_CHARACTERS,
    MAX_KEYWORDS,
    TELEPHONE_RATE_HZ,
    ServerVad,
)

RAW: Final = {
    "linear16": Encoding.S16LE,
    "linear32": Encoding.F32LE,
    "mulaw": Encoding.MULAW,
    "alaw": Encoding.ALAW,
}
"""Encodings of bare samples by their names in this protocol."""
CONTAINERS: Final = {"flac": "flac", "ogg-opus": "ogg"}
"""Encodings that come with headers of their own, and FFmpeg's names for those."""
MAX_CHANNELS: Final = 20
MIN_ENDPOINTING_MS: Final = 300
"""Shortest silence that ends an utterance; the 10 ms that clients ask for lie within words."""
MAX_ENDPOINTING_MS: Final = 60_000
MIN_UTTERANCE_END_MS: Final = 1000
MAX_UTTERANCE_END_MS: Final = 5000
_IDLE_WORDS = ("", "false", "none")
_WITHOUT_EFFECT = (
    "detect_entities",
    "dictation",
    "numerals",
    "profanity_filter",
    "redact",
    "replace",
    "search",
)


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """How to listen, and what to tell."""

    encoding: Encoding | None = None
    """How bare samples are written; None for a container."""
    container: str | None = None
    """FFmpeg's name of the container; None to find out."""
    rate_hz: int = 0
    """Of bare samples."""
    channels: int = 1
    """Channels that the audio has."""
    is_multichannel: bool = False
    """Whether each channel is transcribed by itself; else they are mixed."""
    interim_results: bool = False
    """Whether text that may change is told."""
    tells_endpoints: bool = True
    """Whether results say that the speaker has finished."""
    endpointing_ms: int | None = None
    """Silence that ends an utterance; None leaves it to the preset and the text."""
    utterance_end_ms: int | None = None
    """Time without words after which that is told; None never tells."""
    vad_events: bool = False
    """Whether the start of speech is told."""
    diarize: bool = False
    """Whether words name their speakers."""
    keywords: tuple[str, ...] = ()
    """Words likely to be said."""
    preset: str = "agent"
    """One of `PRESETS`."""
    ignored: tuple[str, ...] = ()
    """Parameters that were given and have no effect."""

    @property
    def num_streams(self) -> int:
        """Live streams that work on it."""
        return self.channels if self.is_multichannel else 1

    @property
    def live(self) -> LiveConfig:
        """The live options that follow."""
        live = PRESETS[self.preset]()
        if self.endpointing_ms is None:
            return live
        silence_ms = max(self.endpointing_ms, MIN_ENDPOINTING_MS)
        return ServerVad(silence_duration_ms=silence_ms).applied(live)


def read_query(parameters: Iterable[tuple[str, str]]) -> ListenOptions:
    """Read the parameters of an address.

    Raises:
        InvalidMessage: A value is wrong; names the parameter and what is allowed.
        UnsupportedAudio: No such encoding or rate.
    """
    query = _Query(parameters)
    if query.has("callback"):
        raise InvalidMessage(
            "callback is not available: results come on the socket alone", field="callback"
        )
    encoding, container, rate_hz = _format(query)
    is_multichannel = query.flag("multichannel")
    # A container says itself how many channels it has, but only once it is there.
    usual_channels = 2 if is_multichannel and encoding is None else 1
    tells_endpoints, endpointing_ms = _endpointing(query)
    diarize = query.flag("diarize") or query.has("diarize_model")
    return ListenOptions(
        encoding=encoding,
        container=container,
        rate_hz=rate_hz,
        channels=query.whole("channels", 1, MAX_CHANNELS) or usual_channels,
        is_multichannel=is_multichannel,
        interim_results=query.flag("interim_results"),
        tells_endpoints=tells_endpoints,
        endpointing_ms=endpointing_ms,
        utterance_end_ms=query.whole(
            "utterance_end_ms", MIN_UTTERANCE_END_MS, MAX_UTTERANCE_END_MS
        ),
        vad_events=query.flag("vad_events"),
        diarize=diarize,
        keywords=_keywords(query),
        preset=_preset(query, diarize),
        ignored=tuple(name for name in _WITHOUT_EFFECT if query.has(name)),
    )


def check_keywords(words: Iterable[str], field: str) -> tuple[str, ...]:
    """Words to expect, stripped, without empty ones.

    Raises:
        InvalidMessage: There are too many of them, or one is too long.
    """
    kept = tuple(word.strip() for word in words if word.strip())
    if len(kept) > MAX_KEYWORDS:
        raise InvalidMessage(
            f"{field} has {len(kept)} entries, at most {MAX_KEYWORDS} are allowed", field=field
        )
    longest = max(map(len, kept), default=0)
    if longest > MAX_KEYWORD_CHARACTERS:
        raise InvalidMessage(
            f"{field} has an entry of {longest} characters, at most {MAX_KEYWORD_CHARACTERS} are "
            "allowed",
            field=field,
        )
    return kept


class _Query:
    """Parameters by name; of one that is given several times the last value counts."""

    def __init__(self, parameters: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in parameters:
            self._values.setdefault(name, []).append(value)

    def has(self, name: str) -> bool:
        """Whether it is given, and not turned off."""
        return self.text(name).lower() not in _IDLE_WORDS

    def text(self, name: str) -> str:
        """Its value; empty if it is not given."""
        return self._values.get(name, [""])[-1]

    def all(self, name: str) -> list[str]:
        """All its values."""
        return self._values.get(name, [])

    def flag(self, name: str) -> bool:
        """Whether it is true; false if it is not given."""
        match self.text(name).lower():
            case "true":
                return True
            case "false" | "":
                return False
        raise _wrong(name, self.text(name), "true or false")

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Its value as a whole number in bounds; None if it is not given."""
        text = self.text(name)
        if not text:
            return None
        is_number = text.isascii() and text.isdecimal() and len(text) < 10
        if not is_number or not low <= int(text) <= high:
            raise _wrong(name, text, f"a whole number from {low} to {high}")
        return int(text)


def _format(query: _Query) -> tuple[Encoding | None, str | None, int]:
    """Encoding of bare samples and their rate, or the container."""
    name = query.text("encoding").lower()
    if not name:
        return None, None, 0
    if name in CONTAINERS:
        return None, CONTAINERS[name], 0
    if name not in RAW:
        known = ", ".join((*RAW, *CONTAINERS))
        raise UnsupportedAudio(f"encoding is {name[:40]!r}, allowed are {known}", field="encoding")
    encoding = RAW[name]
    rate_hz = query.whole("sample_rate", 1, 10**9)
    if rate_hz is None:
        if encoding not in (Encoding.MULAW, Encoding.ALAW):
            raise InvalidMessage(
                f"sample_rate is missing, encoding {name} needs it", field="sample_rate"
            )
        rate_hz = TELEPHONE_RATE_HZ
    check_rate(rate_hz, field="sample_rate")
    return encoding, None, rate_hz


def _endpointing(query: _Query) -> tuple[bool, int | None]:
    """Whether endpoints are told, and after which silence."""
    match query.text("endpointing").lower():
        case "false":
            return False, None
        case "" | "true":
            return True, None
    return True, query.whole("endpointing", 0, MAX_ENDPOINTING_MS)


def _keywords(query: _Query) -> tuple[str, ...]:
    """Key terms, and keywords, whose weight after a colon has no meaning here."""
    words = list(query.all("keyterm"))
    for word in query.all("keywords"):
        bare, colon, weight = word.rpartition(":")
        words.append(bare if colon and _is_number(weight) else word)
    return check_keywords(words, "keyterm" if query.has("keyterm") else "keywords")


def _is_number(text: str) -> bool:
    return text.lstrip("+-").replace(".", "", 1).isdecimal()


def _preset(query: _Query, diarize: bool) -> str:
    """The one asked for; else that whose speaker labels last, if they are wanted."""
    preset = query.text("preset") or ("captions" if diarize else "agent")
    if preset not in PRESETS:
        raise _wrong("preset", preset, f"one of {', '.join(PRESETS)}")
    return preset


def _wrong(name: str, value: str, expected: str) -> InvalidMessage:
    return InvalidMessage(f"{name} is {value[:80]!r}, expected {expected}", field=name)
