"""Rooms and their changes in a database: SQLite, or any other that SQLAlchemy has a driver for.

A room is a row, and so is each of its changes; nothing is ever updated but the time of the last
change. One thread does all the work, so what is asked first is done first and the event loop never
waits for a disk. The database is opened when the first room is needed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from moss_stream.captions.room import Change, Room
from moss_stream.errors import CapacityError, ConfigError, StorageError

T = TypeVar("T")

METADATA: Final = MetaData()
ROOMS: Final = Table(
    "rooms",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("title", String(200), nullable=False),
    Column("publish_digest", String(64), nullable=False),
    Column("view_digest", String(64), nullable=False),
    Column("created_s", Float(53), nullable=False),
    Column("changed_s", Float(53), nullable=False, index=True),
)
CHANGES: Final = Table(
    "room_changes",
    METADATA,
    Column("room", String(32), ForeignKey("rooms.id", ondelete="CASCADE"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("kind", String(32), nullable=False),
    Column("body", Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class RoomRecord:
    """What is fixed of a room."""

    id: str
    title: str
    publish_digest: str
    """SHA-256 of the token that opens it to microphones, hexadecimal; the token is not kept."""
    view_digest: str
    """The same of the token that opens it to readers."""
    created_s: float
    """Seconds since 1970: the zero of the room's clock."""


class Store:
    """The rooms in one database.

    Args:
        url: Its address as SQLAlchemy writes it; `sqlite://` lasts as long as the store.

    Raises:
        ConfigError: It is no such address, or there is no driver; never quotes it, as it may hold
            a password.
    """

    def __init__(self, url: str) -> None:
        try:
            # A connection may have died since the last change, minutes ago.
            self._engine = create_engine(url, pool_pre_ping=True)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigError(
                "database is no address that SQLAlchemy opens here, such as "
                f"sqlite:///rooms.sqlite3 ({type(error).__name__})",
                field="database",
            ) from None
        if self._engine.dialect.name == "sqlite":
            event.listen(self._engine, "connect", _set_up_sqlite)
        self._is_open = False
        self._thread = ThreadPoolExecutor(1, "moss-store")

    async def create(self, room: RoomRecord, max_rooms: int) -> None:
        """Add a room.

        Raises:
            CapacityError: There are `max_rooms` already.
            StorageError: The database fails.
        """
        await self._run(_create, room, max_rooms)

    async def load(self, room_id: str) -> tuple[RoomRecord, Room] | None:
        """A room as all its changes have made it; None if there is none.

        Raises:
            StorageError: The database fails.
        """
        return await self._run(_load, room_id)

    async def append(self, room_id: str, changes: Sequence[Change], now_s: float) -> None:
        """Add changes to a room; changes that are there already stay as they are.

        Raises:
            StorageError: The database fails, or somebody else has written to the room.
        """
        await self._run(_append, room_id, changes, now_s)

    async def delete(self, room_id: str) -> None:
        """Delete a room and all its changes.

        Raises:
            StorageError: The database fails.
        """
        await self._run(_delete, [room_id])

    async def expire(self, before_s: float, in_use: Collection[str]) -> list[str]:
        """Delete rooms without a change since `before_s`, but those in use.

        Returns:
            Their ids.

        Raises:
            StorageError: The database fails.
        """
        return await self._run(_expire, before_s, in_use)

    async def close(self) -> None:
        """Finish what was asked for and let the database go."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()

    async def _run(
        self,
        work: Callable[..., T],
        *arguments: Any,
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._transact, work, *arguments)

    def _transact(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do something in a transaction of its own."""
        try:
            if not self._is_open:
                _open(self._engine)
                self._is_open = True
            with self._engine.begin() as connection:
                return work(connection, *arguments)
        except (SQLAlchemyError, OSError) as error:
            # The database's own words hold addresses and rows; its log is the place for them.
            raise StorageError(f"the database failed: {type(error).__name__}") from error


def _open(engine: Engine) -> None:
    if engine.dialect.name == "sqlite" and engine.url.database not in (None, "", ":memory:"):
        path = Path(str(engine.url.database))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What people said is nobody else's business: SQLite would let the whole machine read it.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    METADATA.create_all(engine)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    for pragma in ("foreign_keys = ON", "journal_mode = WAL", "secure_delete = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _create(connection: Connection, room: RoomRecord, max_rooms: int) -> None:
    count = connection.execute(select(func.count()).select_from(ROOMS)).scalar_one()
    if count >= max_rooms:
        raise CapacityError(f"there are {count} rooms, no more are allowed", field="max_rooms")
    connection.execute(
        insert(ROOMS).values(
            id=room.id,
            title=room.title,
            publish_digest=room.publish_digest,
            view_digest=room.view_digest,
            created_s=room.created_s,
            changed_s=room.created_s,
        )
    )


def _load(connection: Connection, room_id: str) -> tuple[RoomRecord, Room] | None:
    row = connection.execute(select(ROOMS).where(ROOMS.c.id == room_id)).one_or_none()
    if row is None:
        return None
    record = RoomRecord(row.id, row.title, row.publish_digest, row.view_digest, row.created_s)
    return record, Room(_changes(connection, room_id, 1))


def _changes(connection: Connection, room_id: str, first: int) -> list[Change]:
    rows = connection.execute(
        select(CHANGES)
        .where(CHANGES.c.room == room_id, CHANGES.c.revision >= first)
        .order_by(CHANGES.c.revision)
    )
    return [Change(row.kind, orjson.loads(row.body), row.revision) for row in rows]


def _append(connection: Connection, room_id: str, changes: Sequence[Change], now_s: float) -> None:
    rows = [
        {
            "room": room_id,
            "revision": change.revision,
            "kind": change.kind,
            "body": orjson.dumps(change.body).decode(),
        }
        for change in changes
    ]
    # A transaction may have gone through although its answer was lost, and is tried again.
    stored = _changes(connection, room_id, changes[0].revision or 0)
    if stored != list(changes[: len(stored)]):
        raise IntegrityError("another process has written to the room", None, ValueError())
    if rows[len(stored) :]:
        connection.execute(insert(CHANGES), rows[len(stored) :])
        connection.execute(update(ROOMS).where(ROOMS.c.id == room_id).values(changed_s=now_s))


def _delete(connection: Connection, room_ids: Sequence[str]) -> None:
    connection.execute(delete(CHANGES).where(CHANGES.c.room.in_(room_ids)))
    connection.execute(delete(ROOMS).where(ROOMS.c.id.in_(room_ids)))


def _expire(connection: Connection, before_s: float, in_use: Collection[str]) -> list[str]:
    ids = connection.execute(select(ROOMS.c.id).where(ROOMS.c.changed_s < before_s)).scalars()
    expired = [room_id for room_id in ids if room_id not in in_use]
    for room_id in expired:
        _delete(connection, [room_id])
    return expired
