"""A socket that carries a session: it reads and sends until one side ends it.

It knows no protocol. What went wrong ends here as a close code.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NoReturn, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from moss_stream.errors import MossStreamError, TooSlow
from moss_stream.server.config import ServerConfig
from moss_stream.server.event_log import EventLog
from moss_stream.server.inbox import Inbox
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.session import BROKEN, Close

logger = logging.getLogger(__name__)

GONE = Close(1006)
"""The client is not there any more: there is nothing to close."""
_CLOSE_TIMEOUT_S = 2.0
_READ_AHEAD = 1 << 20
"""Bytes of messages read while others wait for room: behind more than that a client that leaves is
not noticed."""
_TURN = 16
"""Messages that are carried out in one go."""
_LAST_WORDS_S = 1.0
"""How long what a client sent before it left may take to be carried out."""
_MAX_REASON_BYTES = 120


class Carried(Protocol):
    """The server's side of a client's stream, whatever protocol it speaks."""

    identity: Identity
    log: EventLog
    """What to send; the socket is closed once it is sent and complete."""
    close: Close
    """How to close the socket then."""

    @property
    def idle_timeout_s(self) -> float:
        """Longest the client may send nothing, seconds."""
        ...

    def idle(self) -> Close | None:
        """Nothing came for so long: how to close now, None to go on."""
        ...

    async def take(self, message: str | bytes) -> None:
        """Carry out a client's message; waits while there is no room for it."""
        ...

    def finish(self, close: Close) -> None:
        """End the audio here; the log is complete when the rest of the text is in it."""
        ...

    def end(self) -> None:
        """Let go of everything but the log."""
        ...


class Connection:
    """A socket that carries a session.

    Args:
        websocket: Accepted.
        session: What it carries.
        config: Timeouts.
    """

    def __init__(self, websocket: WebSocket, session: Carried, config: ServerConfig) -> None:
        self._websocket = websocket
        self._session = session
        self._config = config
        self._inbox = Inbox(_READ_AHEAD)
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
            asyncio.create_task(self._take()),
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
        """Read on while a message waits for room: else nobody notices that its client is gone."""
        while True:
            try:
                async with asyncio.timeout(self._session.idle_timeout_s):
                    message = await self._websocket.receive()
            except TimeoutError:
                close = self._session.idle() if self._inbox.is_empty else None
                if close is not None:
                    return close
                continue
            if message["type"] == "websocket.disconnect":
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await self._inbox.emptied()
                code = message.get("code") or GONE.code
                return Close(code, may_return=code != 1000)
            data = message.get("bytes")
            await self._inbox.put(message["text"] if data is None else data)

    async def _take(self) -> NoReturn:
        while True:
            for _ in range(_TURN):
                await self._session.take(await self._inbox.get())
            await asyncio.sleep(0)  # others get their turn, however much waits

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


async def close_socket(websocket: WebSocket, close: Close) -> None:
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
