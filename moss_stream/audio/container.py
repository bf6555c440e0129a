"""Media streams to samples while their bytes still arrive: WebM, Ogg, WAV, MP3 and the like.

FFmpeg wants to read, and waits for what it reads, so a decoder runs in a thread of its own at one
end of a `BytePipe`; whoever receives the bytes writes them at the other end and never waits here.
Only the given bytes are read: containers that point to files or hosts are not followed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.packet import Packet

from moss_stream.audio.frames import frame_channels, say_why
from moss_stream.audio.resample import check_rate
from moss_stream.audio.samples import MAX_AMPLITUDE
from moss_stream.audio.wav import WAV_BYTES, WavSamples, find_samples, is_wav
from moss_stream.errors import UnsupportedAudio

FORMATS: Final = "aac,aiff,amr,caf,flac,matroska,webm,mov,mp4,m4a,3gp,mp3,mpegts,ogg,w64,wav"
"""What FFmpeg may take the bytes for: formats of sound that can be read from the front."""
PROBE_BYTES: Final = 1 << 16
"""Most bytes looked at to find out what they are."""
_ANALYSED_US = 100_000
"""Most sound decoded in advance to find out how it is written, microseconds."""
_MAX_DAMAGED_PACKETS = 50
"""Packets in a row that cannot be decoded: about a second of Opus or MP3."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A piece of sound."""

    rate_hz: int
    """Samples a second."""
    channels: npt.NDArray[np.float32]
    """[channels, n], full scale 1."""


class BytePipe:
    """Bytes from one thread to another, as a file that still grows.

    Args:
        on_change: Called by the reading thread when it took bytes or waits for more.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._changed = threading.Condition()
        self._parts: deque[memoryview] = deque()
        self._is_closed = False
        self.num_bytes = 0
        """Bytes written and not read."""
        self.is_starved = False
        """Whether the reader waits for bytes."""

    def write(self, data: bytes) -> None:
        """Add bytes; never waits, so look at `num_bytes`."""
        if data:
            with self._changed:
                self._parts.append(memoryview(data))
                self.num_bytes += len(data)
                self.is_starved = False
                self._changed.notify()

    def close(self) -> None:
        """No more bytes come."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def drop(self) -> None:
        """No more bytes come, and those not read yet never do."""
        with self._changed:
            self._parts.clear()
            self.num_bytes = 0
        self.close()

    def read(self, size: int) -> bytes:
        """Wait for bytes and take up to `size` of them; none at the end."""
        with self._changed:
            must_wait = not self._parts and not self._is_closed
            self.is_starved = must_wait
        if must_wait:
            self._on_change()
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._is_closed)
            taken = self._take(size)
        self._on_change()
        return taken

    def unread(self, data: bytes) -> None:
        """Put bytes back in front of the others; for the reader."""
        if data:
            with self._changed:
                self._parts.appendleft(memoryview(data))
                self.num_bytes += len(data)

    def _take(self, size: int) -> bytes:
        if not self._parts:
            return b""
        part = self._parts.popleft()
        if len(part) > size:
            self._parts.appendleft(part[size:])
            part = part[:size]
        self.num_bytes -= len(part)
        return bytes(part)


def decode_stream(
    pipe: BytePipe, format_name: str | None, on_damage: Callable[[str], None]
) -> Iterator[Block]:
    """Decode the best audio stream of what comes through a pipe, until its end.

    Args:
        pipe: Read from the front, as far as needed for each block.
        format_name: FFmpeg's name of the format; None to find out.
        on_damage: Told why a packet cannot be decoded; it is passed over.

    Raises:
        UnsupportedAudio: It is not media, holds no audio, or nothing of it can be decoded any more.
    """
    with _open(pipe, format_name) as container:
        stream = container.streams.best("audio")
        if not isinstance(stream, AudioStream) or stream.codec_context is None:
            raise UnsupportedAudio("the stream holds no audio that can be decoded", field="audio")
        num_blocks = num_damaged = 0
        for packet in _packets(container, stream):
            try:
                frames = packet.decode()
            except (av.FFmpegError, OSError) as error:
                on_damage(say_why(error))
                num_damaged += 1
                if num_damaged >= _MAX_DAMAGED_PACKETS:
                    raise UnsupportedAudio(
                        f"the audio is damaged ({say_why(error)})", field="audio"
                    ) from error
                continue
            num_damaged = 0
            for frame in frames:
                # A frame may be empty where a decoder only tells of a change of format.
                if frame.samples:
                    num_blocks += 1
                    yield _block(frame)
        if not num_blocks:
            raise UnsupportedAudio("the stream ended before any audio", field="audio")


def _packets(container: InputContainer, stream: AudioStream) -> Iterator[Packet[AudioStream]]:
    try:
        yield from container.demux(stream)
    except (av.FFmpegError, OSError) as error:
        raise UnsupportedAudio(
            f"the stream is damaged ({say_why(error)})", field="audio"
        ) from error


def _open(pipe: BytePipe, format_name: str | None) -> InputContainer:
    options = {
        "protocol_whitelist": "none",
        "formatprobesize": str(PROBE_BYTES),
        "probesize": str(PROBE_BYTES),
        "analyzeduration": str(_ANALYSED_US),
    }
    wav = _find_wav(pipe) if format_name is None else None
    if wav is not None:
        format_name = wav.format_name
        options |= {"sample_rate": str(wav.rate_hz), "ch_layout": f"{wav.num_channels}C"}
    else:
        options["format_whitelist"] = FORMATS
    try:
        return av.open(
            pipe, mode="r", format=format_name, container_options=options, metadata_errors="replace"
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        raise UnsupportedAudio(
            f"no media that can be decoded ({say_why(error)})", field="audio"
        ) from error


def _find_wav(pipe: BytePipe) -> WavSamples | None:
    """Read up to the samples of a WAV stream; of any other stream nothing is lost."""
    head, wav = b"", None
    while wav is None and len(head) < PROBE_BYTES and (len(head) < WAV_BYTES or is_wav(head)):
        more = pipe.read(PROBE_BYTES)
        if not more:
            break
        head += more
        wav = find_samples(head)
    pipe.unread(head if wav is None else head[wav.start_at :])
    return wav


def _block(frame: av.AudioFrame) -> Block:
    check_rate(frame.sample_rate)
    with np.errstate(over="ignore"):
        channels = frame_channels(frame).astype(np.float32)
    # What no sound can be, as a damaged stream of floats may hold, becomes silence.
    usable = np.abs(channels) <= MAX_AMPLITUDE
    return Block(frame.sample_rate, np.where(usable, channels, np.float32(0)))
