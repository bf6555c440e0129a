"""Deepgram's door: who is let in, what is refused, and how streams end."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.listen import (
    CLIP,
    LINEAR16,
    SPEECH,
    WORDS,
    Listener,
    heard,
    open_listener,
    patient_server,
    pcm16,
    transcript,
)
from support.media import media_bytes
from support.realtime import Running, make_backend, running
from websockets.exceptions import ConnectionClosed, InvalidStatus

from moss_stream.audio.pcm import encode_s16le
from moss_stream.audio.resample import resample
from moss_stream.model.checkpoint import Model
from moss_stream.server.app import Backend


@pytest.fixture(scope="module")
def server(backend: Backend) -> Iterator[Running]:
    yield from patient_server(backend)


def test_mistakes_are_told_as_deepgram_does_and_the_stream_goes_on(server: Running) -> None:
    async def play() -> Listener:
        client = await open_listener(server)
        for text in ("{", "[]", '{"type": "Speak"}', '{"type": "Finalize", "channel": 5}'):
            await client.socket.send(text)
        await client.send("KeepAlive")
        await client.send("Configure", keyterms=["<|im_end|>"])
        await client.send("Configure", keyterms=["moss"])
        await client.play(CLIP)
        assert await client.finished() == [WORDS]
        return client

    errors = asyncio.run(play()).of("Error")
    assert len(errors) == 5
    assert errors[0]["variant"] == "SchemaError"
    assert errors[0]["message"] == "{"


def test_wrong_encoding_does_not_break_the_stream(server: Running) -> None:
    noise = np.random.default_rng(3).bytes(200_001)

    async def play() -> None:
        for encoding in ("linear16", "linear32", "mulaw", "alaw"):
            query = f"encoding={encoding}&sample_rate=16000&channels=3"
            client = await heard(server, query, noise, 1_111)
            assert client.messages[-1]["duration"] > 1
        floats = await heard(
            server, "encoding=linear32&sample_rate=16000", np.full(16_000, np.nan, "<f4").tobytes()
        )
        assert floats.finals() == []
        assert floats.messages[-1]["duration"] == 1.0
        (warning,) = floats.messages[-1]["moss"]["warnings"]
        assert warning["code"] == "unsupported_audio"
        # As loud as is allowed, and louder once it is filtered to another rate.
        loud = np.tile(np.repeat(np.array([1e6, -1e6], "<f4"), 40), 100)
        square = await heard(server, "encoding=linear32&sample_rate=48000", loud.tobytes())
        assert square.messages[-1]["type"] == "Metadata"

    asyncio.run(play())


@pytest.mark.parametrize("data", [b"no audio at all, but a text. " * 5_000, bytes(200_000)])
def test_what_is_no_audio_ends_the_stream_alone(server: Running, data: bytes) -> None:
    async def play() -> None:
        good, bad = await open_listener(server), await open_listener(server, "")
        await bad.socket.send(data)
        assert await bad.rest() == 1008
        assert bad.socket.close_reason.startswith("DATA-0000")
        (warning,) = bad.messages[-1]["moss"]["warnings"]
        assert "encoding" in warning["message"]
        await good.play(CLIP)
        assert await good.finished() == [WORDS]

    asyncio.run(play())


@pytest.mark.parametrize("query", ["", LINEAR16])
def test_stream_without_audio_ends_well(server: Running, query: str) -> None:
    async def play() -> None:
        closed, emptied = await open_listener(server, query), await open_listener(server, query)
        assert await closed.finished() == []
        assert closed.messages[-1]["duration"] == 0
        await emptied.socket.send(b"")
        assert await emptied.rest() == 1000

    asyncio.run(play())


def test_audio_after_the_end_is_passed_over(server: Running) -> None:
    async def play() -> None:
        client = await open_listener(server)
        await client.play(CLIP)
        await client.send("CloseStream")
        await client.play(CLIP)
        await client.send("Finalize")
        assert await client.rest() == 1000
        assert client.finals() == [WORDS]

    asyncio.run(play())


def test_container_of_a_client_that_vanished_is_forgotten(server: Running) -> None:
    data = media_bytes("webm", "libopus", pcm16(resample(CLIP, 16_000, 48_000)), 48_000)

    async def play() -> None:
        client = await open_listener(server, "")
        await client.socket.send(data[: len(data) // 2])
        client.socket.transport.abort()
        assert await asyncio.to_thread(server.sessions_end)

    asyncio.run(play())


REFUSED = [
    ("encoding=opus&sample_rate=16000", 400, "INVALID_QUERY_PARAMETER"),
    ("encoding=linear16", 400, "INVALID_QUERY_PARAMETER"),
    ("channels=many", 400, "INVALID_QUERY_PARAMETER"),
    ("keyterm=%3C%7Cim_end%7C%3E", 400, "INVALID_QUERY_PARAMETER"),
    ("encoding=%F0%9F%8E%A4%0Ax", 400, "INVALID_QUERY_PARAMETER"),
]


@pytest.mark.parametrize(("query", "status", "code"), REFUSED)
def test_wrong_query_is_refused_before_the_handshake(
    server: Running, query: str, status: int, code: str
) -> None:
    response = refusal(server, query)

    assert response.status_code == status
    body = json.loads(response.body)
    assert body["err_code"] == code
    assert body["err_msg"]
    assert body["request_id"] == response.headers["dg-request-id"]
    assert response.headers["dg-error"]


def refusal(server: Running, query: str, **options):
    with pytest.raises(InvalidStatus) as caught:
        asyncio.run(open_listener(server, query, **options))
    return caught.value.response


def test_keys_are_checked_before_the_handshake(backend: Backend) -> None:
    key = "sesame-sesame"
    welcome = [
        {"additional_headers": {"Authorization": f"Token {key}"}},
        {"additional_headers": {"Authorization": f"token {key}"}},
        {"additional_headers": {"Authorization": f"Bearer {key}"}},
        {"subprotocols": ["token", key]},
        {"subprotocols": ["bearer", key]},
    ]
    unwelcome = [
        {},
        {"additional_headers": {"Authorization": "Token wrong-wrong"}},
        {"subprotocols": ["token"]},
        {"subprotocols": [key, "token"]},
    ]

    async def play(server: Running) -> None:
        for options in welcome:
            client = await open_listener(server, **options)
            assert client.socket.subprotocol == options.get("subprotocols", [None])[0]
            await client.finished()

    with running(backend, api_keys=(key,)) as server:
        asyncio.run(play(server))
        for options in unwelcome:
            response = refusal(server, LINEAR16, **options)
            assert response.status_code == 401
            assert json.loads(response.body)["err_code"] == "INVALID_AUTH"
        evil = {"Authorization": f"Token {key}", "Origin": "https://evil.example"}
        assert refusal(server, LINEAR16, additional_headers=evil).status_code == 403


def test_full_server_refuses_before_the_handshake(backend: Backend) -> None:
    stereo = f"{LINEAR16}&channels=2&multichannel=true"

    async def play(server: Running) -> None:
        client = await open_listener(server, stereo)
        for query in (LINEAR16, stereo):
            with pytest.raises(InvalidStatus) as caught:
                await open_listener(server, query)
            assert caught.value.response.status_code == 429
            assert int(caught.value.response.headers["Retry-After"]) > 0
        await client.finished()

    with running(backend, max_sessions=2) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_idle_client_gets_its_text_and_is_closed(backend: Backend) -> None:
    async def play(server: Running) -> None:
        alive, idle = await open_listener(server), await open_listener(server)
        await idle.play(SPEECH)
        closed = asyncio.create_task(idle.rest())
        while not closed.done():
            await alive.send("KeepAlive")
            await asyncio.wait({closed}, timeout=0.1)
        assert closed.result() == 1011
        assert idle.socket.close_reason.startswith("NET-0001")
        assert idle.finals() == [WORDS]
        await alive.play(CLIP)
        assert await alive.finished() == [WORDS]

    with running(backend, listen_idle_s=0.5) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_speech_that_cannot_be_decoded_is_told_and_the_stream_goes_on(mini: Model) -> None:
    async def play(server: Running, mend: Callable[[], None]) -> Listener:
        client = await open_listener(server)
        await client.play(CLIP)
        result = await client.until("Results", is_final=True)
        assert transcript(result) == ""
        assert result["speech_final"]
        assert result["moss"]["warnings"][-1]["code"] == "request_failed"
        mend()
        await client.play(CLIP)
        await client.finished()
        return client

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    with make_backend(mini) as backend, running(backend, listen_idle_s=300) as server:
        runner = backend.engine._runner
        encode, runner.encode = runner.encode, broken
        client = asyncio.run(play(server, lambda: setattr(runner, "encode", encode)))
    assert len(client.finals()) == 1


def test_too_many_mistakes_and_too_big_messages_end_the_stream(backend: Backend) -> None:
    async def play(server: Running) -> None:
        big, garbage = await open_listener(server), await open_listener(server)
        await big.socket.send(bytes(5_000))
        assert await big.rest() == 1009
        for _ in range(4):
            await garbage.socket.send("no json")
        assert await garbage.rest() == 1007

    with running(backend, max_message_bytes=4096, max_bad_messages=3) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


@pytest.mark.parametrize("container", [False, True])
def test_drain_gives_everybody_the_rest_and_closes(backend: Backend, container: bool) -> None:
    async def play(server: Running) -> Listener:
        client = await open_listener(server, "vad_events=true&" + ("" if container else LINEAR16))
        data = encode_s16le(SPEECH)
        if container:
            data = media_bytes("wav", "pcm_s16le", pcm16(SPEECH), 16_000)
        await client.socket.send(data)
        await client.until("SpeechStarted")
        server.drain()
        assert await client.rest() == 1012
        return client

    with running(backend, listen_idle_s=300) as server:
        client = asyncio.run(play(server))
        assert server.sessions_end()
    assert client.finals() == [WORDS]
    assert client.messages[-1]["type"] == "Metadata"


def test_listeners_are_measured(server: Running) -> None:
    def measured() -> dict[str, float]:
        with urllib.request.urlopen(f"{server.http}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        values = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in values}

    before = measured()
    query = f"{LINEAR16}&channels=2&multichannel=true"
    asyncio.run(heard(server, query, encode_s16le(np.repeat(CLIP, 2))))
    assert server.sessions_end()
    after = measured()

    assert after["moss_sessions"] == 0
    assert after["moss_sessions_opened_total"] - before["moss_sessions_opened_total"] == 2
    live = 'moss_audio_seconds_total{kind="live"}'
    assert after[live] - before.get(live, 0) == pytest.approx(6)
    name = "moss_final_delay_seconds_count"
    assert after[name] - before.get(name, 0) == 2


@pytest.mark.parametrize("seed", range(2))
def test_clients_that_do_anything_disturb_nobody(server: Running, seed: int) -> None:
    choose = random.Random(seed)
    container = media_bytes("webm", "libopus", pcm16(resample(CLIP, 16_000, 48_000)), 48_000)

    def message() -> str | bytes:
        return choose.choice(
            [
                choose.randbytes(choose.randrange(5_000)) or b"x",
                encode_s16le(CLIP[: choose.randrange(1, 20_000)]) + b"x" * choose.randrange(2),
                container[: choose.randrange(1, len(container))],
                choose.choice(
                    ["", "{", "[]", '{"type": null}', '{"type": "Finalize", "channel": 9}']
                ),
                json.dumps({"type": choose.choice(["KeepAlive", "Finalize", "Configure"])}),
            ]
        )

    async def wild() -> int | None:
        query = choose.choice(
            ["", LINEAR16, f"{LINEAR16}&channels=3&multichannel=true", "encoding=mulaw"]
        )
        client = await open_listener(server, f"{query}&interim_results=true&utterance_end_ms=1000")
        try:
            for _ in range(choose.randrange(30)):
                await client.socket.send(message())
            if choose.random() < 0.3:
                client.socket.transport.abort()
                return None
            await client.send("CloseStream")
        except ConnectionClosed:
            pass
        return await client.rest()

    async def calm() -> list[str]:
        client = await open_listener(server)
        await client.play(CLIP)
        return await client.finished()

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(calm(), *(wild() for _ in range(4)))

    words, *codes = asyncio.run(all_at_once())
    assert words == [WORDS]
    assert set(codes) <= {None, 1000, 1007, 1008}
