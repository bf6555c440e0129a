from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.media import media_bytes, tone, wav_bytes

from moss_stream.audio.wav import WAV_BYTES, WavSamples, find_samples, is_wav


def header(tag: int, bits: int, *, channels: int = 1, rate_hz: int = 16_000) -> bytes:
    """A WAV header that states no length."""
    frame_bytes = channels * bits // 8
    form = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * frame_bytes, frame_bytes, bits)
    return (
        b"RIFF\xff\xff\xff\xffWAVE"
        + b"LIST\x03\x00\x00\x00abc\x00"
        + b"fmt "
        + struct.pack("<I", len(form))
        + form
        + b"data\xff\xff\xff\xff"
    )


@pytest.mark.parametrize(
    ("codec", "sample_format", "name"),
    [
        ("pcm_u8", "u8", "u8"),
        ("pcm_s16le", "s16", "s16le"),
        ("pcm_s24le", "s32", "s24le"),
        ("pcm_s32le", "s32", "s32le"),
        ("pcm_f32le", "flt", "f32le"),
        ("pcm_f64le", "dbl", "f64le"),
        ("pcm_alaw", "s16", "alaw"),
        ("pcm_mulaw", "s16", "mulaw"),
    ],
)
def test_header_of_ffmpeg_is_read(codec: str, sample_format: str, name: str) -> None:
    channels = np.stack([tone(44_100, 0.1)] * 2)
    data = media_bytes("wav", codec, channels, 44_100, sample_format=sample_format)
    found = find_samples(data)

    assert found is not None
    assert (found.format_name, found.rate_hz, found.num_channels) == (name, 44_100, 2)
    assert data[found.start_at - 8 : found.start_at - 4] == b"data"


def test_header_with_other_chunks_is_read() -> None:
    head = header(7, 8, channels=3, rate_hz=8_000)

    assert find_samples(head + b"samples") == WavSamples("mulaw", 8_000, 3, len(head))


def test_header_is_read_only_when_it_is_whole() -> None:
    head = header(1, 16)

    assert [n for n in range(len(head)) if find_samples(head[:n]) is not None] == []
    assert find_samples(head) is not None
    assert is_wav(head[:WAV_BYTES])


@pytest.mark.parametrize(
    "head",
    [
        header(2, 4),
        header(1, 12),
        header(1, 16, channels=0),
        header(1, 16, rate_hz=0),
        header(1, 16).replace(b"WAVE", b"AVI "),
        b"RIFF\x00\x00\x00\x00WAVEdata\x00\x00\x00\x00",
        b"RIFF\x00\x00\x00\x00WAVEfmt \x02\x00\x00\x00\x01\x00data\x00\x00\x00\x00",
    ],
    ids=["adpcm", "12 bits", "no channel", "no rate", "other riff", "no format", "short format"],
)
def test_header_that_names_no_bare_samples_is_left_to_others(head: bytes) -> None:
    assert find_samples(head) is None


@given(st.binary(max_size=80), st.booleans())
def test_header_of_any_bytes_is_read_or_not(data: bytes, has_magic: bool) -> None:
    head = b"RIFF\x00\x00\x00\x00WAVE" + data if has_magic else data
    found = find_samples(head)

    assert found is None or 0 < found.start_at <= len(head)


def test_samples_follow_the_header() -> None:
    samples = tone(16_000, 0.1)
    data = wav_bytes(samples)
    found = find_samples(data)

    assert found is not None
    assert np.array_equal(np.frombuffer(data[found.start_at :], "<i2"), samples)
