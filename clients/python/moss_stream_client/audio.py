"""Samples on their way out: what may be sent, WAV files, and audio kept until it is confirmed."""

from __future__ import annotations

import os
import wave
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moss_stream_client.errors import AudioError, ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

RATES_HZ = (8000, 16000, 24000, 48000)
"""Sample rates the server takes."""
SAMPLE_BYTES = 2


def to_s16(pcm: Buffer) -> bytes:
    """Return mono signed 16-bit little-endian bytes.

    Args:
        pcm: Raw bytes, or a one-dimensional array of int16 (numpy, `array.array`).

    Raises:
        AudioError: Another element type, more dimensions, or half a sample.
    """
    view = memoryview(pcm)
    if view.ndim != 1:
        raise AudioError(f"audio must be mono, one dimension, got {view.ndim} dimensions")
    if view.format not in {"B", "b", "c", "h", "<h"}:
        raise AudioError(f"audio must be bytes or int16 samples, got items of {view.format!r}")
    if view.nbytes % SAMPLE_BYTES:
        raise AudioError(f"audio must be whole 16-bit samples, got {view.nbytes} bytes")
    return view.tobytes()


@dataclass(frozen=True, slots=True)
class WaveFile:
    """A PCM WAV file, read as mono 16-bit blocks.

    Attributes:
        path: Where it lies.
        rate_hz: Its sample rate, one of `RATES_HZ`.
        num_channels: Mixed to one when reading.
        width_bytes: Bytes of one sample of one channel.
    """

    path: Path
    rate_hz: int
    num_channels: int
    width_bytes: int

    @classmethod
    def inspect(cls, path: str | os.PathLike[str]) -> WaveFile:
        """Read the header.

        Raises:
            AudioError: The file cannot be read, is no PCM WAV file, or has another rate.
        """
        try:
            with wave.open(os.fspath(path), "rb") as reader:
                found = cls(
                    Path(path), reader.getframerate(), reader.getnchannels(), reader.getsampwidth()
                )
        except (OSError, EOFError, wave.Error) as error:
            raise AudioError(f"{path}: not a readable PCM WAV file: {error}") from error
        if found.rate_hz not in RATES_HZ:
            rates = ", ".join(map(str, RATES_HZ))
            raise AudioError(f"{path}: the rate must be one of {rates} Hz, got {found.rate_hz}")
        return found

    def blocks(self, block_s: float = 0.1) -> Iterator[bytes]:
        """Yield the file's samples in blocks of `block_s` seconds, the last one shorter."""
        with wave.open(os.fspath(self.path), "rb") as reader:
            while frames := reader.readframes(max(1, round(self.rate_hz * block_s))):
                yield self._mono(_narrow(frames, self.width_bytes))

    def _mono(self, pcm: bytes) -> bytes:
        if self.num_channels == 1:
            return pcm
        samples = array("h", pcm)
        channels = [samples[first :: self.num_channels] for first in range(self.num_channels)]
        # A cut file may end inside a frame: zip drops the incomplete one.
        mixed = (sum(frame) // self.num_channels for frame in zip(*channels, strict=False))
        return array("h", mixed).tobytes()


def _narrow(frames: bytes, width_bytes: int) -> bytes:
    """Return the upper 16 bits of every sample; 8-bit WAV samples are unsigned."""
    if width_bytes == SAMPLE_BYTES:
        return frames[: len(frames) - len(frames) % SAMPLE_BYTES]
    if width_bytes == 1:
        narrow = bytearray(SAMPLE_BYTES * len(frames))
        narrow[1::2] = frames.translate(bytes(value ^ 0x80 for value in range(256)))
        return bytes(narrow)
    whole = frames[: len(frames) - len(frames) % width_bytes]
    narrow = bytearray(SAMPLE_BYTES * (len(whole) // width_bytes))
    narrow[0::2] = whole[width_bytes - 2 :: width_bytes]
    narrow[1::2] = whole[width_bytes - 1 :: width_bytes]
    return bytes(narrow)


class Backlog:
    """Audio kept until the server confirms it, by absolute position.

    Positions never decrease and `acked_at <= sent_at <= end_at`, except that `rewind` moves
    `sent_at` back for a new connection.

    Args:
        capacity_samples: Most samples kept; `append` more than `room` is the caller's mistake.
    """

    def __init__(self, capacity_samples: int) -> None:
        self.capacity_samples = capacity_samples
        self.acked_at = 0
        """The server has everything before this sample."""
        self.sent_at = 0
        """Everything before this sample went out on the current connection or is confirmed."""
        self._kept = bytearray()

    @property
    def end_at(self) -> int:
        """Samples appended since the start of the stream."""
        return self.acked_at + len(self._kept) // SAMPLE_BYTES

    @property
    def room(self) -> int:
        """Samples that may be appended now."""
        return self.capacity_samples - (self.end_at - self.acked_at)

    def append(self, pcm: bytes) -> None:
        """Keep whole samples, at most `room`."""
        self._kept += pcm

    def take(self, max_samples: int) -> bytes:
        """Return the next samples to send, empty when all are sent; they stay kept."""
        first = (self.sent_at - self.acked_at) * SAMPLE_BYTES
        taken = bytes(self._kept[first : first + max_samples * SAMPLE_BYTES])
        self.sent_at += len(taken) // SAMPLE_BYTES
        return taken

    def acknowledge(self, received_at: int) -> None:
        """Forget everything before `received_at`; an older position than the last is no news.

        Raises:
            ProtocolError: The server confirms samples that it was not sent.
        """
        if received_at > self.sent_at:
            raise ProtocolError(
                f"the server confirms {received_at} samples of {self.sent_at} that were sent"
            )
        if received_at > self.acked_at:
            del self._kept[: (received_at - self.acked_at) * SAMPLE_BYTES]
            self.acked_at = received_at

    def rewind(self, received_at: int) -> None:
        """Send again from `received_at` on, which confirms everything before it.

        Raises:
            ProtocolError: The server lost samples it had confirmed, or has some never given.
        """
        if not self.acked_at <= received_at <= self.end_at:
            raise ProtocolError(
                f"the server resumes at sample {received_at}, expected one from "
                f"{self.acked_at} (confirmed) to {self.end_at} (given)"
            )
        self.sent_at = received_at
        self.acknowledge(received_at)
