from __future__ import annotations

import struct
import wave
from array import array
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_stream_client import AudioError
from moss_stream_client.audio import Backlog, WaveFile, to_s16


def write_wave(
    path: Path, frames: bytes, rate: int = 16000, channels: int = 1, width: int = 2
) -> Path:
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(frames)
    return path


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("atkr"), st.integers(0, 40)), max_size=60))
def test_backlog_sends_every_sample_in_order_from_any_rewind(steps: list[tuple[str, int]]) -> None:
    backlog = Backlog(50)
    given_pcm, got = bytearray(), bytearray()
    for step, count in steps:
        if step == "a":
            pcm = b"".join(
                struct.pack("<H", len(given_pcm) // 2 + n) for n in range(min(count, backlog.room))
            )
            backlog.append(pcm)
            given_pcm += pcm
        elif step == "t":
            at = backlog.sent_at
            got[2 * at :] = backlog.take(count)
        elif step == "k":
            backlog.acknowledge(min(count, backlog.sent_at))
        else:
            received = max(backlog.acked_at, backlog.sent_at - count)
            backlog.rewind(received)
        assert backlog.acked_at <= backlog.sent_at <= backlog.end_at
        assert backlog.end_at - backlog.acked_at + backlog.room == 50
    while pcm := backlog.take(7):
        at = backlog.sent_at - len(pcm) // 2
        got[2 * at :] = pcm
    assert got == given_pcm


def test_to_s16_takes_bytes_and_arrays() -> None:
    samples = array("h", [1, -2, 300])
    expected = struct.pack("<3h", 1, -2, 300)
    assert to_s16(samples) == to_s16(expected) == to_s16(bytearray(expected)) == expected


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wave_file_narrows_every_width_to_the_upper_16_bits(tmp_path: Path, width: int) -> None:
    values = [0, 0x7F00, -0x8000, 0x100, -0x100]
    if width == 1:
        frames = bytes((value >> 8) + 128 for value in values)
    else:
        frames = b"".join(
            (value << 8 * (width - 2)).to_bytes(width, "little", signed=True) for value in values
        )
    source = WaveFile.inspect(write_wave(tmp_path / "a.wav", frames, width=width))
    assert list(array("h", b"".join(source.blocks()))) == values


def test_wave_file_mixes_channels(tmp_path: Path) -> None:
    frames = struct.pack("<6h", 10, 20, -30000, -30002, 32767, 32767)
    source = WaveFile.inspect(write_wave(tmp_path / "a.wav", frames, rate=8000, channels=2))
    assert source.rate_hz == 8000
    assert list(array("h", b"".join(source.blocks()))) == [15, -30001, 32767]


def test_wave_file_comes_in_blocks(tmp_path: Path) -> None:
    source = WaveFile.inspect(write_wave(tmp_path / "a.wav", bytes(2 * 2000)))
    assert [len(block) for block in source.blocks()] == [3200, 800]


def test_wave_file_refuses_other_rates_and_files(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="got 44100"):
        WaveFile.inspect(write_wave(tmp_path / "a.wav", b"", rate=44100))
    with pytest.raises(AudioError, match="missing.wav"):
        WaveFile.inspect(tmp_path / "missing.wav")
    (tmp_path / "b.wav").write_bytes(b"no audio")
    with pytest.raises(AudioError, match="b.wav: not a readable"):
        WaveFile.inspect(tmp_path / "b.wav")
