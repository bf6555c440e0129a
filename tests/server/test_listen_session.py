"""A session of Deepgram's door on a hub that finds no speech: how it ends, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.live import CODEC
from support.media import media_bytes

from moss_stream.audio.container import Block
from moss_stream.audio.pcm import Encoding
from moss_stream.errors import InvalidMessage, TooSlow
from moss_stream.live.events import SpeechStarted
from moss_stream.server.config import ServerConfig
from moss_stream.server.listen_session import NET_0001, ListenSession
from moss_stream.server.metrics import Metrics
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.protocols.deepgram_query import ListenOptions
from moss_stream.server.protocols.deepgram_results import RequestInfo
from moss_stream.server.registry import RESTARTING
from moss_stream.server.session import BROKEN, EXPIRED, NORMAL

STEREO = ListenOptions(Encoding.S16LE, rate_hz=8_000, channels=2, is_multichannel=True)
MONO = ListenOptions(Encoding.S16LE, rate_hz=8_000)


class QuietHub:
    """Scores everything as silence, when it is asked to."""

    codec = CODEC

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.streams: list[Any] = []
        self.noticed = asyncio.Event()

    def add(self, stream: Any) -> None:
        self.streams.append(stream)

    def remove(self, stream: Any) -> None:
        if stream in self.streams:
            self.streams.remove(stream)

    def notice(self, stream: Any) -> None:
        self.noticed.set()

    def check_keywords(self, keywords: Any) -> None:
        pass

    def load(self, refresh_s: float) -> float:
        return 1.0

    def examine(self) -> None:
        for stream in list(self.streams):
            batch = stream.pending_frames()
            stream.scored(batch.first_frame, [0.0] * len(batch.samples))


class World:
    """A session and its hub."""

    def __init__(self, options: ListenOptions = STEREO, **config: Any) -> None:
        self.hub = QuietHub()
        identity = Identity("sess_x", "token", 0.0, "mini", 0, {})
        info = RequestInfo("7d0c", "2026-01-01T00:00:00.000Z", "mini", "0.1.0")
        self.session = ListenSession(self.hub, ServerConfig(**config), identity, info, options)

    async def messages(self) -> list[dict[str, Any]]:
        """Everything until the log is complete."""
        log, messages = self.session.log, []
        while (text := await log.next()) is not None:
            messages.append(json.loads(text))
            log.sent()
        return messages

    def sessions(self) -> float | None:
        return self.hub.metrics.registry.get_sample_value("moss_sessions")


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(bounded())


def test_session_ends_when_all_its_channels_have() -> None:
    async def story() -> None:
        world = World()
        await world.session.take(bytes(32_000))
        assert world.sessions() == 2
        await world.session.take('{"type": "CloseStream"}')
        assert not world.session.log.is_complete
        world.hub.examine()
        (metadata,) = await world.messages()
        assert (metadata["duration"], metadata["channels"]) == (1.0, 2)
        assert world.session.close is NORMAL
        assert world.hub.streams == []
        assert world.sessions() == 0

    play(story)


def test_first_reason_to_end_is_the_one_that_is_told() -> None:
    async def story() -> None:
        world = World()
        assert world.session.idle() is None
        world.session.finish(RESTARTING)
        world.session.idle()
        assert world.session.close is NET_0001
        world.hub.examine()
        assert world.session.log.is_complete

    play(story)


def test_longest_session_ends_and_says_why() -> None:
    async def story() -> None:
        world = World(max_session_s=10)
        await world.session.take(bytes(3_200))
        world.session.ticked(0, asyncio.get_running_loop().time() + 1e9)
        world.session.ticked(1, asyncio.get_running_loop().time() + 1e9)
        world.hub.examine()
        (metadata,) = await world.messages()
        assert [w["code"] for w in metadata["moss"]["warnings"]] == ["session_expired"]
        assert world.session.close is EXPIRED

    play(story)


def test_longest_session_ends_even_while_what_was_sent_is_still_heard() -> None:
    long = media_bytes("flac", "flac", np.zeros(16_000 * 1200, np.int16), 16_000)

    async def story() -> None:
        world = World(ListenOptions(), max_session_s=10)
        await world.session.take(long)
        await world.session.take('{"type": "CloseStream"}')
        await world.hub.noticed.wait()
        world.session.ticked(0, asyncio.get_running_loop().time() + 1e9)
        world.hub.examine()
        (metadata,) = await world.messages()
        assert [w["code"] for w in metadata["moss"]["warnings"]] == ["session_expired"]
        assert metadata["duration"] < 200
        assert world.session.close is EXPIRED

    play(story)


def test_block_longer_than_a_stream_holds_is_heard_bit_by_bit() -> None:
    async def story() -> None:
        world = World(MONO)
        stream = world.hub.streams[0]
        hearing = asyncio.create_task(
            world.session.heard(Block(8_000, np.zeros((1, 8_000 * 400), np.float32)))
        )
        while not hearing.done():
            world.hub.examine()
            await asyncio.sleep(0)
        assert await hearing
        assert stream.session.received_at == pytest.approx(16_000 * 400, abs=1_000)
        world.session.end()

    play(story)


def test_finalize_of_one_channel_is_answered_for_that_channel() -> None:
    async def story() -> None:
        world = World()
        await world.session.take(bytes(32_000))
        await world.session.take('{"type": "Finalize", "channel": 1}')
        await world.session.take('{"type": "Finalize"}')
        world.hub.examine()
        world.session.finish(NORMAL)
        world.hub.examine()
        *answers, _ = await world.messages()
        assert sorted(answer["channel_index"][0] for answer in answers) == [0, 1, 1]
        assert all(answer["from_finalize"] for answer in answers)

    play(story)


def test_client_that_reads_nothing_is_not_read_and_then_let_go() -> None:
    async def story() -> None:
        options = replace(STEREO, vad_events=True)
        world = World(options, max_unsent_events=8, replay_events=8, max_bad_messages=1000)

        async def blunder() -> None:
            while True:
                await world.session.take("no json")

        blundering = asyncio.create_task(blunder())
        done, _ = await asyncio.wait({blundering}, timeout=0.05)
        assert not done
        blundering.cancel()
        assert world.session.log.last == 9
        for utterance_id in range(10):
            world.session.told(0, SpeechStarted(utterance_id, 0, 0))
        assert world.session.close.code == 1013
        assert world.hub.streams == []

    play(story)


def test_mistakes_end_a_session_only_when_nothing_else_comes() -> None:
    async def story() -> None:
        world = World(max_bad_messages=2)
        for good in (bytes(4), '{"type": "KeepAlive"}'):
            await world.session.take("no json")
            await world.session.take("no json")
            await world.session.take(good)
        assert world.session.log.last == 4
        await world.session.take("no json")
        await world.session.take("no json")
        with pytest.raises(InvalidMessage):
            await world.session.take("no json")

    play(story)


@pytest.mark.parametrize(("error", "code"), [(TooSlow("x"), 1013), (KeyError("bug"), 1011)])
def test_channel_that_breaks_ends_the_session_alone(error: Exception, code: int) -> None:
    async def story() -> None:
        world = World()
        world.session.broke(error)
        world.session.broke(error)
        assert world.session.close.code == code
        assert world.session.log.is_complete
        assert world.sessions() == 0
        await world.session.take(np.zeros(100, "<i2").tobytes())  # what is still on its way

    play(story)


def test_bug_in_the_decoder_is_no_mistake_of_the_client() -> None:
    async def story() -> None:
        world = World()
        world.session.ended(KeyError("bug"))
        world.hub.examine()
        assert world.session.close is BROKEN
        assert world.session.log.is_complete

    play(story)
