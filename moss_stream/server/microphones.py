"""Live sessions that are heard in a room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.websockets import WebSocket

from moss_stream.captions.house import MAX_CHANGES, House
from moss_stream.captions.open_room import OpenRoom
from moss_stream.captions.publisher import Publisher
from moss_stream.captions.room import check_participant
from moss_stream.captions.viewers import Farewell
from moss_stream.errors import CapacityError, InvalidMessage
from moss_stream.live.events import Event
from moss_stream.server.config import ServerConfig
from moss_stream.server.hub import Hub
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.registry import Entry, Registry
from moss_stream.server.room_door import Role, RoomDoor
from moss_stream.server.session import Close, Session

Evict = Callable[[Farewell], None]

_FLAGS = {"0": False, "false": False, "1": True, "true": True}


class Seat:
    """A microphone's place in a room, for as long as its session lasts.

    Args:
        house: The rooms.
        opened: The room, which the seat holds open.
        publisher: Writes into it.
    """

    def __init__(self, house: House, opened: OpenRoom, publisher: Publisher) -> None:
        self._house = house
        self._opened = opened
        self._publisher = publisher
        self._evict: Evict | None = None

    def heard(self, end_s: float) -> None:
        """All audio before this time of the stream is here, seconds."""
        self._publisher.clock.note(end_s, self._opened.now_s())

    def told(self, event: Event) -> None:
        """Something happened in the session."""
        self._opened.take(self._publisher.tell(event))

    def take(self, evict: Evict) -> None:
        """A session sits here; `evict` is called when the room is closed under it."""
        self._evict = evict
        self._opened.evictions.add(evict)

    def leave(self) -> None:
        """The session is over."""
        if self._evict is not None:
            self._opened.evictions.discard(self._evict)
            self._evict = None
            self._opened.take(self._publisher.leave())
            self._house.leave(self._opened)


class RoomSession(Session):
    """A session whose text goes to a room as well as to its client.

    Args:
        hub: See `Session`.
        config: See `Session`.
        identity: See `Session`.
        settings: See `Session`.
        seat: Its place in the room.
    """

    def __init__(
        self, hub: Hub, config: ServerConfig, identity: Identity, settings: Settings, seat: Seat
    ) -> None:
        super().__init__(hub, config, identity, settings)
        self._seat = seat
        seat.take(self.evict)

    def arriving(self, end_s: float) -> None:
        """See `Session`. Before any of it is heard, as there may be text before all of it is."""
        self._seat.heard(end_s)

    def told(self, event: Event) -> None:
        """See `Session`. The room hears it first: after a final nothing of it may be lost."""
        self._seat.told(event)
        super().told(event)

    def end(self) -> None:
        """See `Session`."""
        super().end()
        self._seat.leave()

    def evict(self, farewell: Farewell) -> None:
        """The room is closed, maybe by what this session has just said in it."""
        close = Close(farewell.code, farewell.reason, may_return=False)
        asyncio.get_running_loop().call_soon(self.finish, close)


class Microphones:
    """Lets microphones into rooms.

    Args:
        door: Of the rooms.
        registry: Of the sessions.
        hub: What sessions share.
        config: Limits.
    """

    def __init__(self, door: RoomDoor, registry: Registry, hub: Hub, config: ServerConfig) -> None:
        self._door = door
        self._registry = registry
        self._hub = hub
        self._config = config

    async def check(self, websocket: WebSocket) -> None:
        """Find out whether somebody may speak in the room of the query, without beginning.

        Raises:
            MossStreamError: See `RoomDoor.enter`.
        """
        async with self._door.visit(websocket, websocket.query_params["room"], Role.PUBLISH):
            pass

    async def open(self, websocket: WebSocket, settings: Settings) -> Entry[Session]:
        """Begin a session that is heard in the room of the query.

        Raises:
            InvalidMessage: The query has no usable participant.
            CapacityError: The room has as many changes as it may have.
            MossStreamError: See `RoomDoor.enter` and `Registry.admit`.
        """
        query = websocket.query_params
        participant = check_participant(query.get("participant", ""))
        is_shared = _flag("shared", query.get("shared", "0"))
        if is_shared and "preset" not in query:  # voices are known again only by what was before
            settings, _ = settings.updated({"moss": {"preset": "captions"}}, has_audio=False)
        opened, _ = await self._door.enter(websocket, query["room"], Role.PUBLISH)
        return self._seated(opened, participant, is_shared, settings)

    async def join(
        self, credential: str | None, room_id: str, participant: str, settings: Settings
    ) -> Entry[Session]:
        """Begin the session of a known speaker who is heard in a room; see `open`."""
        participant = check_participant(participant)
        opened, _ = await self._door.admit(credential, room_id, Role.PUBLISH)
        return self._seated(opened, participant, False, settings)

    def _seated(
        self, opened: OpenRoom, participant: str, is_shared: bool, settings: Settings
    ) -> Entry[Session]:
        """Begin a session in a room that is held open for it, and is left if that fails."""

        def begin(identity: Identity) -> Session:
            prefix = identity.session_id.removeprefix("sess_")
            publisher = Publisher(opened.room, participant, is_shared, prefix)
            seat = Seat(self._door.house, opened, publisher)
            return RoomSession(self._hub, self._config, identity, settings, seat)

        try:
            if opened.room.revision >= MAX_CHANGES:
                raise CapacityError(
                    f"the room has {opened.room.revision} changes, no more are allowed",
                    field="room",
                )
            return self._registry.admit(begin)
        except BaseException:
            self._door.house.leave(opened)
            raise


def _flag(name: str, value: str) -> bool:
    if value not in _FLAGS:
        raise InvalidMessage(f"{name} is {value[:20]!r}, expected 0 or 1", field=name)
    return _FLAGS[value]
