"""Media files to samples: anything FFmpeg reads, decoded block by block through PyAV.

Times count from the first decoded sample of the best audio stream. Only the given file is read:
playlists and scripts that point to other files or hosts are not followed. PyAV keeps FFmpeg's log
silent unless an application turns it on, so what goes wrong is told by errors and warnings alone.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

import av
import numpy as np
import numpy.typing as npt
from av.audio.stream import AudioStream
from av.container import InputContainer

from moss_stream.audio.frames import frame_channels, say_why
from moss_stream.audio.resample import MODEL_RATE_HZ, Resampler, check_rate
from moss_stream.audio.samples import check_duration, check_values
from moss_stream.errors import AudioTooLong, UnsupportedAudio
from moss_stream.types import TranscriptWarning

_DURATION_FORMATS = frozenset("aiff asf avi caf flac matroska mov mp3 mp4 ogg w64 wav webm".split())
"""Containers that store their duration; for others FFmpeg guesses it from the bit rate."""
_MIN_BIT_RATE = 400
"""Bits per second below which a declared duration is not believed: no codec writes less."""
_DURATION_SLACK_S = 0.25
"""Encoder padding and rounding by which a sound file may miss its declared duration."""
_FLAC_SLACK_S = 0.001
"""The same for FLAC, which counts its samples: a shorter loss is a lost frame FFmpeg tells nobody
of."""
_RIFF_UNKNOWN_BYTES = 0x7FFF_0000
"""Sizes in a RIFF header from here on are placeholders of programs that stream."""


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """The sound of a file."""

    samples: npt.NDArray[np.float32]
    """[n] float32 mono at the rate asked for."""
    duration_s: float
    """Duration of `samples`, seconds."""
    warnings: tuple[TranscriptWarning, ...] = ()
    """`media_damaged` where a part of the file could not be decoded."""


def load_media(
    source: str | os.PathLike[str] | bytes,
    *,
    rate_hz: int = MODEL_RATE_HZ,
    max_duration_s: float | None = None,
    check: Callable[[], None] | None = None,
) -> Media:
    """Decode the audio of a media file, mixed to mono as the mean of its channels.

    A damaged file gives what could be decoded, and a warning. Mono files at `rate_hz` come out
    with the values they store.

    Args:
        source: A path, or the bytes of a file.
        rate_hz: Rate wanted, samples per second.
        max_duration_s: Longest audio accepted, seconds; None accepts any, and memory grows with it.
        check: Called every now and then; what it raises ends the decoding.

    Returns:
        The samples, at least `MIN_DURATION_S` of them.

    Raises:
        AudioTooLong: It lasts longer than `max_duration_s`; found before all of it is decoded.
        UnsupportedAudio: It cannot be read, is not media, or holds no usable audio.
    """
    check_rate(rate_hz)
    label = f"file is {len(source)} bytes" if isinstance(source, bytes) else f"file {source!s}"
    with _open_source(source, label) as file, _open_container(file, label) as container:
        decoding = _Decoding(container, file, label, rate_hz, max_duration_s)
        try:
            samples = decoding.run(check)
            check_duration(len(samples), rate_hz)
        except UnsupportedAudio as error:
            if error.field == "file":
                raise
            _refuse(label, error.message, error)
    return Media(samples, len(samples) / rate_hz, decoding.warnings())


def _refuse(label: str, reason: str, cause: Exception | None = None) -> NoReturn:
    raise UnsupportedAudio(f"{label}: {reason}", field="file") from cause


@dataclass(frozen=True, slots=True)
class _File:
    """An open file, at its beginning."""

    data: BinaryIO
    num_bytes: int
    is_cut: bool
    """Whether it has a RIFF header that states more bytes than there are."""


def _describe(data: BinaryIO, num_bytes: int) -> _File:
    head = data.read(8)
    data.seek(0)
    stated_bytes = int.from_bytes(head[4:], "little") + 8
    # FFmpeg itself takes such a file for a shorter one and says nothing.
    is_cut = head[:4] == b"RIFF" and num_bytes < stated_bytes < _RIFF_UNKNOWN_BYTES
    return _File(data, num_bytes, is_cut)


@contextmanager
def _open_source(source: str | os.PathLike[str] | bytes, label: str) -> Iterator[_File]:
    """Open a regular file that is not empty."""
    if isinstance(source, bytes):
        if not source:
            _refuse(label, "it is empty")
        yield _describe(io.BytesIO(source), len(source))
        return
    try:
        status = os.stat(source)
        # Asked before opening: opening a pipe would wait for its writer.
        if stat.S_ISDIR(status.st_mode):
            _refuse(label, "it is a directory, a media file is needed")
        if not stat.S_ISREG(status.st_mode):
            _refuse(label, "it is a device or a pipe, a media file is needed")
        if status.st_size == 0:
            _refuse(label, "it is empty")
        data = open(source, "rb")
    except FileNotFoundError as error:
        _refuse(label, "there is no such file", error)
    except PermissionError as error:
        _refuse(label, "reading it is not permitted", error)
    except (OSError, ValueError) as error:
        _refuse(label, f"it cannot be opened ({say_why(error)})", error)
    with data:
        yield _describe(data, status.st_size)


@contextmanager
def _open_container(file: _File, label: str) -> Iterator[InputContainer]:
    """Let FFmpeg find out what the file is."""
    # FFmpeg reads the file through us; without any protocol of its own it can open nothing else.
    options = {"protocol_whitelist": "none"}
    try:
        container = av.open(
            file.data, mode="r", container_options=options, metadata_errors="replace"
        )
    except (av.FFmpegError, OSError, ValueError) as error:
        _refuse(label, f"it is not media that FFmpeg can read ({say_why(error)})", error)
    with container:
        if container.format.name == "tty":  # FFmpeg would show any text as a picture
            _refuse(label, "it is text, a media file is needed")
        yield container


class _Decoding:
    """One pass over a container's audio stream."""

    def __init__(
        self,
        container: InputContainer,
        file: _File,
        label: str,
        rate_hz: int,
        max_duration_s: float | None,
    ) -> None:
        self._container = container
        self._file = file
        self._label = label
        self._rate_hz = rate_hz
        self._max_duration_s = max_duration_s
        self._stream = self._best_stream()
        self._declared_s = self._declared_duration()
        self._decoded_s = 0.0
        # Position and reason of the first damage, and how often there was any.
        self._damage: tuple[float, str] | None = None
        self._num_damaged = 0

    def _best_stream(self) -> AudioStream:
        stream = self._container.streams.best("audio")
        if not isinstance(stream, AudioStream):
            kinds = ", ".join(sorted({other.type for other in self._container.streams}))
            _refuse(self._label, f"it holds no audio stream (found: {kinds or 'none'})")
        if stream.codec_context is None:
            _refuse(self._label, "there is no decoder for its audio")
        return stream

    def _declared_duration(self) -> float | None:
        """Duration the container states for the audio, seconds; None if not stated or absurd."""
        if _DURATION_FORMATS.isdisjoint(self._container.format.name.split(",")):
            return None
        if self._stream.duration is not None and self._stream.time_base is not None:
            declared_s = float(self._stream.duration * self._stream.time_base)
        elif self._container.duration is not None and len(self._container.streams) == 1:
            declared_s = self._container.duration / av.time_base
        else:
            return None
        is_plausible = 0 < declared_s * _MIN_BIT_RATE <= 8 * self._file.num_bytes
        return declared_s if is_plausible else None

    def run(self, check: Callable[[], None] | None) -> npt.NDArray[np.float32]:
        """Decode all of it, calling `check` between frames.

        Returns:
            [n] float32 mono at the rate asked for.

        Raises:
            AudioTooLong: It lasts longer than allowed.
            UnsupportedAudio: A sample or the rate is unusable, or nothing could be decoded.
        """
        limit_s = self._max_duration_s
        # A second of grace: near the limit the decoded samples decide.
        if limit_s is not None and self._declared_s is not None and self._declared_s > limit_s + 1:
            self._refuse_length(f"{self._declared_s:.1f} s long")
        parts: list[npt.NDArray[np.float32]] = []
        resampler: Resampler | None = None
        num_samples = 0
        for frame in self._frames():
            if check is not None:
                check()
            mono = _mono(frame)
            check_values(mono, first_at=num_samples)
            num_samples += len(mono)
            self._decoded_s += len(mono) / frame.sample_rate
            if limit_s is not None and self._decoded_s > limit_s + 1e-6:
                self._refuse_length("longer")
            if resampler is None or resampler.source_hz != frame.sample_rate:
                # The rate can change where recordings were joined.
                parts += [resampler.flush()] if resampler else []
                resampler = Resampler(frame.sample_rate, self._rate_hz)
            parts.append(resampler.process(mono))
        if resampler is None:
            reason = self._damage[1] if self._damage else "its audio stream is empty"
            _refuse(self._label, f"no audio could be decoded from it ({reason})")
        parts.append(resampler.flush())
        return np.concatenate(parts)

    def _refuse_length(self, found: str) -> NoReturn:
        raise AudioTooLong(
            f"{self._label}: it is {found}, the longest allowed is {self._max_duration_s:g} s",
            field="file",
        )

    def _frames(self) -> Iterator[av.AudioFrame]:
        """Decode packet by packet, noting damage; a damaged packet is passed over."""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.FFmpegError, OSError) as error:
                self._note_damage(say_why(error))
                return
            if packet is None:
                return
            try:
                frames = packet.decode()
            except (av.FFmpegError, OSError) as error:
                self._note_damage(say_why(error))
            else:
                # A frame may be empty where a decoder only tells of a change of format.
                yield from (frame for frame in frames if frame.samples)

    def _note_damage(self, reason: str) -> None:
        self._num_damaged += 1
        self._damage = self._damage or (round(self._decoded_s, 3), reason)

    def warnings(self) -> tuple[TranscriptWarning, ...]:
        """What is missing from the decoded audio: one warning, or none."""
        end_s, declared_s = round(self._decoded_s, 3), self._declared_s
        is_flac = self._container.format.name == "flac"
        slack_s = _FLAC_SLACK_S if is_flac else _DURATION_SLACK_S
        if self._damage is not None:
            at_s, reason = self._damage
            # Junk after the end of the sound costs nothing.
            if declared_s is not None and at_s >= declared_s - 0.01:
                return ()
            places = "1 place" if self._num_damaged == 1 else f"{self._num_damaged} places"
            message = f"the file is damaged in {places}, first at {at_s:g} s ({reason})"
        elif self._file.is_cut:
            at_s, message = end_s, f"the file is cut off, its audio ends at {end_s:g} s"
        elif declared_s is not None and end_s < declared_s - slack_s:
            at_s = end_s
            message = f"the file declares {declared_s:.2f} s of audio, only {end_s:g} s are in it"
        else:
            return ()
        return (TranscriptWarning("media_damaged", message, at_s),)


def _mono(frame: av.AudioFrame) -> npt.NDArray[np.float32]:
    """Mean of a frame's channels: [samples] float32, full scale 1."""
    # A double beyond float32 becomes infinite here and is refused by its position.
    with np.errstate(over="ignore"):
        mono: npt.NDArray[np.float32] = frame_channels(frame).mean(axis=0).astype(np.float32)
    return mono
