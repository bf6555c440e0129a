"""A socket and the session it carries, with both played: who notices what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from moss_stream.server.config import ServerConfig
from moss_stream.server.connection import Connection
from moss_stream.server.event_log import EventLog
from moss_stream.server.inbox import Inbox
from moss_stream.server.session import IDLE, NORMAL, Close


class PlayedSocket:
    """Gives out what a test puts in."""

    def __init__(self) -> None:
        self.arriving: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def receive(self) -> dict[str, Any]:
        return await self.arriving.get()

    def say(self, text: str) -> None:
        self.arriving.put_nowait({"type": "websocket.receive", "text": text})

    def vanish(self) -> None:
        self.arriving.put_nowait({"type": "websocket.disconnect", "code": 1006})


class PlayedSession:
    """Takes a message when the test lets it."""

    def __init__(self) -> None:
        self.log = EventLog(8, 8)
        self.close = NORMAL
        self.idle_timeout_s = 0.05
        self.taken: list[str | bytes] = []
        self.has_room = asyncio.Event()

    def idle(self) -> Close:
        return IDLE

    async def take(self, message: str | bytes) -> None:
        await self.has_room.wait()
        self.taken.append(message)


def play(story: Callable[[PlayedSocket, PlayedSession, asyncio.Task], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            socket, session = PlayedSocket(), PlayedSession()
            connection = Connection(socket, session, ServerConfig())
            await story(socket, session, asyncio.create_task(connection.carry()))

    asyncio.run(bounded())


def test_client_that_vanishes_while_its_messages_wait_is_noticed() -> None:
    async def story(socket: PlayedSocket, session: PlayedSession, carrying: asyncio.Task) -> None:
        session.idle_timeout_s = 60
        for _ in range(50):
            socket.say("waits for ever")
        socket.vanish()
        assert (await carrying).code == 1006
        assert session.taken == []

    play(story)


def test_what_was_sent_before_leaving_is_taken() -> None:
    async def story(socket: PlayedSocket, session: PlayedSession, carrying: asyncio.Task) -> None:
        session.has_room.set()
        for text in "abcde":
            socket.say(text)
        socket.vanish()
        assert (await carrying).may_return
        assert session.taken == list("abcde")

    play(story)


def test_empty_messages_have_a_limit() -> None:
    async def story() -> None:
        inbox = Inbox(1000)
        putting = asyncio.create_task(inbox.put(b""))
        await putting
        filled = asyncio.create_task(fill(inbox))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not filled.done()
        filled.cancel()

    async def fill(inbox: Inbox) -> None:
        for _ in range(1000):
            await inbox.put(b"")

    asyncio.run(story())


def test_no_more_is_read_than_may_wait() -> None:
    async def story(socket: PlayedSocket, session: PlayedSession, carrying: asyncio.Task) -> None:
        session.idle_timeout_s = 60
        for _ in range(20):
            socket.say("x" * 300_000)
        await asyncio.sleep(0.05)
        assert socket.arriving.qsize() >= 14
        session.has_room.set()
        socket.vanish()
        await carrying
        assert len(session.taken) == 20

    play(story)


def test_client_is_not_idle_while_its_message_waits() -> None:
    async def story(socket: PlayedSocket, session: PlayedSession, carrying: asyncio.Task) -> None:
        socket.say("long")
        await asyncio.sleep(5 * session.idle_timeout_s)
        assert not carrying.done()
        session.has_room.set()
        assert await carrying == IDLE
        assert session.taken == ["long"]

    play(story)
