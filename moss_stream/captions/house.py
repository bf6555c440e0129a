"""All rooms of a server: made, opened for whoever comes in, left, deleted, and kept for so long."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from moss_stream.captions.open_room import OpenRoom
from moss_stream.captions.store import RoomRecord, Store
from moss_stream.captions.viewers import DELETED, RESTARTING
from moss_stream.errors import (
    CapacityError,
    EngineStopped,
    InvalidMessage,
    NotFound,
    StorageError,
)

logger = logging.getLogger(__name__)

MAX_TITLE_CHARACTERS: Final = 200
MAX_CHANGES: Final = 100_000
"""Changes of a room beyond which nobody may speak in it any more."""
EXPIRE_INTERVAL_S: Final = 3600.0
"""How often old rooms are looked for, seconds."""
DRAIN_S: Final = 5.0
"""How long the server waits for all viewers to get the last of it when it stops, seconds."""
_DAY_S = 86_400.0
_ROOM_ID = re.compile(r"[0-9A-Za-z]{1,32}")


@dataclass(frozen=True, slots=True)
class HouseRules:
    """How much is taken on and kept."""

    max_rooms: int
    """Most rooms in the database."""
    max_viewers: int
    """Most viewers of all rooms."""
    max_waiting: int
    """Messages that may wait for one viewer before it is dropped."""
    retention_days: float
    """How long a room is kept after its last change, days; 0 for ever."""


@dataclass(frozen=True, slots=True)
class NewRoom:
    """A room and its tokens, which nobody can be told again."""

    record: RoomRecord
    publish_token: str
    view_token: str


class House:
    """The rooms of one server. Make and use it on one event loop.

    Args:
        store: Where they are kept; the house closes it.
        rules: Limits.
    """

    def __init__(self, store: Store, rules: HouseRules) -> None:
        self.rules = rules
        self._store = store
        self._open: dict[str, OpenRoom] = {}
        self._loading = asyncio.Lock()
        """Held while a room is opened or deleted, so that none is both."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._is_draining = False

    def start(self) -> None:
        """Begin to delete rooms that are not kept any longer."""
        if self.rules.retention_days > 0:
            self._spawn(self._expire())

    async def create(self, title: str = "") -> NewRoom:
        """Make a room.

        Raises:
            InvalidMessage: The title cannot be shown.
            CapacityError: There are too many.
            StorageError: The database fails.
        """
        if len(title) > MAX_TITLE_CHARACTERS or not title.isprintable():
            raise InvalidMessage(
                f"title has {len(title)} characters, expected at most {MAX_TITLE_CHARACTERS} "
                "printable ones",
                field="title",
            )
        publish_token = f"rp_{secrets.token_urlsafe(24)}"
        view_token = f"rv_{secrets.token_urlsafe(24)}"
        record = RoomRecord(
            id=secrets.token_hex(8),
            title=title,
            publish_digest=digest(publish_token),
            view_digest=digest(view_token),
            created_s=time.time(),
        )
        await self._store.create(record, self.rules.max_rooms)
        logger.info("room created room=%s", record.id)
        return NewRoom(record, publish_token, view_token)

    async def enter(self, room_id: str) -> OpenRoom:
        """Hold a room open until `leave`.

        Raises:
            NotFound: There is none of this id.
            EngineStopped: The server is about to stop.
            StorageError: The database fails.
        """
        if self._is_draining:
            raise EngineStopped("the server is restarting")
        if not _ROOM_ID.fullmatch(room_id):  # databases differ in what they take for a string
            raise _not_found(room_id)
        opened = self._open.get(room_id)
        if opened is None or opened.is_closed:
            opened = await self._load(room_id)
        opened.users += 1
        return opened

    async def _load(self, room_id: str) -> OpenRoom:
        async with self._loading:
            opened = self._open.get(room_id)
            if opened is not None and not opened.is_closed:
                return opened
            stored = await self._store.load(room_id)
            if stored is None:
                raise _not_found(room_id)
            if self._is_draining:  # begun meanwhile, and nobody sends its viewers home
                raise EngineStopped("the server is restarting")
            opened = OpenRoom(*stored, self._store, self.rules.max_waiting)
            self._open[room_id] = opened
            return opened

    def leave(self, opened: OpenRoom) -> None:
        """Do not hold a room open any more."""
        opened.users -= 1
        if opened.users == 0:
            self._spawn(self._retire(opened))

    @asynccontextmanager
    async def visit(self, room_id: str) -> AsyncIterator[OpenRoom]:
        """Hold a room open; see `enter`."""
        opened = await self.enter(room_id)
        try:
            yield opened
        finally:
            self.leave(opened)

    def check_viewers(self) -> None:
        """Refuse a further viewer if there are too many.

        Raises:
            CapacityError: There are.
        """
        count = sum(len(opened.viewers) for opened in self._open.values())
        if count >= self.rules.max_viewers:
            raise CapacityError(
                f"{count} viewers are here, no more are allowed", field="max_viewers"
            )

    async def delete(self, opened: OpenRoom) -> None:
        """Delete a room with all that was said in it, and send everybody away.

        Raises:
            StorageError: The database fails; everybody is away, the room is still stored.
        """
        async with self._loading:
            self._open.pop(opened.record.id, None)
            opened.close(DELETED)
            await self._store.delete(opened.record.id)
        logger.info("room deleted room=%s", opened.record.id)

    async def drain(self) -> None:
        """Let nobody in, store what is left, and give all viewers the last of it."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.gather(*map(_send_home, list(self._open.values())))
                while self._open:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("drain timed out rooms=%d", len(self._open))

    async def close(self) -> None:
        """Let everything go."""
        for opened in self._open.values():
            opened.close(RESTARTING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    async def _retire(self, opened: OpenRoom) -> None:
        """Forget a room that nobody is in."""
        await opened.saved()
        if opened.users == 0 and self._open.get(opened.record.id) is opened:
            del self._open[opened.record.id]
            opened.stop()
            self._changed.set()

    async def _expire(self) -> None:
        while True:
            before_s = time.time() - self.rules.retention_days * _DAY_S
            try:
                async with self._loading:
                    expired = await self._store.expire(before_s, tuple(self._open))
                logger.info("rooms expired count=%d", len(expired))
            except StorageError as error:
                logger.warning("old rooms are not deleted: %s", error)
            await asyncio.sleep(EXPIRE_INTERVAL_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send_home(opened: OpenRoom) -> None:
    """Give the viewers of a room the last of it."""
    await opened.saved()
    opened.viewers.close(RESTARTING)


def _not_found(room_id: str) -> NotFound:
    return NotFound(f"no room is called {room_id[:40]!r}", field="room")


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
