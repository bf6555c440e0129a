"""Where the samples begin in a WAV stream, and how they are written.

FFmpeg's own reader waits for 64 KiB of samples to see whether they are something else in disguise,
which is seconds of live speech. The length in the header is not believed: who streams does not
know it.

Source: Multimedia Programming Interface and Data Specifications 1.0 (1991), Waveform Audio File
Format; the extensible format as in Microsoft's WAVEFORMATEXTENSIBLE.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

WAV_BYTES = 12
"""First bytes of a stream that tell whether it is WAV."""
_FORMATS = {
    (1, 8): "u8",
    (1, 16): "s16le",
    (1, 24): "s24le",
    (1, 32): "s32le",
    (3, 32): "f32le",
    (3, 64): "f64le",
    (6, 8): "alaw",
    (7, 8): "mulaw",
}
"""FFmpeg's name by the tag of the format and the bits of a sample."""
_EXTENSIBLE = 0xFFFE
_EXTENSIBLE_TAG_AT = 24
"""Where the tag proper stands in the chunk of an extensible format."""


@dataclass(frozen=True, slots=True)
class WavSamples:
    """What the header says."""

    format_name: str
    """FFmpeg's name of how a sample is written."""
    rate_hz: int
    """Samples a second."""
    num_channels: int
    """Channels, interleaved."""
    start_at: int
    """First byte of the samples in the stream."""


def is_wav(head: bytes) -> bool:
    """Whether a stream begins as WAV."""
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE"


def find_samples(head: bytes) -> WavSamples | None:
    """Read the header of a WAV stream.

    Args:
        head: The stream from its beginning, as far as it is there.

    Returns:
        None while the header is not whole, for samples that are compressed, and if it is no WAV.
    """
    if not is_wav(head):
        return None
    form: tuple[str, int, int] | None = None
    at = WAV_BYTES
    while at + 8 <= len(head):
        kind, size = struct.unpack_from("<4sI", head, at)
        at += 8
        if kind == b"data":
            return None if form is None else WavSamples(*form, start_at=at)
        if kind == b"fmt ":
            form = _form(head[at : at + size])
        at += size + size % 2
    return None


def _form(chunk: bytes) -> tuple[str, int, int] | None:
    """FFmpeg's name, rate and channels."""
    if len(chunk) < 16:
        return None
    tag, num_channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= _EXTENSIBLE_TAG_AT + 2:
        (tag,) = struct.unpack_from("<H", chunk, _EXTENSIBLE_TAG_AT)
    name = _FORMATS.get((tag, bits))
    return (name, rate_hz, num_channels) if name and rate_hz and num_channels else None
