"""The server over real sockets, with the shipped checkpoint."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import numpy as np
import pytest
from support.clips import load_clip
from support.realtime import Client, Running, open_client, running
from websockets.exceptions import InvalidStatus

from moss_stream.audio.pcm import encode_mulaw, encode_s16le
from moss_stream.audio.resample import resample
from moss_stream.server.app import Backend

TRANSCRIPTION = "conversation.item.input_audio_transcription"
SPEECH = load_clip("mix_duo_002")[: 16_000 * 2]
TAIL = np.zeros(16_000, np.float32)
CLIP = np.concatenate((SPEECH, TAIL))
WORDS = "Thank God for that."


async def finished(client: Client) -> list[str]:
    """Say that no more comes, read the rest; returns the transcripts."""
    await client.send("moss.finish")
    assert await client.rest() == 1000
    assert client.seqs() == sorted(set(client.seqs()))
    return transcripts(client)


def transcripts(client: Client) -> list[str]:
    return [event["transcript"] for event in client.of(f"{TRANSCRIPTION}.completed")]


def test_speech_becomes_text(server: Running) -> None:
    async def play() -> Client:
        client = await open_client(server)
        await client.append(CLIP)
        assert await finished(client) == [WORDS]
        return client

    client = asyncio.run(play())
    assert client.kinds()[0] == "session.created"
    assert client.seqs() == list(range(1, len(client.events) + 1))
    (segment,) = client.of(f"{TRANSCRIPTION}.segment")
    assert segment["speaker"] == "S01"
    assert 0 < segment["start"] < segment["end"] < 2


def test_text_does_not_depend_on_how_the_audio_is_sent(server: Running) -> None:
    samples = resample(CLIP, 16_000, 48_000)

    async def whole() -> list[str]:
        client = await open_client(server)
        form = {"type": "audio/pcm", "rate": 48_000}
        await client.update(audio={"input": {"format": form}})
        await client.socket.send(encode_s16le(samples))
        return await finished(client)

    async def crumbs() -> list[str]:
        client = await open_client(server)
        form = {"type": "audio/pcm", "rate": 48_000}
        await client.update(audio={"input": {"format": form}})
        data = encode_s16le(samples)
        for start in range(0, len(data), 3_333):
            await client.socket.send(data[start : start + 3_333])
        return await finished(client)

    async def telephone() -> list[str]:
        client = await open_client(server)
        await client.update(audio={"input": {"format": {"type": "audio/pcmu"}}})
        await client.socket.send(encode_mulaw(resample(CLIP, 16_000, 8_000)))
        return await finished(client)

    assert asyncio.run(whole()) == asyncio.run(crumbs()) == [WORDS]
    assert len(asyncio.run(telephone())) == 1


def test_client_ends_turns_itself(server: Running) -> None:
    async def play() -> Client:
        client = await open_client(server)
        await client.update(audio={"input": {"turn_detection": None}})
        await client.append(CLIP)
        await client.send("input_audio_buffer.commit")
        await client.until(f"{TRANSCRIPTION}.completed")
        await client.send("input_audio_buffer.commit")
        await client.until("error")
        await finished(client)
        return client

    client = asyncio.run(play())
    assert transcripts(client) == [WORDS]
    assert "input_audio_buffer.speech_started" not in client.kinds()


def test_cleared_audio_is_not_transcribed(server: Running) -> None:
    async def play() -> Client:
        client = await open_client(server)
        await client.update(audio={"input": {"turn_detection": None}})
        await client.append(SPEECH)
        await client.send("input_audio_buffer.clear")
        await client.until("input_audio_buffer.cleared")
        await finished(client)
        return client

    client = asyncio.run(play())
    assert transcripts(client) == []
    assert [gap["reason"] for gap in client.of("moss.gap")] == ["cleared"]


def test_two_clients_do_not_disturb_each_other(server: Running) -> None:
    async def one() -> list[str]:
        client = await open_client(server)
        await client.append(CLIP)
        return await finished(client)

    async def both() -> list[list[str]]:
        return list(await asyncio.gather(one(), one(), one()))

    assert asyncio.run(both()) == [[WORDS]] * 3


def test_session_comes_back_on_a_new_socket(server: Running) -> None:
    cut = 30_001  # an odd number of bytes: in the middle of a sample
    data = encode_s16le(resample(CLIP, 16_000, 24_000))

    async def play() -> tuple[Client, Client]:
        first = await open_client(server)
        created = await first.next()
        await first.socket.send(data[:cut])
        await first.update(moss={"acks": True})
        await first.until("moss.ack")
        first.socket.transport.abort()
        token = created["session"]["moss"]["resume_token"]
        second = await open_client(server, f"&resume={token}&last_seq={first.seqs()[-1]}")
        resumed = await second.next()
        assert resumed["type"] == "moss.resumed"
        assert resumed["received_samples"] == cut // 2
        await second.socket.send(data[2 * resumed["received_samples"] :])
        assert await finished(second) == [WORDS]
        return first, second

    first, second = asyncio.run(play())
    assert first.seqs() + second.seqs() == list(range(1, second.seqs()[-1] + 1))


def test_missed_events_are_replayed(server: Running) -> None:
    async def play() -> tuple[Client, Client]:
        first = await open_client(server)
        created = await first.next()
        await first.append(CLIP)
        await first.until(f"{TRANSCRIPTION}.completed")
        token = created["session"]["moss"]["resume_token"]
        second = await open_client(server, f"&resume={token}&last_seq=1")
        assert await first.rest() == 4409
        await finished(second)
        return first, second

    first, second = asyncio.run(play())
    assert second.events[0]["replayed"] >= len(first.events) - 1
    assert second.events[1 : len(first.events)] == first.events[1:]


def test_last_events_can_be_fetched_when_they_were_lost_with_the_socket(server: Running) -> None:
    async def play() -> None:
        first = await open_client(server)
        token = (await first.next())["session"]["moss"]["resume_token"]
        first.socket.transport.pause_reading()
        await first.append(CLIP)
        await first.send("moss.finish")
        assert await asyncio.to_thread(server.sessions_end)
        first.socket.transport.abort()
        second = await open_client(server, f"&resume={token}&last_seq=1")
        assert await second.rest() == 1000
        assert transcripts(second) == [WORDS]
        assert second.kinds()[-1] == "moss.finished"

    asyncio.run(play())


@pytest.mark.parametrize("query", ["&resume=nobody", "&resume="])
def test_unknown_session_cannot_be_resumed(server: Running, query: str) -> None:
    async def play() -> None:
        client = await open_client(server, query)
        assert (await client.next())["error"]["code"] == "resume_expired"
        assert await client.rest() == 4404

    asyncio.run(play())


def test_mistakes_are_told_and_the_session_goes_on(server: Running) -> None:
    async def play() -> Client:
        client = await open_client(server)
        for text in ("{", "[]", json.dumps({"type": "response.create", "event_id": "e1"})):
            await client.socket.send(text)
        await client.update(audio={"input": {"format": {"type": "audio/opus"}}})
        await client.append(CLIP)
        assert await finished(client) == [WORDS]
        return client

    client = asyncio.run(play())
    assert len(client.of("error")) == 4
    assert client.of("error")[2]["error"]["event_id"] == "e1"


def test_keyword_the_model_cannot_expect_is_refused_before_it_spoils_a_turn(
    server: Running,
) -> None:
    async def play() -> Client:
        client = await open_client(server)
        await client.update(audio={"input": {"transcription": {"keywords": ["<|im_end|>"]}}})
        await client.append(CLIP)
        assert await finished(client) == [WORDS]
        return client

    client = asyncio.run(play())
    (error,) = client.of("error")
    assert error["error"]["code"] == "invalid_message"


def test_keyword_the_model_cannot_expect_gets_no_client_secret(server: Running) -> None:
    transcription = {"keywords": ["<|im_end|>"]}
    session = {"audio": {"input": {"transcription": transcription}}}
    url = f"{server.http}/v1/realtime/client_secrets"
    answer = httpx.post(url, json={"session": session})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "hotwords"


def test_mistake_as_long_as_a_message_is_answered_in_short(server: Running) -> None:
    long = ["A" * 100_000]

    async def play() -> Client:
        client = await open_client(server)
        for message in (
            {"type": long},
            {"type": "session.update", "session": {"type": long}},
            {"type": "session.update", "session": {"audio": {"input": {"format": {"type": long}}}}},
        ):
            await client.socket.send(json.dumps(message))
        await finished(client)
        return client

    client = asyncio.run(play())
    assert [len(event["error"]["message"]) < 300 for event in client.of("error")] == [True] * 3


def test_audio_after_the_end_is_refused(server: Running) -> None:
    async def play() -> None:
        client = await open_client(server)
        await client.append(CLIP)
        await client.send("moss.finish")
        await client.append(CLIP)
        assert await client.rest() == 1000
        assert [e["error"]["code"] for e in client.of("error")] == ["out_of_order"]
        assert transcripts(client) == [WORDS]

    asyncio.run(play())


def test_query_and_subprotocol_of_real_clients_are_taken(server: Running) -> None:
    async def play() -> None:
        query = "&model=gpt-4o-transcribe&preset=captions&language=en"
        client = await open_client(
            server, query, subprotocols=["realtime", "openai-insecure-api-key.whatever"]
        )
        assert client.socket.subprotocol == "realtime"
        session = (await client.next())["session"]
        assert session["moss"]["preset"] == "captions"
        assert session["audio"]["input"]["transcription"]["language"] == "en"
        await finished(client)

    asyncio.run(play())


def test_wrong_query_is_refused_before_the_handshake(server: Running) -> None:
    with pytest.raises(InvalidStatus) as caught:
        asyncio.run(open_client(server, "&preset=podcast"))
    assert caught.value.response.status_code == 400


def test_keys_and_origins_are_checked_before_the_handshake(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    async def status(server: Running, **options) -> int:
        try:
            client = await open_client(server, **options)
        except InvalidStatus as error:
            return error.response.status_code
        await finished(client)
        return 101

    async def play(server: Running) -> list[int]:
        good = {"Authorization": "Bearer sesame-sesame"}
        return [
            await status(server),
            await status(server, additional_headers={"Authorization": "Bearer wrong"}),
            await status(server, additional_headers=good | {"Origin": "https://evil.example"}),
            await status(server, additional_headers=good),
            await status(
                server, subprotocols=["realtime", "openai-insecure-api-key.sesame-sesame"]
            ),
        ]

    with running(backend, api_keys=("sesame-sesame",)) as server:
        assert asyncio.run(play(server)) == [401, 401, 403, 101, 101]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_full_server_refuses_before_the_handshake(backend: Backend) -> None:
    async def play(server: Running) -> None:
        client = await open_client(server)
        with pytest.raises(InvalidStatus) as caught:
            await open_client(server)
        assert caught.value.response.status_code == 503
        assert int(caught.value.response.headers["Retry-After"]) > 0
        await finished(client)

    with running(backend, max_sessions=1) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_a_client_that_does_not_come_back_is_forgotten(backend: Backend) -> None:
    async def play(server: Running) -> None:
        client = await open_client(server)
        token = (await client.next())["session"]["moss"]["resume_token"]
        client.socket.transport.abort()
        await asyncio.to_thread(server.sessions_end)
        late = await open_client(server, f"&resume={token}")
        assert await late.rest() == 4404

    with running(backend, grace_s=0.1) as server:
        asyncio.run(play(server))


def test_idle_client_is_closed_and_oversized_messages_too(backend: Backend) -> None:
    async def play(server: Running) -> None:
        idle, big, garbage = [await open_client(server) for _ in range(3)]
        await big.socket.send(bytes(5_000))
        assert await big.rest() == 1009
        for _ in range(4):
            await garbage.socket.send("no json")
        assert await garbage.rest() == 1007
        assert await idle.rest() == 4408

    options = {"idle_timeout_s": 1, "max_message_bytes": 4096, "max_bad_messages": 3}
    with running(backend, grace_s=0, **options) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_session_survives_a_message_that_is_too_big(backend: Backend) -> None:
    async def play(server: Running) -> None:
        first = await open_client(server)
        token = (await first.next())["session"]["moss"]["resume_token"]
        for _ in range(10):  # so that answers are due on a socket that is being closed
            await first.socket.send("no json")
        await first.socket.send(bytes(5_000))
        assert await first.rest() == 1009
        second = await open_client(server, f"&resume={token}&last_seq=1")
        await second.append(CLIP[:800])
        assert await finished(second) == []

    with running(backend, max_message_bytes=4096) as server:
        asyncio.run(play(server))


def test_drain_gives_everybody_the_rest_and_closes(backend: Backend) -> None:
    async def play(server: Running) -> Client:
        client = await open_client(server)
        await client.append(SPEECH)
        await client.until("input_audio_buffer.speech_started")
        server.drain()
        assert await client.rest() == 1012
        return client

    with running(backend) as server:
        client = asyncio.run(play(server))
    assert transcripts(client) == [WORDS]


def test_client_that_reads_nothing_is_not_read_from(backend: Backend) -> None:
    """What it would be told is bounded: its messages wait, nobody else's do."""

    async def play(server: Running) -> None:
        deaf, other = await open_client(server), await open_client(server)
        deaf.socket.transport.pause_reading()
        garbage = json.dumps({"type": "x" * 60})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                while True:
                    await deaf.socket.send(garbage)
        assert await finished(other) == []
        deaf.socket.transport.abort()

    with running(backend, grace_s=0, max_unsent_events=8, max_bad_messages=10**6) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_turn_detection_can_change_after_the_first_audio(server: Running) -> None:
    """Real clients send audio at once and their settings when the session is there."""

    async def play() -> Client:
        client = await open_client(server)
        await client.append(SPEECH[:4_800])
        await client.update(audio={"input": {"turn_detection": None}})
        await client.append(np.concatenate((SPEECH[4_800:], TAIL)))
        await client.send("input_audio_buffer.commit")
        await client.until(f"{TRANSCRIPTION}.completed")
        await finished(client)
        return client

    client = asyncio.run(play())
    assert client.of("error") == []
    assert transcripts(client) == [WORDS]
