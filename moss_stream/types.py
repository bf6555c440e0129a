"""Values that cross layers: what goes to the model and what a transcript is made of.

Plain frozen data without behaviour beyond derived values; times are float seconds from the start of
the recording or session they belong to.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from moss_stream.errors import ConfigError

TEXT_SLOT = -1
"""Entry of `Prompt.audio_slots` for a position that is text."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """One encoder input: up to 30 s of audio on the fixed grid.

    Args:
        samples: [n] float32 mono at the model's rate, not padded; never modified afterwards.
    """

    samples: npt.NDArray[np.float32]
    digest: bytes = field(init=False)
    """blake2b-128 of the samples: the content key of everything computed from this window."""

    def __post_init__(self) -> None:
        data = np.ascontiguousarray(self.samples, dtype=np.float32)
        object.__setattr__(self, "samples", data)
        object.__setattr__(self, "digest", hashlib.blake2b(data.data, digest_size=16).digest())


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids of a prompt and where its audio goes.

    `audio_slots[i]` is the index of position i among all audio embeddings of the request (windows
    in order), or `TEXT_SLOT`. `window_tokens[w]` is how many embeddings window w contributes.
    """

    ids: tuple[int, ...]
    audio_slots: tuple[int, ...]
    window_tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.audio_slots):
            raise ConfigError("prompt ids and audio slots differ in length", field="prompt")

    @property
    def audio_tokens(self) -> int:
        """Number of audio positions."""
        return sum(self.window_tokens)


@dataclass(frozen=True, slots=True)
class Segment:
    """One `[start][Sxx]text[end]` unit of the model's output."""

    start_s: float
    """Start, seconds."""
    end_s: float
    """End, seconds; never before `start_s`."""
    speaker: str
    """Label as the model wrote it, such as `S01`; empty when it wrote none."""
    text: str
    """Words, stripped of surrounding white space."""


@dataclass(frozen=True, slots=True)
class TranscriptWarning:
    """Something the caller should know: a repair, a cut, a refusal. None of these is silent."""

    code: str
    """Stable machine-readable name, such as `loop_cut` or `speaker_missing`."""
    message: str
    """One line for a person."""
    at_s: float | None = None
    """Where it happened, seconds; None when it concerns the whole."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a transcript cost, in counts."""

    audio_tokens: int = 0
    """Audio embedding positions in the prompt."""
    prompt_tokens: int = 0
    """All prompt positions, audio and markers included."""
    prefix_hit_tokens: int = 0
    """Prompt positions whose KV came from the prefix index."""
    encoder_hits: int = 0
    """Windows whose embeddings came from the encoder cache."""
    encoder_misses: int = 0
    """Windows the encoder computed."""
    draft_tokens: int = 0
    """Tokens proposed, from the draft or as tags that are foreseen; forced ones apart."""
    draft_accepted: int = 0
    """Those of them the model agreed with."""
    output_tokens: int = 0
    """Tokens of the output, forced ones included, the end token apart."""
    decode_steps: int = 0
    """Engine steps after the prefill that produced at least one token."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the wall-clock time went, seconds. A shared step counts in full for each request."""

    queue_s: float = 0.0
    """From submission to admission."""
    encode_s: float = 0.0
    """Steps that encoded windows of this request."""
    prefill_s: float = 0.0
    """Steps that fed prompt tokens."""
    decode_s: float = 0.0
    """Steps that decoded or verified."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Speaker-labelled, timestamped text of one recording."""

    segments: tuple[Segment, ...]
    """In the order of the model's output."""
    markup: str
    """The model's output as it came, before any repair."""
    token_ids: tuple[int, ...]
    """Ids behind `markup`, the end token apart."""
    duration_s: float
    """Duration of the audio, seconds."""
    coverage_end_s: float
    """How far the transcript reaches: the last segment's end, or the duration if silent after."""
    truncated: bool
    """Whether speech after `coverage_end_s` may be missing."""
    warnings: tuple[TranscriptWarning, ...] = ()
    """Repairs, cuts and refusals, in order."""
    usage: Usage = field(default_factory=Usage)
    """Counts."""
    timing: Timing = field(default_factory=Timing)
    """Seconds by stage."""

    @property
    def text(self) -> str:
        """The words alone, segments joined by one space."""
        return " ".join(segment.text for segment in self.segments if segment.text)
