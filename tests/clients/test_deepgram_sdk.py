"""The unmodified Deepgram SDK against the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from deepgram import AsyncDeepgramClient, DeepgramClient, DeepgramClientEnvironment
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.listen.v1.types import (
    ListenV1Metadata,
    ListenV1Results,
    ListenV1SpeechStarted,
    ListenV1UtteranceEnd,
)
from support.clips import load_clip
from support.media import media_bytes
from support.realtime import PATIENCE_S, Running, make_backend, running

from moss_stream.audio.pcm import encode_s16le
from moss_stream.model.checkpoint import Model
from moss_stream.server.app import Backend

SPEECH = load_clip("mix_duo_002")[: 16_000 * 2]
SILENCE = np.zeros(32_000, np.float32)
WORDS = "Thank God for that."
DUO = load_clip("mix_duo_006")
RAW = {"model": "nova-3", "encoding": "linear16", "sample_rate": 16_000, "channels": 1}


@pytest.fixture(scope="module")
def backend(mini: Model) -> Iterator[Backend]:
    with make_backend(mini) as made:
        yield made


@pytest.fixture(scope="module")
def server(backend: Backend) -> Iterator[Running]:
    with running(backend, listen_idle_s=300) as shared:
        yield shared
        assert shared.sessions_end()


def addresses(server: Running) -> DeepgramClientEnvironment:
    return DeepgramClientEnvironment(
        base=server.http,
        production=server.http.replace("http", "ws"),
        agent=server.http.replace("http", "ws"),
        agent_rest=server.http,
    )


def client_of(server: Running, key: str = "none") -> AsyncDeepgramClient:
    return AsyncDeepgramClient(api_key=key, environment=addresses(server))


async def play(connection: Any, samples: np.ndarray, piece_samples: int = 3_200) -> None:
    for start in range(0, len(samples), piece_samples):
        await connection.send_media(encode_s16le(samples[start : start + piece_samples]))


async def until(connection: Any, kind: type, **fields: Any) -> Any:
    """Read up to a message of a kind."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            message = await connection.recv()
            if isinstance(message, kind) and all(
                getattr(message, name) == value for name, value in fields.items()
            ):
                return message


async def rest(connection: Any) -> list[Any]:
    """Close the stream and read everything that is left."""
    await connection.send_close_stream()
    async with asyncio.timeout(PATIENCE_S):
        return [message async for message in connection]


def transcript(result: Any) -> str:
    return result.channel.alternatives[0].transcript


def test_sdk_gets_interim_and_final_results(server: Running) -> None:
    async def story() -> None:
        options = RAW | {
            "interim_results": True,
            "vad_events": True,
            "utterance_end_ms": 1000,
            "endpointing": 300,
            "smart_format": True,
            "punctuate": True,
            "language": "en-US",
        }
        async with client_of(server).listen.v1.connect(**options) as connection:
            await play(connection, SPEECH)
            assert (await until(connection, ListenV1SpeechStarted)).timestamp < 1
            assert transcript(await until(connection, ListenV1Results, is_final=False))
            await play(connection, SILENCE)
            final = await until(connection, ListenV1Results, is_final=True, speech_final=True)
            assert transcript(final) == WORDS
            assert (await until(connection, ListenV1UtteranceEnd)).last_word_end < 2
            *_, metadata = await rest(connection)
            assert isinstance(metadata, ListenV1Metadata)
            assert metadata.duration == 4.0
            assert metadata.request_id == final.metadata.request_id

    asyncio.run(story())


def test_sdk_gets_words_with_speakers(server: Running) -> None:
    async def story() -> list[Any]:
        async with client_of(server).listen.v1.connect(**RAW, diarize=True) as connection:
            await play(connection, DUO)
            messages = await rest(connection)
        results = [m for m in messages if isinstance(m, ListenV1Results) and m.is_final]
        return [word for result in results for word in result.channel.alternatives[0].words]

    words = asyncio.run(story())
    assert {word.speaker for word in words} == {0, 1}
    assert [word.start for word in words] == sorted(word.start for word in words)
    assert words[-1].end < len(DUO) / 16_000
    assert all(word.punctuated_word for word in words)


def test_sdk_finalizes(server: Running) -> None:
    async def story() -> None:
        async with client_of(server).listen.v1.connect(**RAW) as connection:
            await play(connection, SPEECH)
            await connection.send_finalize()
            result = await until(connection, ListenV1Results, from_finalize=True)
            assert transcript(result) == WORDS
            assert result.is_final
            await play(connection, SPEECH)
            assert any(isinstance(message, ListenV1Results) for message in await rest(connection))

    asyncio.run(story())


def test_sdk_stays_with_keep_alives_and_is_closed_without(backend: Backend) -> None:
    async def story(server: Running) -> None:
        async with client_of(server).listen.v1.connect(**RAW) as connection:
            closed = asyncio.Event()
            errors: list[Any] = []
            connection.on(EventType.CLOSE, lambda _: closed.set())
            connection.on(EventType.ERROR, errors.append)
            listening = asyncio.create_task(connection.start_listening())
            for _ in range(15):
                await connection.send_keep_alive()
                await asyncio.wait({listening}, timeout=0.1)
            assert not closed.is_set()
            async with asyncio.timeout(PATIENCE_S):
                await closed.wait()
                await listening
        assert "1011" in str(errors[0])
        assert "NET-0001" in str(errors[0])

    with running(backend, listen_idle_s=1.0) as server:
        asyncio.run(story(server))


def test_sdk_streams_a_container(server: Running) -> None:
    samples = np.frombuffer(encode_s16le(np.concatenate((SPEECH, SILENCE))), "<i2")
    data = media_bytes("webm", "libopus", np.repeat(samples, 3), 48_000)

    async def story() -> list[Any]:
        async with client_of(server).listen.v1.connect(model="nova-3") as connection:
            for start in range(0, len(data), 1_000):
                await connection.send_media(data[start : start + 1_000])
            return await rest(connection)

    finals = [transcript(m) for m in asyncio.run(story()) if isinstance(m, ListenV1Results)]
    assert finals == [WORDS]


def test_synchronous_sdk_gets_results(server: Running) -> None:
    client = DeepgramClient(api_key="none", environment=addresses(server))
    messages: list[Any] = []
    with client.listen.v1.connect(**RAW, keyterm=["moss", "stream"]) as connection:
        connection.on(EventType.MESSAGE, messages.append)
        listening = threading.Thread(target=connection.start_listening)
        listening.start()
        connection.send_media(encode_s16le(np.concatenate((SPEECH, SILENCE))))
        connection.send_close_stream()
        listening.join(PATIENCE_S)

    assert [transcript(m) for m in messages if isinstance(m, ListenV1Results)] == [WORDS]
    assert isinstance(messages[-1], ListenV1Metadata)


def test_sdk_is_told_that_its_key_is_wrong(backend: Backend) -> None:
    async def story(server: Running) -> None:
        with pytest.raises(ApiError) as caught:
            async with client_of(server, "wrong-wrong").listen.v1.connect(**RAW):
                pass
        assert caught.value.status_code == 401
        async with client_of(server, "sesame-sesame").listen.v1.connect(**RAW) as connection:
            (metadata,) = await rest(connection)
            assert isinstance(metadata, ListenV1Metadata)

    with running(backend, api_keys=("sesame-sesame",)) as server:
        asyncio.run(story(server))
