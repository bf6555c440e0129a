"""Rooms over the network: made, read live by WebSocket or server-sent events, exported, deleted.

Microphones come through `/v1/realtime`; see `microphones`. Viewers only read: what they send is
passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_stream.captions.export import MEDIA_TYPES, check_format, prepare_export
from moss_stream.captions.house import MAX_CHANGES
from moss_stream.captions.open_room import OpenRoom
from moss_stream.captions.room import Change, Json, Room
from moss_stream.captions.viewers import Viewer
from moss_stream.errors import CapacityError, InvalidMessage, MossStreamError
from moss_stream.server.auth import Authenticator
from moss_stream.server.bodies import read_object
from moss_stream.server.connection import GONE, close_socket
from moss_stream.server.metrics import Metrics
from moss_stream.server.problems import error_response
from moss_stream.server.realtime import accept
from moss_stream.server.room_door import Role, RoomDoor
from moss_stream.server.session import BROKEN, Close

logger = logging.getLogger(__name__)

KEEPALIVE_S: Final = 15.0
"""Longest silence of server-sent events, which proxies take for a dead connection, seconds."""
EXPORTS: Final = 2
"""Exports written at the same time: they compete with everybody's captions."""
LEAVE_S: Final = 10.0
"""How long a viewer that is sent away may take to read what is on its way, seconds: it costs a
socket, and one that was only slow is told why."""
_MAX_DIGITS = 10


class Captions:
    """The endpoints.

    Args:
        door: Of the rooms.
        authenticator: Knows which pages may connect.
        metrics: Counts viewers.
    """

    def __init__(self, door: RoomDoor, authenticator: Authenticator, metrics: Metrics) -> None:
        self._door = door
        self._house = door.house
        self._authenticator = authenticator
        self._metrics = metrics
        self._exporting = asyncio.Semaphore(EXPORTS)

    def routes(self) -> list[BaseRoute]:
        """Routes below `/v1/rooms` and `/v1/captions`; making a room takes a key of the server."""
        return [
            Route("/v1/rooms", self._create, methods=["POST"]),
            Route("/v1/rooms/{room}", self._describe, methods=["GET"]),
            Route("/v1/rooms/{room}", self._delete, methods=["DELETE"]),
            Route("/v1/rooms/{room}/transcript", self._export, methods=["GET"]),
            Route("/v1/rooms/{room}/speakers", self._name, methods=["POST"]),
            Route("/v1/captions/{room}", self._read_events, methods=["GET"]),
            WebSocketRoute("/v1/captions/{room}", self._read_socket),
        ]

    # Rooms.

    async def _create(self, request: Request) -> Response:
        title = (await read_object(request)).get("title", "")
        if not isinstance(title, str):
            raise InvalidMessage(f"title is {title!r:.40}, expected a string", field="title")
        made = await self._house.create(title.strip())
        answer = {
            "room": made.record.id,
            "title": made.record.title,
            "created_at": int(made.record.created_s),
            "publish_token": made.publish_token,
            "view_token": made.view_token,
            "retention_days": self._house.rules.retention_days or None,
        }
        return JSONResponse(answer, 201, {"Cache-Control": "no-store"})

    async def _describe(self, request: Request) -> Response:
        async with self._door.visit(request, request.path_params["room"], Role.VIEW) as visited:
            opened, role = visited
            await opened.soon_saved()
            clock = round(opened.now_s(), 3)
            about = opened.about() | {"role": role.name.lower(), "clock": clock}
            room = opened.room
            return JSONResponse(about | {"revision": room.revision, "names": room.names})

    async def _delete(self, request: Request) -> Response:
        async with self._door.visit(request, request.path_params["room"], Role.MANAGE) as visited:
            await self._house.delete(visited[0])
        return Response(status_code=204)

    async def _export(self, request: Request) -> Response:
        format = check_format(request.query_params.get("format", "txt"))
        async with self._door.visit(request, request.path_params["room"], Role.VIEW) as visited:
            opened, _ = visited
            await opened.soon_saved()
            write = prepare_export(opened.room, opened.about(), format)
        async with self._exporting:
            body = await asyncio.to_thread(write)
        name = f"{opened.record.id}.{format}"
        headers = {"Content-Disposition": f'inline; filename="{name}"', "Cache-Control": "no-store"}
        return Response(body, headers=headers, media_type=MEDIA_TYPES[format])

    async def _name(self, request: Request) -> Response:
        """Give a speaker a name, or say who else it is."""
        async with self._door.visit(request, request.path_params["room"], Role.PUBLISH) as visited:
            body = await read_object(request)
            opened, _ = visited
            opened.check_open()
            if opened.room.revision >= MAX_CHANGES:
                raise CapacityError(f"the room has {MAX_CHANGES} changes", field="room")
            changes = _named(opened.room, body)
            opened.take(changes)
            await opened.soon_saved()
        return JSONResponse(changes[0].body | {"revision": changes[-1].revision})

    # Viewers.

    async def _read_events(self, request: Request) -> Response:
        since = _since(request, request.headers.get("last-event-id"))
        # Not a context manager: the room is held until the answer has been sent.
        opened, role = await self._door.enter(request, request.path_params["room"], Role.VIEW)
        try:
            viewer = await self._join(opened, role, since)
        except BaseException:
            self._house.leave(opened)
            raise

        def left() -> None:
            self._part(opened, viewer)
            self._house.leave(opened)

        return EventStream(viewer, left)

    async def _read_socket(self, websocket: WebSocket) -> None:
        try:
            self._authenticator.check_origin(websocket)
            since = _since(websocket, None)
            room_id = websocket.path_params["room"]
            async with self._door.visit(websocket, room_id, Role.VIEW) as (opened, role):
                viewer = await self._join(opened, role, since)
                try:
                    await accept(websocket)
                    await close_socket(websocket, await _serve(websocket, viewer))
                finally:
                    self._part(opened, viewer)
        except MossStreamError as error:
            await websocket.send_denial_response(error_response(error))

    async def _join(self, opened: OpenRoom, role: Role, since: int | None) -> Viewer:
        self._house.check_viewers()
        viewer = await opened.join(since, role.name.lower())
        self._metrics.viewer_opened()
        return viewer

    def _part(self, opened: OpenRoom, viewer: Viewer) -> None:
        opened.viewers.remove(viewer)
        self._metrics.viewer_closed(viewer.was_dropped)


async def _serve(websocket: WebSocket, viewer: Viewer) -> Close:
    """Send until somebody has had enough; returns how to close."""
    sending = asyncio.create_task(_send(websocket, viewer))
    reading = asyncio.create_task(_read(websocket))
    try:
        ends: set[asyncio.Future[Any]] = {sending, reading, viewer.gone}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if viewer.gone.done():
            await asyncio.wait({sending}, timeout=LEAVE_S)
            farewell = viewer.gone.result()
            return Close(farewell.code, farewell.reason)
        ended = sending if sending.done() else reading
        await ended
        return GONE
    except (WebSocketDisconnect, RuntimeError):
        # RuntimeError is what uvicorn raises on a socket that it is closing itself.
        return GONE
    except Exception:
        logger.exception("viewer broke")
        return BROKEN
    finally:
        for task in (sending, reading):
            task.cancel()
        await asyncio.gather(sending, reading, return_exceptions=True)


async def _send(websocket: WebSocket, viewer: Viewer) -> None:
    while (packet := await viewer.next()) is not None:
        await websocket.send_text(packet.text)


async def _read(websocket: WebSocket) -> None:
    """Wait until the viewer leaves."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


class EventStream(Response):
    """Server-sent events for one viewer.

    Args:
        viewer: Has the events.
        left: Called when it has gone.
    """

    def __init__(self, viewer: Viewer, left: Callable[[], None]) -> None:
        super().__init__()
        self._viewer = viewer
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until somebody has had enough."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = StreamingResponse(self._events(), headers=headers, media_type="text/event-stream")
        sending = asyncio.create_task(stream(scope, receive, send))
        try:
            ends: set[asyncio.Future[Any]] = {sending, self._viewer.gone}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({sending}, timeout=LEAVE_S)
        finally:
            sending.cancel()
            (outcome,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(outcome, Exception):
                logger.info("viewer lost: %s", type(outcome).__name__)
            self._left()

    async def _events(self) -> AsyncIterator[str]:
        while True:
            try:
                async with asyncio.timeout(KEEPALIVE_S):
                    packet = await self._viewer.next()
            except TimeoutError:
                yield ": still here\n\n"
                continue
            if packet is None:
                return
            yield packet.sse


def _named(room: Room, body: Json) -> list[Change]:
    """Carry out what is asked of a speaker."""
    speaker = body.get("speaker")
    if not isinstance(speaker, str):
        raise InvalidMessage("speaker is missing or no string", field="speaker")
    if "same_as" in body:
        same_as = body["same_as"]
        if not isinstance(same_as, str):
            raise InvalidMessage("same_as is no string", field="same_as")
        return room.merge(speaker, same_as)
    name = body.get("name")
    if not (name is None or isinstance(name, str)) or "name" not in body:
        raise InvalidMessage("name is missing, expected a string or null", field="name")
    return [room.rename(speaker, name)]


def _since(connection: HTTPConnection, last_event_id: str | None) -> int | None:
    """The last revision a viewer has, None for a new one."""
    text = last_event_id or connection.query_params.get("since")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS):
        raise InvalidMessage(f"since is {text[:20]!r}, expected a revision", field="since")
    return int(text)
