"""`WS /v1/realtime`: one socket at a time carries a session."""

from __future__ import annotations

import asyncio
import logging

import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from moss_stream.errors import MossStreamError, TooSlow
from moss_stream.server.auth import Authenticator
from moss_stream.server.config import ServerConfig
from moss_stream.server.problems import error_response
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.registry import RESTARTING, Entry, Registry
from moss_stream.server.session import BROKEN, Close

logger = logging.getLogger(__name__)

SUBPROTOCOL = "realtime"
UNKNOWN = Close(4404, "no such session to resume")
IDLE = Close(4408, "nothing came for too long", may_return=False)
GONE = Close(1006)
"""The client is not there any more: there is nothing to close."""
_CLOSE_TIMEOUT_S = 2.0
_MAX_REASON_BYTES = 120


class Connection:
    """A socket that carries a session.

    Args:
        websocket: Accepted.
        entry: The session.
        config: Timeouts.
    """

    def __init__(self, websocket: WebSocket, entry: Entry, config: ServerConfig) -> None:
        self._websocket = websocket
        self._session = entry.session
        self._config = config
        self._asked_to_leave: asyncio.Future[Close] = asyncio.get_running_loop().create_future()
        self._has_left = asyncio.Event()

    async def leave(self, close: Close) -> None:
        """See `registry.Carrier`."""
        if not self._asked_to_leave.done():
            self._asked_to_leave.set_result(close)
        await self._has_left.wait()

    async def carry(self, first: str = "") -> Close:
        """Read and send until one side ends it.

        Args:
            first: A message before those of the session.

        Returns:
            How it ended.
        """
        tasks: set[asyncio.Future[Close]] = {
            asyncio.create_task(self._read()),
            asyncio.create_task(self._send(first)),
        }
        try:
            done, _ = await asyncio.wait(
                {*tasks, self._asked_to_leave}, return_when=asyncio.FIRST_COMPLETED
            )
            return self._asked_to_leave.result() if self._asked_to_leave in done else _end(done)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._has_left.set()

    async def _read(self) -> Close:
        while True:
            try:
                async with asyncio.timeout(self._config.idle_timeout_s):
                    message = await self._websocket.receive()
            except TimeoutError:
                return IDLE
            if message["type"] == "websocket.disconnect":
                code = message.get("code") or GONE.code
                return Close(code, may_return=code != 1000)
            data = message.get("bytes")
            await self._session.take(message["text"] if data is None else data)

    async def _send(self, first: str) -> Close:
        log = self._session.log
        if first:
            await self._send_one(first)
        while (text := await log.next()) is not None:
            await self._send_one(text)
            log.sent()
        return self._session.close

    async def _send_one(self, text: str) -> None:
        try:
            async with asyncio.timeout(self._config.send_timeout_s):
                await self._websocket.send_text(text)
        except TimeoutError:
            raise TooSlow(
                f"one event was not read for {self._config.send_timeout_s:g} s",
                field="send_timeout_s",
            ) from None
        except RuntimeError:
            # What uvicorn raises on a socket that it is closing itself, as after a message that
            # is too big.
            raise WebSocketDisconnect(GONE.code) from None


def _end(done: set[asyncio.Future[Close]]) -> Close:
    """How the first task that ended wants it."""
    try:
        return next(iter(done)).result()
    except WebSocketDisconnect:
        return GONE
    except MossStreamError as error:
        code = error.close_code or BROKEN.code
        return Close(code, error.message, may_return=error.retryable)
    except Exception:
        logger.exception("socket failed")
        return BROKEN


class Realtime:
    """The endpoint.

    Args:
        registry: Keeps the sessions.
        authenticator: Lets clients in.
        config: Limits.
    """

    def __init__(
        self, registry: Registry, authenticator: Authenticator, config: ServerConfig
    ) -> None:
        self._registry = registry
        self._authenticator = authenticator
        self._config = config

    def routes(self) -> list[WebSocketRoute]:
        """Route `/v1/realtime`."""
        return [WebSocketRoute("/v1/realtime", self._endpoint)]

    async def _endpoint(self, websocket: WebSocket) -> None:
        token = websocket.query_params.get("resume")
        try:
            self._authenticator.check_origin(websocket)
            grant = self._authenticator.authenticate(websocket)
            if token is None:
                entry = self._registry.open(self._settings(websocket, grant.session or {}))
        except MossStreamError as error:
            await websocket.send_denial_response(error_response(error))
            return
        if token is None:
            await self._begin(websocket, entry)
        else:
            await self._come_back(websocket, token)

    async def _begin(self, websocket: WebSocket, entry: Entry) -> None:
        try:
            await _accept(websocket)
        except BaseException:
            self._registry.remove(entry)
            raise
        carrier = Connection(websocket, entry, self._config)
        if await self._registry.attach(entry, carrier):
            await self._carry(websocket, entry, carrier)
        else:
            await _close(websocket, RESTARTING)

    async def _come_back(self, websocket: WebSocket, token: str) -> None:
        await _accept(websocket)
        entry = self._registry.find(token)
        if entry is None:
            await _refuse_resume(websocket, "the session is over or has never been")
            return
        carrier = Connection(websocket, entry, self._config)
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
        self, websocket: WebSocket, entry: Entry, carrier: Connection, first: str = ""
    ) -> None:
        close = GONE
        try:
            close = await carrier.carry(first)
        finally:
            self._registry.detach(entry, carrier, may_return=close.may_return)
        await _close(websocket, close)

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


async def _accept(websocket: WebSocket) -> None:
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
    await _close(websocket, UNKNOWN)


async def _close(websocket: WebSocket, close: Close) -> None:
    """Close a socket that may be gone or stuck."""
    if WebSocketState.DISCONNECTED in (websocket.client_state, websocket.application_state):
        return
    code = BROKEN.code if close.code == GONE.code else close.code
    reason = close.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await websocket.close(code, reason)
    except (TimeoutError, WebSocketDisconnect, RuntimeError) as error:
        logger.info("socket not closed: %s", type(error).__name__)
