from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.schema import CreateTable
from support.captions import said

from moss_stream.captions.room import Change, Room
from moss_stream.captions.store import CHANGES, ROOMS, RoomRecord, Store
from moss_stream.errors import CapacityError, ConfigError, StorageError

ROOM = RoomRecord("r1", "Wöchentlich", "p" * 64, "v" * 64, 1_700_000_000.25)
_ROOM = Room()
SAID = [_ROOM.settle(said(f"a-{n}", ("S01", "wörds"), at_s=n / 3)) for n in (1, 2, 3)]


def play(url: str, story: Callable[[Store], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = Store(url)
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(whole())


def file_url(path: Path) -> str:
    return f"sqlite:///{path / 'state' / 'rooms.sqlite3'}"


async def changes(store: Store) -> tuple[RoomRecord, list[Change] | None]:
    record, room = await store.load("r1")
    return record, room.since(0)


def test_room_is_there_after_a_restart(tmp_path: Path) -> None:
    async def before(store: Store) -> None:
        await store.create(ROOM, 10)
        await store.append("r1", SAID[:2], 1.0)
        await store.append("r1", SAID[2:], 2.0)

    async def after(store: Store) -> None:
        assert await changes(store) == (ROOM, SAID)
        assert await store.load("r2") is None

    play(file_url(tmp_path), before)
    play(file_url(tmp_path), after)


def test_file_is_nobody_elses_business(tmp_path: Path) -> None:
    async def story(store: Store) -> None:
        await store.create(ROOM, 10)
        await store.append("r1", SAID, 1.0)
        files = list((tmp_path / "state").iterdir())
        assert files
        for path in files:
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path

    play(file_url(tmp_path), story)


def test_changes_stored_twice_are_there_once() -> None:
    async def story(store: Store) -> None:
        await store.create(ROOM, 10)
        await store.append("r1", SAID[:2], 1.0)
        await store.append("r1", SAID, 2.0)
        assert await changes(store) == (ROOM, SAID)

    play("sqlite://", story)


def test_room_that_another_process_writes_to_is_not_mixed_up() -> None:
    async def story(store: Store) -> None:
        await store.create(ROOM, 10)
        await store.append("r1", SAID, 1.0)
        with pytest.raises(StorageError):
            await store.append("r1", [Change("room.entry", {"entry": "b-1"}, 1)], 1.0)
        assert await changes(store) == (ROOM, SAID)

    play("sqlite://", story)


def test_nothing_is_left_of_a_deleted_room() -> None:
    async def story(store: Store) -> None:
        await store.create(ROOM, 10)
        await store.append("r1", SAID, 1.0)
        await store.delete("r1")
        assert await store.load("r1") is None
        await store.create(ROOM, 10)
        assert await changes(store) == (ROOM, [])

    play("sqlite://", story)


def test_change_of_a_room_that_is_gone_is_refused() -> None:
    async def story(store: Store) -> None:
        with pytest.raises(StorageError):
            await store.append("r1", SAID, 1.0)

    play("sqlite://", story)


def test_old_rooms_go_and_those_in_use_stay() -> None:
    async def story(store: Store) -> None:
        for name, changed_s in (("old", 1.0), ("used", 1.0), ("new", 9.0)):
            await store.create(RoomRecord(name, "", "p", "v", 0.0), 10)
            await store.append(name, SAID, changed_s)
        assert await store.expire(5.0, {"used"}) == ["old"]
        assert await store.load("old") is None
        assert await store.load("used") is not None
        assert await store.load("new") is not None

    play("sqlite://", story)


def test_rooms_have_a_limit() -> None:
    async def story(store: Store) -> None:
        await store.create(ROOM, 1)
        with pytest.raises(CapacityError):
            await store.create(RoomRecord("r2", "", "p", "v", 0.0), 1)

    play("sqlite://", story)


def test_database_that_cannot_be_opened_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")

    async def story(store: Store) -> None:
        with pytest.raises(StorageError):
            await store.load("r1")
        (tmp_path / "state").unlink()
        assert await store.load("r1") is None

    play(file_url(tmp_path), story)


@pytest.mark.parametrize("url", ["", "rooms.sqlite3", "oracle+nothing://", "sqlite+x://", "pg://h"])
def test_wrong_address_is_refused_before_serving(url: str) -> None:
    with pytest.raises(ConfigError):
        Store(url)


def test_error_does_not_quote_the_address() -> None:
    with pytest.raises(ConfigError) as caught:
        Store("nothing://ana:sesame@host/db")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("dialect", [postgresql.dialect(), mysql.dialect()])
def test_tables_can_be_made_elsewhere(dialect) -> None:
    for table in (ROOMS, CHANGES):
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
