"""What a session says and what it asks for. Plain values; positions are samples of the session.

Finals are immutable, one for each utterance; `committed_text` of an utterance only grows. Anything
that changes what was said before is an event of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from moss_stream.errors import MossStreamError
from moss_stream.live.config import to_seconds
from moss_stream.live.context import AudioWindow
from moss_stream.types import Segment, TranscriptWarning, Usage


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """An utterance began."""

    utterance_id: int
    """Counts from 1."""
    start_at: int
    """Its first sample, pre-roll included."""
    decided_at: int
    """Audio examined when this became known."""


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """An utterance ended; its `Final` or `Failed` follows."""

    utterance_id: int
    """The one that ended."""
    start_at: int
    """Its first sample."""
    speech_end_at: int
    """After the last speech in it."""
    end_at: int
    """After its last sample."""
    decided_at: int
    """Audio examined when this became known: it includes the silence waited for."""
    is_split: bool
    """Whether it was cut for its length and speech goes on."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Text of an utterance that is still growing; replaces the one before it."""

    utterance_id: int
    """The utterance."""
    revision: int
    """Counts from 1 within the utterance."""
    committed_text: str
    """Words that will not change before the final; the previous event's is a prefix."""
    committed_segments: tuple[Segment, ...]
    """The same with speakers and session times; times and the last end are still estimates."""
    partial_text: str
    """What follows and may change; with its space, so that the two make the whole text."""
    partial_segments: tuple[Segment, ...]
    """The same with speakers and session times."""
    end_at: int
    """After the last sample this text covers."""
    lag_s: float
    """Audio received after that, seconds."""


@dataclass(frozen=True, slots=True)
class Final:
    """The text of an utterance."""

    utterance_id: int
    """The utterance."""
    segments: tuple[Segment, ...]
    """With speakers and session times, inside the utterance."""
    text: str
    """Their words, joined by one space."""
    start_at: int
    """The utterance's first sample."""
    end_at: int
    """After its last sample."""
    is_revised: bool
    """Whether the text does not begin with what was committed before."""
    warnings: tuple[TranscriptWarning, ...]
    """Repairs, cuts and doubts, with session times."""
    usage: Usage
    """What its decode cost."""


@dataclass(frozen=True, slots=True)
class Failed:
    """An utterance could not be decoded; a `Gap` with its samples follows."""

    utterance_id: int
    """The utterance."""
    error: MossStreamError
    """Why."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Samples that may hold speech and will have no transcript."""

    start_at: int
    """First sample."""
    end_at: int
    """After the last sample."""
    reason: str
    """`decode_failed` or `cleared`."""


@dataclass(frozen=True, slots=True)
class CommitDone:
    """A manual commit took effect."""

    utterance_id: int | None
    """The utterance it ended, None when there was no speech since the last one."""
    at: int
    """Position of the commit."""


@dataclass(frozen=True, slots=True)
class Relabel:
    """One speaker had two names: read the first as the second, in all that was said."""

    speaker: str
    """The name that goes."""
    replaced_by: str
    """The name that stays."""


@dataclass(frozen=True, slots=True)
class SessionWarning:
    """Something the caller should know that belongs to no final."""

    code: str
    """`refresh_failed`, `final_retried` or `speaker_dropped`."""
    message: str
    """One line for a person."""
    utterance_id: int | None = None
    """The utterance it came up in."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The stream ended and every utterance has its final: nothing follows."""

    received_at: int
    """Samples received in all."""


class DecodeKind(StrEnum):
    """What a decode is for."""

    REFRESH = "refresh"
    """Newer text of a growing utterance."""
    EAGER = "eager"
    """The final, should the present pause end the utterance."""
    FINAL = "final"
    """The final of an ended utterance."""
    LINK = "link"
    """Whether two speakers are one."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRequest:
    """A transcription to make: the answer goes to `hypothesis()` or `failed()`."""

    request_id: int
    """Counts from 1."""
    utterance_id: int
    """The utterance it is for; 0 for none."""
    kind: DecodeKind
    """Refreshes come after all others."""
    windows: tuple[AudioWindow, ...]
    """The audio on the 30 s grid: context, then the utterance."""
    forced: tuple[int, ...]
    """Output that is known; the answer begins with it."""
    draft: tuple[int, ...]
    """A guess at the output after it."""
    start_at: int
    """The utterance's first sample."""
    end_at: int
    """After the last sample to decode."""
    deadline_s: float
    """When the text is wanted, on the caller's clock."""
    earlier: tuple[tuple[int, ...], ...] = ()
    """Older guesses at the utterance's output, the newest first."""

    @property
    def new_audio_s(self) -> float:
        """Audio of the utterance itself, seconds: what the output budget depends on."""
        return to_seconds(self.end_at - self.start_at)


@dataclass(frozen=True, slots=True)
class CancelDecode:
    """A request whose answer is not wanted any more; one that comes all the same is ignored."""

    request_id: int
    """The request."""


@dataclass(frozen=True, slots=True, eq=False)
class FrameBatch:
    """Frames whose speech probability the session wants next."""

    first_frame: int
    """Index of the first one since the start of the session."""
    samples: npt.NDArray[np.float32]
    """[n, 512] float32, n may be 0; the stream's very last frame is filled up with zeros."""


Event = (
    SpeechStarted
    | SpeechStopped
    | Hypothesis
    | Final
    | Failed
    | Gap
    | CommitDone
    | Relabel
    | SessionWarning
    | Finished
)
Output = Event | DecodeRequest | CancelDecode
