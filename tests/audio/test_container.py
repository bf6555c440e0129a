"""Containers whose bytes come bit by bit, through a pipe from another thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.media import media_bytes, tone, wav_bytes

from moss_stream.audio.container import PROBE_BYTES, Block, BytePipe, decode_stream
from moss_stream.errors import UnsupportedAudio

PATIENCE_S = 30


class Decoding:
    """A decoder in its thread, and what came out of it."""

    def __init__(self, format_name: str | None = None) -> None:
        self.blocks: list[Block] = []
        self.damages: list[str] = []
        self.error: UnsupportedAudio | None = None
        self.pipe = BytePipe(self._note)
        self._is_over = False
        self._changed = threading.Condition()
        self._format_name = format_name
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            for block in decode_stream(self.pipe, self._format_name, self.damages.append):
                self.blocks.append(block)
        except UnsupportedAudio as error:
            self.error = error
        self._is_over = True
        self._note()

    def settle(self) -> None:
        """Wait until everything written is decoded as far as it can be."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.pipe.is_starved or self._is_over, PATIENCE_S)

    def end(self) -> None:
        self.pipe.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    @property
    def samples(self) -> np.ndarray:
        """All channels so far: [channels, n]."""
        return np.concatenate([block.channels for block in self.blocks], axis=1)


def decoded(data: bytes, piece_bytes: int, format_name: str | None = None) -> Decoding:
    decoding = Decoding(format_name)
    for start in range(0, len(data), piece_bytes):
        decoding.pipe.write(data[start : start + piece_bytes])
    decoding.end()
    return decoding


CONTAINERS = [
    ("webm", "libopus", 48_000, "s16"),
    ("ogg", "libopus", 48_000, "s16"),
    ("wav", "pcm_s16le", 16_000, "s16"),
    ("mp3", "libmp3lame", 44_100, "s16p"),
    ("flac", "flac", 16_000, "s16"),
]


@pytest.mark.parametrize(("container", "codec", "rate_hz", "sample_format"), CONTAINERS)
def test_container_is_decoded_however_it_is_cut(
    container: str, codec: str, rate_hz: int, sample_format: str
) -> None:
    data = media_bytes(container, codec, tone(rate_hz, 2.0), rate_hz, sample_format=sample_format)
    whole = decoded(data, len(data))
    crumbs = decoded(data, 7)

    assert whole.error is None
    assert {block.rate_hz for block in whole.blocks} == {rate_hz}
    assert whole.samples.shape[1] == pytest.approx(2 * rate_hz, abs=0.1 * rate_hz)
    assert np.sqrt(np.mean(whole.samples**2)) == pytest.approx(0.35, abs=0.03)
    assert np.array_equal(whole.samples, crumbs.samples)


@pytest.mark.parametrize(("container", "codec", "rate_hz", "sample_format"), CONTAINERS)
def test_container_is_decoded_while_it_comes(
    container: str, codec: str, rate_hz: int, sample_format: str
) -> None:
    seconds = 20
    noise = np.random.default_rng(7).integers(-9_000, 9_000, seconds * rate_hz).astype(np.int16)
    data = media_bytes(container, codec, noise, rate_hz, sample_format=sample_format)
    decoding = Decoding()
    decoding.pipe.write(data[: len(data) // 2])
    decoding.settle()
    half_s = sum(block.channels.shape[1] for block in decoding.blocks) / rate_hz
    decoding.end()

    assert half_s == pytest.approx(seconds / 2, abs=1.5)


@pytest.mark.parametrize("rate_hz", [8_000, 44_100])
def test_wav_is_decoded_at_once(rate_hz: int) -> None:
    decoding = Decoding()
    decoding.pipe.write(wav_bytes(tone(rate_hz, 5.0))[:rate_hz])
    decoding.settle()
    decoded_s = decoding.samples.shape[1] / rate_hz
    decoding.end()

    assert decoded_s == pytest.approx(0.5, abs=0.15)


def test_container_keeps_channels_apart() -> None:
    left, right = tone(16_000, 1.0, 300.0), tone(16_000, 1.0, 500.0)
    decoding = decoded(wav_bytes(np.stack([left, right])), 100)

    assert np.array_equal(decoding.samples, np.stack([left, right]) / np.float32(32_768))


def test_container_of_unknown_length_is_decoded() -> None:
    data = bytearray(wav_bytes(tone(16_000, 1.0)))
    data[4:8] = b"\xff\xff\xff\xff"
    at = data.index(b"data")
    data[at + 4 : at + 8] = b"\xff\xff\xff\xff"

    assert decoded(bytes(data), 999).samples.shape == (1, 16_000)


def test_container_that_is_told_is_not_guessed() -> None:
    data = media_bytes("ogg", "libopus", tone(48_000, 1.0), 48_000)

    assert decoded(data, 50, "ogg").samples.shape[1] >= 48_000
    assert decoded(data, 50, "flac").error is not None


def test_audio_beside_video_is_decoded() -> None:
    data = media_bytes("matroska", "pcm_s16le", tone(16_000, 2.0), 16_000, with_video=True)

    assert decoded(data, 500).samples.shape == (1, 32_000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"this is a text, and no audio at all. " * 100,
        bytes(100_000),
        np.random.default_rng(1).bytes(200_000),
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n" * 50,
        wav_bytes(tone(16_000, 1.0))[:30],
        b"\x89PNG\r\n\x1a\n" + bytes(5_000),
    ],
    ids=["empty", "byte", "text", "zeros", "noise", "playlist", "header", "picture"],
)
def test_what_is_no_audio_is_refused(data: bytes) -> None:
    decoding = decoded(data, 4_096)

    assert isinstance(decoding.error, UnsupportedAudio)
    assert decoding.error.field == "audio"
    assert decoding.blocks == []


def test_noise_is_refused_without_waiting_for_its_end() -> None:
    decoding = Decoding()
    decoding.pipe.write(np.random.default_rng(1).bytes(4 * PROBE_BYTES))
    decoding.settle()

    assert decoding.error is not None
    assert not decoding.pipe.is_starved


def test_damage_in_the_middle_is_told_and_passed_over() -> None:
    data = bytearray(
        media_bytes("mp3", "libmp3lame", tone(44_100, 4.0), 44_100, sample_format="s16p")
    )
    middle = len(data) // 2
    data[middle : middle + 3_000] = np.random.default_rng(1).bytes(3_000)
    decoding = decoded(bytes(data), 500)

    assert decoding.error is None
    assert decoding.damages
    assert 3 < decoding.samples.shape[1] / 44_100 < 4.1


def test_sound_that_is_no_number_becomes_silence() -> None:
    data = bytearray(
        media_bytes("wav", "pcm_f32le", tone(16_000, 1.0), 16_000, sample_format="flt")
    )
    at = data.index(b"data") + 8
    data[at : at + 12] = np.array([np.nan, np.inf, 1e30], "<f4").tobytes()
    samples = decoded(bytes(data), 4_000).samples[0]

    assert np.array_equal(samples[:3], np.zeros(3))
    assert np.all(np.isfinite(samples))
    assert np.any(samples)


def test_reader_that_waits_takes_no_memory() -> None:
    pipe = BytePipe(lambda: None)
    pipe.write(b"abc")
    pipe.write(b"")
    pipe.write(b"defg")
    assert pipe.num_bytes == 7
    assert [pipe.read(2), pipe.read(2), pipe.read(10)] == [b"ab", b"c", b"defg"]
    assert pipe.num_bytes == 0
    pipe.close()
    assert pipe.read(10) == b""


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_broken_bytes_never_break_more_than_their_stream(data: st.DataObject) -> None:
    container, codec, rate_hz, sample_format = data.draw(st.sampled_from(CONTAINERS))
    good = media_bytes(container, codec, tone(rate_hz, 0.5), rate_hz, sample_format=sample_format)
    broken = bytearray(good)
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=20)):
        broken[at] = data.draw(st.integers(0, 255))
    decoding = decoded(bytes(broken[: data.draw(st.integers(0, len(good)))]), 333)

    assert decoding.error is not None or decoding.blocks
