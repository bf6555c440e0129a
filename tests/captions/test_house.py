from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from support.captions import said

from moss_stream.captions.house import House, HouseRules
from moss_stream.captions.store import RoomRecord, Store
from moss_stream.captions.viewers import BROKEN, DELETED, Farewell
from moss_stream.errors import CapacityError, EngineStopped, InvalidMessage, NotFound

RULES = HouseRules(max_rooms=100, max_viewers=2, max_waiting=64, retention_days=30)


def play(story: Callable[[House], Awaitable[None]], url: str = "sqlite://") -> None:
    async def whole() -> None:
        house = House(Store(url), RULES)
        try:
            await story(house)
        finally:
            await house.close()

    asyncio.run(whole())


def test_room_is_one_for_all_who_are_in_it() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create("Weekly")).record.id
        first, second = await asyncio.gather(house.enter(room_id), house.enter(room_id))
        assert first is second
        house.leave(first)
        assert await house.enter(room_id) is first

    play(story)


def test_room_is_closed_when_all_have_left_and_is_the_same_when_they_come_back() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create("Weekly")).record.id
        async with house.visit(room_id) as opened:
            opened.take([opened.room.settle(said("a-1", ("S01", "hello")))])
        while True:  # until it is closed behind the last one
            async with house.visit(room_id) as again:
                if again is not opened:
                    break
            await asyncio.sleep(0)
        assert again.room.entries() == opened.room.entries()

    play(story)


def test_unknown_room_is_not_found() -> None:
    async def story(house: House) -> None:
        for room_id in ("nobody", "", "x" * 10_000, "\x00", "ü"):
            with pytest.raises(NotFound):
                await house.enter(room_id)

    play(story)


@pytest.mark.parametrize("title", ["x" * 201, "a\nb"])
def test_title_that_cannot_be_shown_is_refused(title: str) -> None:
    async def story(house: House) -> None:
        with pytest.raises(InvalidMessage):
            await house.create(title)

    play(story)


def test_viewers_have_a_limit() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create()).record.id
        async with house.visit(room_id) as opened:
            for _ in range(RULES.max_viewers):
                house.check_viewers()
                await opened.join(None, "view")
            with pytest.raises(CapacityError):
                house.check_viewers()

    play(story)


def test_deleted_room_is_gone_for_everybody() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create()).record.id
        async with house.visit(room_id) as opened:
            evicted: list[Farewell] = []
            opened.evictions.add(evicted.append)
            viewer = await opened.join(None, "view")
            opened.take([opened.room.settle(said("a-1", ("S01", "secret")))])
            await house.delete(opened)
            assert evicted == [DELETED]
            assert viewer.gone.result().code == 4410
            opened.take([opened.room.settle(said("a-2", ("S01", "too late")))])
            await opened.saved()
        with pytest.raises(NotFound):
            await house.enter(room_id)

    play(story)


def test_broken_room_can_be_entered_again_as_it_was_stored() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create()).record.id
        async with house.visit(room_id) as opened:
            opened.take([opened.room.settle(said("a-1", ("S01", "stored")))])
            await opened.saved()
            opened.room.settle(said("a-2", ("S01", "lost")))
            opened.close(BROKEN)
            async with house.visit(room_id) as again:
                assert [entry["entry"] for entry in again.room.entries()] == ["a-1"]
        assert await house.enter(room_id) is again

    play(story)


def test_room_that_is_still_opened_when_the_drain_begins_is_not_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(house: House) -> None:
        room_id = (await house.create()).record.id
        load, begun, may_end = house._store.load, asyncio.Event(), asyncio.Event()

        async def slow(room_id: str) -> object:
            begun.set()
            await may_end.wait()
            return await load(room_id)

        monkeypatch.setattr(house._store, "load", slow)
        entering = asyncio.create_task(house.enter(room_id))
        await begun.wait()
        await house.drain()
        may_end.set()
        with pytest.raises(EngineStopped):
            await entering

    play(story)


def test_drain_stores_and_tells_everything_and_lets_nobody_in() -> None:
    async def story(house: House) -> None:
        room_id = (await house.create()).record.id
        opened = await house.enter(room_id)
        viewer = await opened.join(None, "view")
        opened.take([opened.room.settle(said("a-1", ("S01", "last words")))])

        async def read() -> list[str]:
            texts = []
            while (packet := await viewer.next()) is not None:
                texts.append(packet.text)
            opened.viewers.remove(viewer)
            house.leave(opened)
            return texts

        reading = asyncio.create_task(read())
        await house.drain()
        texts = await reading
        assert "last words" in texts[1]
        assert '"code":1012' in texts[2]
        with pytest.raises(EngineStopped):
            await house.enter(room_id)

    play(story)


def test_old_rooms_are_deleted_at_the_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'rooms.sqlite3'}"

    async def before(house: House) -> None:
        month_ago_s = time.time() - 31 * 86_400
        store = Store(url)
        await store.create(RoomRecord("old", "", "p", "v", month_ago_s), 10)
        await store.close()
        await house.create()

    async def after(house: House) -> None:
        house.start()
        await asyncio.sleep(0)  # it asks for the door first
        with pytest.raises(NotFound):
            await house.enter("old")

    play(before, url)
    play(after, url)
