"""`WS /v1/realtime`: one socket at a time carries a session."""

from __future__ import annotations

import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from moss_stream.errors import MossStreamError
from moss_stream.server.auth import Authenticator
from moss_stream.server.config import ServerConfig
from moss_stream.server.connection import GONE, Connection, close_socket
from moss_stream.server.microphones import Microphones
from moss_stream.server.problems import error_response
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.registry import RESTARTING, Entry, Registry
from moss_stream.server.session import Close, Session

SUBPROTOCOL = "realtime"
UNKNOWN = Close(4404, "no such session to resume")


class Realtime:
    """The endpoint.

    Args:
        registry: Keeps the sessions.
        authenticator: Lets clients in.
        microphones: Lets in those that are heard in a room.
        config: Limits.
    """

    def __init__(
        self,
        registry: Registry,
        authenticator: Authenticator,
        microphones: Microphones,
        config: ServerConfig,
    ) -> None:
        self._registry = registry
        self._authenticator = authenticator
        self._microphones = microphones
        self._config = config

    def routes(self) -> list[WebSocketRoute]:
        """Route `/v1/realtime`."""
        return [WebSocketRoute("/v1/realtime", self._endpoint)]

    async def _endpoint(self, websocket: WebSocket) -> None:
        token = websocket.query_params.get("resume")
        try:
            self._authenticator.check_origin(websocket)
            if "room" not in websocket.query_params:
                grant = self._authenticator.authenticate(websocket)
                if token is None:
                    entry = self._registry.open(self._settings(websocket, grant.session or {}))
            elif token is None:
                entry = await self._microphones.open(websocket, self._settings(websocket, {}))
            else:
                await self._microphones.check(websocket)
        except MossStreamError as error:
            await websocket.send_denial_response(error_response(error))
            return
        if token is None:
            await self._begin(websocket, entry)
        else:
            await self._come_back(websocket, token)

    async def _begin(self, websocket: WebSocket, entry: Entry[Session]) -> None:
        try:
            await accept(websocket)
        except BaseException:
            self._registry.remove(entry)
            raise
        carrier = Connection(websocket, entry.session, self._config)
        if await self._registry.attach(entry, carrier):
            await self._carry(websocket, entry, carrier)
        else:
            await close_socket(websocket, RESTARTING)

    async def _come_back(self, websocket: WebSocket, token: str) -> None:
        await accept(websocket)
        entry = self._registry.find(token)
        if entry is None:
            await _refuse_resume(websocket, "the session is over or has never been")
            return
        carrier = Connection(websocket, entry.session, self._config)
        if not await self._registry.attach(entry, carrier):
            await _refuse_resume(websocket, "the session is over")
            return
        last_seq = websocket.query_params.get("last_seq", "0")
        is_number = last_seq.isascii() and last_seq.isdecimal() and len(last_seq) < 19
        first = entry.session.resume(int(last_seq)) if is_number else None
        if first is None:
            self._registry.detach(entry, carrier, may_return=True)
            await _refuse_resume(
                websocket, f"last_seq is {last_seq[:20]!r}, the events after it are not kept"
            )
            return
        await self._carry(websocket, entry, carrier, orjson.dumps(first).decode())

    async def _carry(
        self, websocket: WebSocket, entry: Entry[Session], carrier: Connection, first: str = ""
    ) -> None:
        close = GONE
        try:
            close = await carrier.carry(first)
        finally:
            self._registry.detach(entry, carrier, may_return=close.may_return)
        await close_socket(websocket, close)

    def _settings(self, websocket: WebSocket, granted: object) -> Settings:
        """What a session starts with: the server's preset, the key's options, the query's."""
        query = websocket.query_params
        settings = Settings(preset=self._config.preset)
        if isinstance(granted, dict):
            settings, _ = settings.updated(granted, has_audio=False)
        asked: dict[str, object] = {}
        if "preset" in query:
            asked["moss"] = {"preset": query["preset"]}
        if "language" in query:
            transcription = {"language": query["language"]}
            asked["audio"] = {"input": {"transcription": transcription}}
        settings, _ = settings.updated(asked, has_audio=False)
        return settings


async def accept(websocket: WebSocket) -> None:
    """Take a socket, with our subprotocol if it is offered: a browser wants one of its own back."""
    offered = websocket.scope.get("subprotocols", ())
    await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)


async def _refuse_resume(websocket: WebSocket, message: str) -> None:
    error = {
        "type": "invalid_request_error",
        "code": "resume_expired",
        "message": message,
        "param": "resume",
        "event_id": None,
    }
    event = {"type": "error", "event_id": "event_0", "error": error, "moss": {}}
    try:
        await websocket.send_text(orjson.dumps(event).decode())
    except WebSocketDisconnect:
        return
    await close_socket(websocket, UNKNOWN)
