from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.hub import IdleHub

from moss_stream.errors import EngineStopped, TooManyStreams
from moss_stream.server.config import ServerConfig
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.registry import RESTARTING, TAKEN_OVER, Entry, Registry
from moss_stream.server.session import NORMAL, Close

SETTINGS = Settings("agent")


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be set forward."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s

    async def skip(self, seconds: float) -> None:
        self.skipped_s += seconds
        for _ in range(10):
            await asyncio.sleep(0)


class Socket:
    """Leaves when it is asked to, as a real one does."""

    def __init__(self, registry: Registry, entry: Entry) -> None:
        self._registry, self._entry = registry, entry
        self.closed: Close | None = None

    async def leave(self, close: Close) -> None:
        self.closed = close
        await asyncio.sleep(0)
        self._registry.detach(self._entry, self, may_return=close.may_return)


class House:
    """A registry, and everything around it."""

    def __init__(self, **config: Any) -> None:
        self.hub = IdleHub()
        self.registry = Registry(self.hub, ServerConfig(**config), "mini")

    async def enter(self) -> tuple[Entry, Socket]:
        entry = self.registry.open(SETTINGS)
        return entry, await self.attach(entry)

    async def attach(self, entry: Entry) -> Socket:
        socket = Socket(self.registry, entry)
        assert await self.registry.attach(entry, socket)
        return socket

    def knows(self, entry: Entry) -> bool:
        return self.registry.find(entry.session.identity.resume_token) is entry

    def finish(self, entry: Entry) -> None:
        """Let a session come to its end."""
        entry.session.finish(NORMAL)
        self.hub.examine()
        assert entry.session.log.is_complete


async def drained(entry: Entry) -> list[str]:
    """All events of a session that is over."""
    log, texts = entry.session.log, []
    while (text := await log.next()) is not None:
        texts.append(text)
        log.sent()
    return texts


def play(story: Callable[[JumpingLoop], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(story(runner.get_loop()))


def test_nobody_is_let_in_beyond_the_limit() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(max_sessions=2)
        entry, socket = await house.enter()
        await house.enter()
        with pytest.raises(TooManyStreams) as caught:
            house.registry.open(SETTINGS)
        assert caught.value.retry_after_s > 0
        house.registry.detach(entry, socket, may_return=False)
        await house.enter()
        assert len(house.registry) == 2

    play(story)


def test_waiting_session_keeps_its_place_until_the_grace_time_is_over() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(max_sessions=1, grace_s=30)
        entry, socket = await house.enter()
        house.registry.detach(entry, socket, may_return=True)
        await loop.skip(29)
        assert house.knows(entry)
        with pytest.raises(TooManyStreams):
            house.registry.open(SETTINGS)
        await loop.skip(2)
        assert not house.knows(entry)
        assert house.hub.streams == []
        await house.enter()

    play(story)


def test_session_that_came_back_does_not_expire() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(grace_s=30)
        entry, socket = await house.enter()
        house.registry.detach(entry, socket, may_return=True)
        await house.attach(entry)
        await loop.skip(60)
        assert house.knows(entry)
        assert entry.session.log.is_complete is False

    play(story)


@pytest.mark.parametrize(("grace_s", "may_return"), [(30, False), (0, True)])
def test_session_without_grace_ends_with_its_socket(grace_s: float, may_return: bool) -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(grace_s=grace_s)
        entry, socket = await house.enter()
        house.registry.detach(entry, socket, may_return=may_return)
        assert not house.knows(entry)
        assert house.hub.streams == []

    play(story)


def test_newer_socket_takes_over_and_the_older_one_has_no_say() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House()
        entry, old = await house.enter()
        new = await house.attach(entry)
        assert old.closed == TAKEN_OVER
        assert entry.carrier is new
        house.registry.detach(entry, old, may_return=False)
        assert entry.carrier is new
        await loop.skip(1000)
        assert house.knows(entry)

    play(story)


def test_of_sockets_that_take_over_at_once_one_remains() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House()
        entry, first = await house.enter()
        others = await asyncio.gather(*(house.attach(entry) for _ in range(5)))
        open_sockets = [socket for socket in (first, *others) if socket.closed is None]
        assert open_sockets == [entry.carrier]

    play(story)


def test_session_that_is_over_can_be_read_for_the_grace_time_and_takes_no_place() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(max_sessions=1, grace_s=30)
        entry, socket = await house.enter()
        house.finish(entry)
        assert house.hub.streams == []
        house.registry.detach(entry, socket, may_return=True)
        assert len(house.registry) == 0
        await house.enter()
        await house.attach(entry)
        assert entry.session.resume(0)["replayed"] == entry.session.log.last
        house.registry.detach(entry, entry.carrier, may_return=True)
        await loop.skip(31)
        assert not house.knows(entry)

    play(story)


def test_no_more_sessions_that_are_over_are_kept_than_may_be_open() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(max_sessions=3)
        entries = []
        for _ in range(5):
            entry, socket = await house.enter()
            house.finish(entry)
            house.registry.detach(entry, socket, may_return=True)
            entries.append(entry)
        assert [house.knows(entry) for entry in entries] == [False, False, True, True, True]

    play(story)


def test_drain_lets_nobody_in() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House()
        over, socket = await house.enter()
        house.finish(over)
        house.registry.detach(over, socket, may_return=True)
        await house.registry.drain()
        assert not house.knows(over)
        with pytest.raises(EngineStopped):
            house.registry.open(SETTINGS)

    play(story)


def test_drain_gets_the_last_text_of_a_session_whose_client_is_away() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20, grace_s=5)
        waiting, socket = await house.enter()
        await waiting.session.take(bytes(48_000))
        house.registry.detach(waiting, socket, may_return=True)
        draining = asyncio.create_task(house.registry.drain())
        await loop.skip(10)
        assert not waiting.session.log.is_complete
        house.hub.examine()
        assert waiting.session.log.is_complete
        await draining
        assert not house.knows(waiting)

    play(story)


def test_client_that_was_away_comes_back_for_its_text_while_the_server_stops() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20)
        entry, away = await house.enter()
        await entry.session.take(bytes(48_000))
        house.registry.detach(entry, away, may_return=True)
        draining = asyncio.create_task(house.registry.drain())
        await loop.skip(1)
        socket = await house.attach(entry)
        await loop.skip(1)
        assert house.knows(entry)
        house.hub.examine()
        assert entry.session.log.is_complete
        house.registry.detach(entry, socket, may_return=True)
        await draining

    play(story)


def test_session_whose_socket_is_lost_while_the_server_stops_gets_its_text() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20)
        entry, socket = await house.enter()
        await entry.session.take(bytes(48_000))
        draining = asyncio.create_task(house.registry.drain())
        await loop.skip(1)
        house.registry.detach(entry, socket, may_return=True)
        await loop.skip(1)
        assert house.knows(entry)
        house.hub.examine()
        await draining
        assert not house.knows(entry)

    play(story)


@pytest.mark.parametrize("steps", range(8))
def test_session_taken_over_as_the_server_stops_has_one_reader(steps: int) -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20)
        entry, _ = await house.enter()
        await entry.session.take(bytes(48_000))
        taking_over = asyncio.create_task(house.attach(entry))
        for _ in range(steps):
            await asyncio.sleep(0)
        draining = asyncio.create_task(house.registry.drain())
        socket = await taking_over
        await loop.skip(1)
        assert entry.carrier is socket
        house.hub.examine()
        assert len(await drained(entry)) == entry.session.log.last
        house.registry.detach(entry, socket, may_return=True)
        await draining

    play(story)


def test_drain_waits_for_the_last_text() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20)
        entry, socket = await house.enter()
        await entry.session.take(bytes(48_000))
        draining = asyncio.create_task(house.registry.drain())
        await loop.skip(19)
        assert not draining.done()
        house.hub.examine()
        assert entry.session.log.is_complete
        assert entry.session.close == RESTARTING
        house.registry.detach(entry, socket, may_return=True)
        await draining
        assert socket.closed is None

    play(story)


def test_drain_does_not_wait_for_ever() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(drain_s=20)
        entry, socket = await house.enter()
        await entry.session.take(bytes(48_000))
        draining = asyncio.create_task(house.registry.drain())
        await loop.skip(0)
        await loop.skip(21)
        await draining
        assert socket.closed == RESTARTING
        assert not house.knows(entry)
        assert house.hub.streams == []

    play(story)


def test_sessions_are_counted_while_they_are_open() -> None:
    async def story(loop: JumpingLoop) -> None:
        house = House(max_sessions=1)
        registry = house.hub.metrics.registry
        entry, socket = await house.enter()
        with pytest.raises(TooManyStreams):
            house.registry.open(SETTINGS)
        assert registry.get_sample_value("moss_sessions") == 1
        house.finish(entry)
        assert registry.get_sample_value("moss_sessions") == 0
        house.registry.detach(entry, socket, may_return=False)
        assert registry.get_sample_value("moss_sessions") == 0
        assert registry.get_sample_value("moss_sessions_opened_total") == 1

    play(story)
