"""What a client asks for and what a session is: the values around the protocol's state."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from moss_stream.errors import ClientError, InvalidMessage
from moss_stream.server.protocols.settings import Settings


@dataclass(frozen=True, slots=True)
class Append:
    """Audio came."""

    data: bytes
    """In the session's input format."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The client ends the turn."""


@dataclass(frozen=True, slots=True)
class Clear:
    """The client takes back the audio of the growing turn."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The client has no more audio and waits for the rest of the text."""


@dataclass(frozen=True, slots=True)
class Configure:
    """The client changed its settings; confirm with `configured` or `refuse`."""

    settings: Settings
    """All of them."""
    ignored: tuple[str, ...]
    """Fields without effect."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The client knows that two speakers are one."""

    speaker: str
    """The name that goes."""
    into: str
    """The name that stays."""


Command = Append | Commit | Clear | Finish | Configure | Merge


@dataclass(frozen=True, slots=True)
class Identity:
    """What is fixed for a session and told to its client."""

    session_id: str
    resume_token: str
    grace_s: float
    model: str
    expires_at: int
    """Unix time."""
    limits: dict[str, float]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a session stands; `*_at` at the model's rate, `received_samples` at the input's."""

    received_samples: int = 0
    received_at: int = 0
    examined_at: int = 0
    decoded_at: int = 0
    is_degraded: bool = False
    """Whether text comes less often than wanted because the machine is busy."""


class EmptyCommit(ClientError):
    """A commit of nothing."""

    code = "input_audio_buffer_commit_empty"


def decode_audio(value: object) -> bytes:
    """The bytes of an `audio` field.

    Raises:
        InvalidMessage: It is no base64.
    """
    if not isinstance(value, str):
        raise InvalidMessage("audio is missing or no string, expected base64", field="audio")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidMessage(f"audio is not base64: {error}", field="audio") from error
