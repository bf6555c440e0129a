"""A session of OpenAI's protocol on a hub that finds no speech: what it counts as received."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.hub import IdleHub

from moss_stream.server.config import ServerConfig
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.registry import RESTARTING
from moss_stream.server.session import EXPIRED, NORMAL, Close, Session

SECOND = bytes(48_000)


class Attentive(Session):
    """Keeps what it is told of audio that arrives."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        identity = Identity("sess_x", "token", 30.0, "mini", 0, {})
        super().__init__(IdleHub(), ServerConfig(), identity, Settings("agent"))

    def arriving(self, end_s: float) -> None:
        self.arrivals.append(end_s)

    def received(self) -> int:
        resumed = self.resume(self.log.last)
        return resumed["received_samples"] if resumed else -1

    async def errors(self) -> list[dict[str, Any]]:
        self.log.complete()
        self.log.rewind(0)
        messages = []
        while (text := await self.log.next()) is not None:
            messages.append(json.loads(text))
            self.log.sent()
        return [message["error"] for message in messages if message["type"] == "error"]


@pytest.mark.parametrize(("close", "num_errors"), [(RESTARTING, 0), (EXPIRED, 0), (NORMAL, 3)])
def test_audio_after_the_end_is_not_counted_as_received(close: Close, num_errors: int) -> None:
    async def story() -> None:
        session = Attentive()
        await session.take(SECOND)
        session.finish(close)
        for _ in range(3):
            await session.take(SECOND)
        assert session.received() == 24_000
        # A client that ended its audio itself should know better.
        assert [error["code"] for error in await session.errors()] == ["out_of_order"] * num_errors

    asyncio.run(story())


def test_message_that_waits_for_room_is_not_counted_beyond_the_end() -> None:
    async def story() -> None:
        session = Attentive()
        taking = asyncio.create_task(session.take(SECOND * 300))
        await asyncio.sleep(0.5)
        assert not taking.done()
        before = session.received()
        session.finish(RESTARTING)
        session._hub.examine()
        await taking
        assert session.received() == before < 24_000 * 300

    asyncio.run(story())


def test_message_without_audio_is_no_arrival() -> None:
    async def story() -> None:
        session = Attentive()
        await session.take(SECOND)
        await session.take(b"")
        await session.take('{"type": "input_audio_buffer.append", "audio": ""}')
        await session.take(SECOND)
        assert session.arrivals == [1.0, 2.0]

    asyncio.run(story())
