"""Who may do what in a room: its two tokens, and the server's own keys."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

from starlette.requests import HTTPConnection

from moss_stream.captions.house import House, digest
from moss_stream.captions.open_room import OpenRoom
from moss_stream.captions.store import RoomRecord
from moss_stream.errors import Forbidden, Unauthorized
from moss_stream.server.auth import Authenticator, credential_of


class Role(IntEnum):
    """What somebody may do; each may do what those before it may."""

    VIEW = 1
    """Read."""
    PUBLISH = 2
    """Speak, and name speakers."""
    MANAGE = 3
    """Delete the room."""


class RoomDoor:
    """Lets people into rooms.

    Args:
        house: The rooms.
        authenticator: Knows the server's keys. Where there are none, whoever may speak in a room
            manages it.
    """

    def __init__(self, house: House, authenticator: Authenticator) -> None:
        self.house = house
        self._authenticator = authenticator

    async def enter(
        self, connection: HTTPConnection, room_id: str, needed: Role
    ) -> tuple[OpenRoom, Role]:
        """Let somebody in whose token comes as a key does; see `admit`."""
        return await self.admit(credential_of(connection), room_id, needed)

    async def admit(
        self, credential: str | None, room_id: str, needed: Role
    ) -> tuple[OpenRoom, Role]:
        """Let somebody in who will leave by `house.leave`.

        Raises:
            Unauthorized: There is no token, or it is not one of this room.
            Forbidden: It is one, but not for `needed`.
            NotFound: There is no such room.
            EngineStopped: The server is about to stop.
            StorageError: The database fails.
        """
        opened = await self.house.enter(room_id)
        try:
            role = self._role(credential, opened.record)
            if role < needed:
                raise Forbidden(
                    f"this token is for {role.name.lower()}, needed is {needed.name.lower()}",
                    field="token",
                )
        except BaseException:
            self.house.leave(opened)
            raise
        return opened, role

    @asynccontextmanager
    async def visit(
        self, connection: HTTPConnection, room_id: str, needed: Role
    ) -> AsyncIterator[tuple[OpenRoom, Role]]:
        """Let somebody in for a while; see `enter`."""
        opened, role = await self.enter(connection, room_id, needed)
        try:
            yield opened, role
        finally:
            self.house.leave(opened)

    def _role(self, credential: str | None, room: RoomRecord) -> Role:
        if credential is None:
            raise Unauthorized("a token of the room is needed: ?token=TOKEN", field="token")
        is_open = self._authenticator.is_open
        given = digest(credential)
        if hmac.compare_digest(given, room.publish_digest):
            return Role.MANAGE if is_open else Role.PUBLISH
        if hmac.compare_digest(given, room.view_digest):
            return Role.VIEW
        if is_open:
            raise Unauthorized("the token is not one of this room", field="token")
        if self._authenticator.admit(credential).is_ephemeral:
            raise Forbidden("a client secret opens no rooms; use a token", field="token")
        return Role.MANAGE
