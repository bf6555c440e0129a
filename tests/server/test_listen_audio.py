"""Audio of Deepgram's door on its way to the streams: order, room, ends and errors."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.media import media_bytes, tone, wav_bytes

from moss_stream.audio.container import Block
from moss_stream.audio.pcm import Encoding, encode_s16le
from moss_stream.errors import UnsupportedAudio
from moss_stream.server.listen_audio import MAX_PENDING_BYTES, BareAudio, ContainerAudio

PATIENCE_S = 30


class Ear:
    """Takes audio, once it is let."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.warnings: list[str] = []
        self.error: Exception | None = None
        self.num_ends = 0
        self.is_over = asyncio.Event()
        self.has_room = asyncio.Event()
        self.has_room.set()
        self.wants_more = True

    async def heard(self, block: Block) -> bool:
        await self.has_room.wait()
        self.blocks.append(block)
        return self.wants_more

    def ended(self, error: Exception | None) -> None:
        self.num_ends += 1
        self.error = error
        self.is_over.set()

    def warn(self, code: str, message: str) -> None:
        self.warnings.append(code)

    @property
    def samples(self) -> np.ndarray:
        return np.concatenate([block.channels for block in self.blocks], axis=1)


def play(story) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await story()

    asyncio.run(bounded())


@pytest.mark.parametrize("piece_bytes", [1, 5, 10_000])
def test_bare_samples_are_divided_among_channels_however_they_are_cut(piece_bytes: int) -> None:
    left, right = np.arange(100, dtype="<i2"), np.arange(100, 200, dtype="<i2")
    data = np.stack([left, right], axis=1).tobytes() + b"x"

    async def story() -> None:
        ear = Ear()
        audio = BareAudio(Encoding.S16LE, 8_000, 2, ear)
        for start in range(0, len(data), piece_bytes):
            await audio.feed(data[start : start + piece_bytes])
        audio.end()
        audio.end()
        assert np.array_equal(ear.samples * 32_768, np.stack([left, right]))
        assert (ear.num_ends, ear.error) == (1, None)

    play(story)


def test_bare_samples_come_in_pieces_of_at_most_a_second() -> None:
    async def story() -> None:
        ear = Ear()
        await BareAudio(Encoding.MULAW, 8_000, 1, ear).feed(bytes(20_000))
        assert [block.channels.shape for block in ear.blocks] == [
            (1, 8_000),
            (1, 8_000),
            (1, 4_000),
        ]

    play(story)


def test_floats_that_are_no_samples_are_silence_and_told_once() -> None:
    async def story() -> None:
        ear = Ear()
        audio = BareAudio(Encoding.F32LE, 16_000, 1, ear)
        for value in (np.nan, np.inf, 1e20):
            await audio.feed(np.full(10, value, "<f4").tobytes())
        await audio.feed(np.full(10, 0.5, "<f4").tobytes())
        assert np.array_equal(ear.samples[0], [0] * 30 + [0.5] * 10)
        assert ear.warnings == ["unsupported_audio"]

    play(story)


def test_container_settles_with_all_that_can_be_decoded() -> None:
    data = media_bytes("webm", "libopus", tone(48_000, 4.0), 48_000)

    async def story() -> None:
        ear = Ear()
        audio = ContainerAudio(None, ear)
        await audio.settle()
        await audio.feed(data[: len(data) // 2])
        await audio.settle()
        assert ear.samples.shape[1] / 48_000 == pytest.approx(2, abs=0.7)
        await audio.feed(data[len(data) // 2 :])
        audio.end()
        await ear.is_over.wait()
        assert ear.samples.shape[1] / 48_000 == pytest.approx(4, abs=0.1)
        assert (ear.num_ends, ear.error) == (1, None)

    play(story)


def test_container_is_read_no_faster_than_it_is_heard() -> None:
    data = wav_bytes(tone(16_000, 60.0))
    assert len(data) > 3 * MAX_PENDING_BYTES

    async def story() -> None:
        ear = Ear()
        ear.has_room.clear()
        audio = ContainerAudio("wav", ear)
        feeding = asyncio.create_task(audio.feed(data))
        done, _ = await asyncio.wait({feeding}, timeout=0.2)
        assert not done
        assert ear.blocks == []
        ear.has_room.set()
        await feeding
        audio.end()
        await ear.is_over.wait()
        assert ear.samples.shape == (1, 960_000)

    play(story)


def test_container_that_is_none_ends_with_an_error() -> None:
    async def story() -> None:
        ear = Ear()
        audio = ContainerAudio(None, ear)
        await audio.feed(b"no audio at all, but a text. " * 10_000)
        await ear.is_over.wait()
        assert isinstance(ear.error, UnsupportedAudio)
        await audio.feed(bytes(2 * MAX_PENDING_BYTES))  # nobody waits for what nobody reads
        await audio.settle()
        audio.end()
        assert ear.num_ends == 1

    play(story)


def test_damage_of_a_container_is_told_once() -> None:
    data = bytearray(
        media_bytes("mp3", "libmp3lame", tone(44_100, 8.0), 44_100, sample_format="s16p")
    )
    for start in (len(data) // 3, len(data) // 2):
        data[start : start + 3_000] = np.random.default_rng(1).bytes(3_000)

    async def story() -> None:
        ear = Ear()
        audio = ContainerAudio(None, ear)
        await audio.feed(bytes(data))
        audio.end()
        await ear.is_over.wait()
        assert ear.warnings == ["media_damaged"]
        assert ear.error is None

    play(story)


def test_container_ends_its_thread_once_nobody_listens() -> None:
    # Hours of silence fit in what is read of a client at once.
    data = media_bytes("flac", "flac", np.zeros(16_000 * 600, np.int16), 16_000)
    assert len(data) < MAX_PENDING_BYTES

    async def story() -> None:
        ear = Ear()
        ear.wants_more = False
        audio = ContainerAudio("flac", ear)
        await audio.feed(data)
        await ear.is_over.wait()
        assert (len(ear.blocks), ear.num_ends, ear.error) == (1, 1, None)

    play(story)


def test_container_that_is_stopped_hands_over_nothing_more() -> None:
    async def story() -> None:
        ear = Ear()
        ear.has_room.clear()
        audio = ContainerAudio("wav", ear)
        await audio.feed(wav_bytes(tone(16_000, 2.0)))
        await audio.settle()
        audio.stop()
        assert (ear.num_ends, ear.error) == (1, None)
        ear.wants_more = False
        ear.has_room.set()
        await asyncio.sleep(0.1)
        assert len(ear.blocks) <= 1  # one may have been on its way
        assert ear.num_ends == 1

    play(story)


def test_container_without_any_bytes_ends_at_once() -> None:
    async def story() -> None:
        ear = Ear()
        audio = ContainerAudio(None, ear)
        audio.end()
        audio.end()
        assert (ear.num_ends, ear.error) == (1, None)

    play(story)


def test_container_that_is_forgotten_ends_its_thread() -> None:
    data = wav_bytes(tone(16_000, 2.0))

    async def story() -> None:
        ear = Ear()
        audio = ContainerAudio(None, ear)
        await audio.feed(data)
        audio.end()

    play(story)


def test_bare_samples_warn_of_another_encoding() -> None:
    loud = encode_s16le(np.full(32_000, 2.0, np.float32))

    async def story() -> None:
        ear = Ear()
        await BareAudio(Encoding.S16LE, 16_000, 1, ear).feed(loud)
        assert ear.warnings == ["clipping"]

    play(story)
