"""Deepgram's door over real sockets, with the shipped checkpoint: what is said becomes results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from support.clips import load_clip
from support.listen import (
    CLIP,
    LINEAR16,
    SPEECH,
    TAIL,
    WORDS,
    Listener,
    heard,
    open_listener,
    patient_server,
    pcm16,
    transcript,
)
from support.media import media_bytes
from support.realtime import Running

from moss_stream.audio.pcm import encode_mulaw, encode_s16le
from moss_stream.audio.resample import resample
from moss_stream.server.app import Backend

OTHER = load_clip("asterisk_human_003")


@pytest.fixture(scope="module")
def server(backend: Backend) -> Iterator[Running]:
    yield from patient_server(backend)


def test_speech_becomes_words(server: Running) -> None:
    client = asyncio.run(heard(server, f"{LINEAR16}&diarize=true", encode_s16le(CLIP)))

    (result,) = client.results()
    (alternative,) = result["channel"]["alternatives"]
    words = alternative["words"]
    assert alternative["transcript"] == WORDS
    assert [word["word"] for word in words] == ["thank", "god", "for", "that"]
    assert [word["punctuated_word"] for word in words] == WORDS.split()
    assert {word["speaker"] for word in words} == {0}
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert result["start"] <= times[0] < times[-1] <= result["start"] + result["duration"] < 3
    metadata = client.messages[-1]
    assert metadata["duration"] == 3.0
    assert metadata["request_id"] == result["metadata"]["request_id"]
    assert client.socket.response.headers["dg-request-id"] == metadata["request_id"]


@pytest.mark.parametrize("rate_hz", [8_000, 24_000, 44_100, 48_000])
def test_words_do_not_depend_on_rate_and_pieces(server: Running, rate_hz: int) -> None:
    data = encode_s16le(resample(CLIP, 16_000, rate_hz))
    query = f"encoding=linear16&sample_rate={rate_hz}"

    async def both() -> list[list[str]]:
        clients = [await heard(server, query, data, size) for size in (len(data), 3_333)]
        return [client.finals() for client in clients]

    whole, crumbs = asyncio.run(both())
    assert whole == crumbs
    assert rate_hz == 8_000 or whole == [WORDS]


def test_other_encodings_are_heard(server: Running) -> None:
    async def play() -> list[list[str]]:
        telephone = encode_mulaw(resample(CLIP, 16_000, 8_000))
        floats = CLIP.astype("<f4").tobytes()
        clients = [
            await heard(server, "encoding=mulaw", telephone),
            await heard(server, "encoding=linear32&sample_rate=16000", floats, 1_001),
        ]
        return [client.finals() for client in clients]

    telephone, floats = asyncio.run(play())
    assert len(telephone) == 1
    assert floats == [WORDS]


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz", "sample_format"),
    [
        ("webm", "libopus", 48_000, "s16"),
        ("ogg", "libopus", 48_000, "s16"),
        ("wav", "pcm_s16le", 16_000, "s16"),
        ("mp3", "libmp3lame", 44_100, "s16p"),
    ],
)
def test_containers_are_heard(
    server: Running, container: str, codec: str, rate_hz: int, sample_format: str
) -> None:
    samples = pcm16(resample(CLIP, 16_000, rate_hz))
    data = media_bytes(container, codec, samples, rate_hz, sample_format=sample_format)

    client = asyncio.run(heard(server, "model=nova-3", data, 700))
    assert client.finals() == [WORDS]
    assert client.messages[-1]["duration"] == pytest.approx(3, abs=0.2)


def test_container_gets_text_before_its_end(server: Running) -> None:
    samples = pcm16(np.concatenate((CLIP, np.zeros(32_000, np.float32))))
    data = media_bytes("wav", "pcm_s16le", samples, 16_000)

    async def play() -> None:
        client = await open_listener(server, "interim_results=true")
        await client.socket.send(data[: len(data) - 5_000])
        result = await client.until("Results", is_final=True)
        assert transcript(result) == WORDS
        await client.send("Finalize")
        await client.until("Results", from_finalize=True)
        await client.finished()

    asyncio.run(play())


def test_growing_speech_is_told(server: Running) -> None:
    async def play() -> Listener:
        query = f"{LINEAR16}&interim_results=true&vad_events=true&utterance_end_ms=1000"
        client = await open_listener(server, query)
        await client.play(SPEECH)
        await client.until("Results", is_final=False)
        await client.play(np.concatenate((TAIL, TAIL)))
        await client.until("Results", is_final=True, speech_final=True)
        end = await client.until("UtteranceEnd")
        assert 1 < end["last_word_end"] < 2
        await client.finished()
        return client

    client = asyncio.run(play())
    assert client.finals() == [WORDS]
    assert client.messages[0]["type"] == "SpeechStarted"
    assert client.messages[0]["channel"] == [0, 1]


def test_finalize_brings_the_text_at_once_and_the_stream_goes_on(server: Running) -> None:
    async def play() -> Listener:
        client = await open_listener(server)
        await client.play(SPEECH)
        await client.send("Finalize")
        result = await client.until("Results", from_finalize=True)
        assert transcript(result) == WORDS
        await client.send("Finalize")
        assert transcript(await client.until("Results", from_finalize=True)) == ""
        await client.play(CLIP)
        await client.finished()
        return client

    first, second = asyncio.run(play()).finals()
    assert first == WORDS
    assert second


def test_channels_are_transcribed_apart(server: Running) -> None:
    length = max(len(CLIP), len(OTHER))
    both = np.stack([np.pad(samples, (0, length - len(samples))) for samples in (CLIP, OTHER)])
    data = encode_s16le(both.T.reshape(-1))

    async def play() -> tuple[Listener, Listener]:
        query = f"{LINEAR16}&channels=2&multichannel=true"
        return (
            await heard(server, query, data, 1_001),
            await heard(server, LINEAR16, encode_s16le(OTHER)),
        )

    client, alone = asyncio.run(play())
    assert client.finals(0) == [WORDS]
    assert client.finals(1) == alone.finals()
    assert {tuple(result["channel_index"]) for result in client.of("Results")} == {(0, 2), (1, 2)}


def test_channels_are_mixed_unless_they_are_wanted(server: Running) -> None:
    data = encode_s16le(np.repeat(CLIP, 2))

    client = asyncio.run(heard(server, f"{LINEAR16}&channels=2", data))
    assert client.finals() == [WORDS]
    assert client.messages[-1]["channels"] == 2


def test_container_with_other_channels_than_said_is_heard(server: Running) -> None:
    data = media_bytes("wav", "pcm_s16le", pcm16(CLIP), 16_000)

    client = asyncio.run(heard(server, "multichannel=true", data))
    assert client.finals(0) == [WORDS]
    assert client.finals(1) == []
    codes = [w["code"] for m in client.messages for w in m.get("moss", {}).get("warnings", [])]
    assert "channels_mismatch" in codes
