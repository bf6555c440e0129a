from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

import pytest
from support.captions import Board, said

from moss_stream.captions import open_room
from moss_stream.captions.open_room import OpenRoom
from moss_stream.captions.room import Change, Room
from moss_stream.captions.store import RoomRecord
from moss_stream.captions.viewers import Viewer
from moss_stream.errors import StorageError

RECORD = RoomRecord("r1", "Weekly", "p", "v", time.time() - 60)


class Shelf:
    """A store that can be broken and mended."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.works = asyncio.Event()
        self.works.set()

    async def append(self, room_id: str, changes: Sequence[Change], now_s: float) -> None:
        if not self.works.is_set():
            raise StorageError("the disk is full")
        self.changes += changes


async def read(viewer: Viewer, board: Board, kind: str) -> None:
    """Take messages up to the first of a kind."""
    while not board.messages or board.messages[-1]["type"] != kind:
        packet = await viewer.next()
        assert packet is not None
        board.take(json.loads(packet.text))


def test_settled_text_is_stored_before_it_is_told() -> None:
    async def story() -> None:
        shelf = Shelf()
        opened = OpenRoom(RECORD, Room(), shelf, 64)
        viewer, board = await opened.join(None, "view"), Board()
        shelf.works.clear()
        opened.take([opened.room.settle(said("a-1", ("S01", "settled")))])
        opened.take([opened.room.hear(said("a-2", ("S01", "still said")))])
        await read(viewer, board, "room.warning")
        assert board.entries == {}
        assert list(board.partials) == ["a-2"]
        shelf.works.set()
        await read(viewer, board, "room.entry")
        assert [change.revision for change in shelf.changes] == [1]
        opened.stop()

    asyncio.run(story())


def test_nobody_is_shown_what_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_room, "SAVE_PATIENCE_S", 0.1)

    async def story() -> None:
        shelf = Shelf()
        opened = OpenRoom(RECORD, Room(), shelf, 64)
        shelf.works.clear()
        opened.take([opened.room.settle(said("a-1", ("S01", "settled")))])
        with pytest.raises(StorageError):
            await opened.join(None, "view")
        shelf.works.set()
        await opened.saved()
        viewer, board = await opened.join(None, "view"), Board()
        await read(viewer, board, "room.snapshot")
        assert board.lines() == [("S01", "settled")]
        opened.stop()

    asyncio.run(story())


def test_changes_that_wait_for_the_database_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_room, "MAX_UNSAVED", 3)

    async def story() -> None:
        shelf = Shelf()
        shelf.works.clear()
        opened = OpenRoom(RECORD, Room(), shelf, 64)
        viewer, evicted = await opened.join(None, "view"), []
        opened.evictions.add(evicted.append)
        for number in range(5):
            assert opened.is_closed == (number == 4)
            opened.take([opened.room.settle(said(f"a-{number}", ("S01", "settled")))])
        assert (await viewer.gone).code == 1011
        assert [farewell.code for farewell in evicted] == [1011]
        await opened.saved()

    asyncio.run(story())


def test_viewer_that_was_away_gets_what_it_missed_or_everything() -> None:
    async def story() -> None:
        opened = OpenRoom(RECORD, Room(), Shelf(), 64)
        for number in range(3):
            opened.take([opened.room.settle(said(f"a-{number}", ("S01", f"{number}")))])
        opened.take([opened.room.hear(said("a-3", ("S01", "3")))])
        kinds = {}
        for since in (None, 1, 3, 4):
            viewer = await opened.join(since, "view")
            opened.viewers.remove(viewer)
            viewer.leave(open_room.Farewell(1000, ""))
            packets = []
            while (packet := await viewer.next()) is not None:
                packets.append(json.loads(packet.text))
            kinds[since] = [packet["type"] for packet in packets]
            assert packets[0]["clock"] >= 60
            assert [partial["entry"] for partial in packets[0]["partials"]] == ["a-3"]
        assert kinds == {
            None: ["room.snapshot"],
            1: ["room.resumed", "room.entry", "room.entry"],
            3: ["room.resumed"],
            4: ["room.snapshot"],
        }
        opened.stop()

    asyncio.run(story())


def test_bug_ends_the_room_and_is_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Shelf):
        async def append(self, *_: object) -> None:
            raise ZeroDivisionError

    async def story() -> None:
        opened = OpenRoom(RECORD, Room(), Broken(), 64)
        viewer = await opened.join(None, "view")
        opened.take([opened.room.settle(said("a-1", ("S01", "settled")))])
        assert (await viewer.gone).code == 1011
        await opened.saved()

    asyncio.run(story())
    assert "ZeroDivisionError" in caplog.text
