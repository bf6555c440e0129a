"""A room that somebody is in: what is said is stored, and then told to those who read.

Partials are told at once. What settles is stored first, in order; while the database fails it is
held back and tried again, and viewers are told so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import orjson

from moss_stream.captions.room import Change, Json, Room
from moss_stream.captions.store import RoomRecord, Store
from moss_stream.captions.viewers import BROKEN, Farewell, Viewer, Viewers
from moss_stream.errors import StorageError

logger = logging.getLogger(__name__)

MAX_UNSAVED: Final = 4096
"""Most changes that wait for the database."""
SAVE_PATIENCE_S: Final = 5.0
"""How long somebody who wants the whole transcript waits for the database, seconds."""
_FIRST_RETRY_S = 0.25
_LAST_RETRY_S = 5.0


class OpenRoom:
    """One room at work. Make and use it on one event loop.

    Args:
        record: What is fixed of it.
        room: What was stored of it.
        store: Where it is stored.
        max_waiting: Messages that may wait for one viewer.
    """

    def __init__(self, record: RoomRecord, room: Room, store: Store, max_waiting: int) -> None:
        self.record = record
        self.room = room
        self.viewers = Viewers(max_waiting)
        self.users = 0
        """Viewers, microphones and requests that hold it open."""
        self.evictions: set[Callable[[Farewell], None]] = set()
        """Called when the room is closed under its microphones."""
        self.is_closed = False
        """Whether nothing is taken any more."""
        self._store = store
        self._zero_s = time.time() - record.created_s - time.monotonic()
        self._unsaved: deque[Change] = deque()
        self._changed = asyncio.Event()
        self._encoded = (-1, orjson.Fragment(b""))
        self._writer = asyncio.create_task(self._write())
        self._writer.add_done_callback(self._on_end)

    def now_s(self) -> float:
        """The time in the room, seconds."""
        return max(0.0, time.monotonic() + self._zero_s)

    def about(self) -> Json:
        """What is fixed, as it is told."""
        return {
            "room": self.record.id,
            "title": self.record.title,
            "created_at": int(self.record.created_s),
        }

    def take(self, changes: Iterable[Change]) -> None:
        """Tell partials, and store and tell the rest.

        When too many wait to be stored the room is closed as broken: it may be opened again as far
        as it is stored.
        """
        for change in changes:
            if self.is_closed:
                return
            if change.revision is None:
                self.viewers.publish(change.message())
            elif len(self._unsaved) < MAX_UNSAVED:
                self._unsaved.append(change)
                self._changed.set()
            else:
                logger.critical("not stored for too long, changes lost room=%s", self.record.id)
                self.close(BROKEN)

    async def saved(self) -> None:
        """Wait until all changes are stored and told."""
        while self._unsaved:
            self._changed.clear()
            await self._changed.wait()

    async def soon_saved(self) -> None:
        """Wait until all changes are stored and told, but not for ever.

        Raises:
            StorageError: It takes too long.
        """
        try:
            async with asyncio.timeout(SAVE_PATIENCE_S):
                await self.saved()
        except TimeoutError:
            raise StorageError(
                f"the database has not stored the room for {SAVE_PATIENCE_S:g} s", field="database"
            ) from None

    async def join(self, since: int | None, role: str) -> Viewer:
        """Let a viewer in.

        Args:
            since: The last revision it has, None for a new one.
            role: What it is told that it may do.

        Raises:
            StorageError: What has settled cannot be stored, so nothing can be told.
        """
        await self.soon_saved()
        self.check_open()
        return self.viewers.add(self._first(since, role))

    def check_open(self) -> None:
        """Refuse what comes while the room is being closed.

        Raises:
            StorageError: It is.
        """
        if self.is_closed:
            raise StorageError("the room was closed meanwhile", field="room")

    def close(self, farewell: Farewell) -> None:
        """Send everybody away and store nothing more."""
        self.viewers.close(farewell)
        self.stop()
        for evict in list(self.evictions):
            evict(farewell)

    def stop(self) -> None:
        """Store nothing more."""
        self.is_closed = True
        self._unsaved.clear()
        self._changed.set()
        self._writer.cancel()

    def _on_end(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled() and (bug := writer.exception()) is not None:
            logger.critical("room broke room=%s", self.record.id, exc_info=bug)
            self.close(BROKEN)

    def _first(self, since: int | None, role: str) -> Iterator[dict[str, Any]]:
        room = self.room
        missed = None if since is None else room.since(since)
        told = self.about() | {"role": role, "clock": round(self.now_s(), 3)}
        if missed is None:
            yield {
                "type": "room.snapshot",
                **told,
                "revision": room.revision,
                "names": room.names,
                "entries": self._entries(),
                "partials": room.partials(),
            }
            return
        partials = room.partials()
        yield {"type": "room.resumed", **told, "revision": since, "partials": partials}
        for change in missed:
            yield change.message()

    def _entries(self) -> orjson.Fragment:
        """All entries, encoded once for all who come before the next change."""
        if self._encoded[0] != self.room.revision:
            entries = orjson.Fragment(orjson.dumps(self.room.entries()))
            self._encoded = (self.room.revision, entries)
        return self._encoded[1]

    async def _write(self) -> None:
        while True:
            while not self._unsaved:
                self._changed.clear()
                await self._changed.wait()
            batch = list(self._unsaved)
            await self._save(batch)
            for change in batch:
                self._unsaved.popleft()
                self.viewers.publish(change.message())
            self._changed.set()

    async def _save(self, batch: list[Change]) -> None:
        retry_s = _FIRST_RETRY_S
        while True:
            try:
                await self._store.append(self.record.id, batch, time.time())
                return
            except StorageError as error:
                logger.warning("not stored room=%s: %s", self.record.id, error)
                message = "the database fails: settled text is held back until it works again"
                self.viewers.publish(
                    {"type": "room.warning", "code": "not_stored", "message": message}
                )
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_RETRY_S)
