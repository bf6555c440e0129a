"""`WS /twilio`: phone calls from Twilio Media Streams; what is said goes to a webhook or a room.

Each track of a call is a session of its own, with the limits, the metrics and the end that live
sessions have. Nothing is sent to Twilio: the socket carries the call's audio one way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from moss_stream.errors import InvalidMessage, MossStreamError, Unauthorized
from moss_stream.server.auth import Authenticator, credential_of
from moss_stream.server.config import ServerConfig
from moss_stream.server.connection import GONE, close_socket
from moss_stream.server.microphones import Microphones
from moss_stream.server.problems import error_response
from moss_stream.server.protocols.call_report import CallReport
from moss_stream.server.protocols.settings import AudioFormat, Settings
from moss_stream.server.protocols.twilio import RATE_HZ, Audio, MediaStream, Start, Stop
from moss_stream.server.registry import Entry, Registry
from moss_stream.server.session import BROKEN, IDLE, NORMAL, Close, Session
from moss_stream.server.webhook import Webhook, check_address, parse_place

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 10.0
"""Longest a call may take to start, seconds."""
DELIVERY_TIMEOUT_S = 30.0
"""Longest a call's last events are tried after it, seconds."""
FORMAT = AudioFormat("audio/pcmu", RATE_HZ)

Tell = Callable[[Mapping[str, Any]], None]
"""Takes an event of a call."""


class Track:
    """One side of a call, at work.

    Args:
        registry: Keeps its session.
        entry: The session.
        name: The track's.
        report: Translates what it says.
        tell: Called with that.
    """

    def __init__(
        self,
        registry: Registry,
        entry: Entry[Session],
        name: str,
        report: CallReport,
        tell: Tell,
    ) -> None:
        self.session = entry.session
        self._registry = registry
        self._entry = entry
        self._name = name
        self._report = report
        self._tell = tell
        self.task = asyncio.create_task(self._report_all(), name=f"call-{name}")

    async def leave(self, close: Close) -> None:
        """See `registry.Carrier`."""
        self.session.close = close
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _report_all(self) -> None:
        """Report what the session says until it is over."""
        log = self.session.log
        while (text := await log.next()) is not None:
            event = self._report.told(self._name, orjson.loads(text))
            log.sent()
            if event is not None:
                self._tell(event)

    async def end(self) -> None:
        """Report the rest of its text, and let it go."""
        self.session.finish(NORMAL)
        await asyncio.wait({self.task})
        self.release()

    def release(self) -> None:
        """Let it go."""
        self.task.cancel()
        self._registry.detach(self._entry, self, may_return=False)


class Twilio:
    """The endpoint.

    Args:
        registry: Keeps the sessions.
        microphones: Lets those into rooms that are heard there.
        authenticator: Lets clients in.
        config: Limits, and the hosts that webhooks may be on.

    Raises:
        ConfigError: Such a host is malformed.
    """

    def __init__(
        self,
        registry: Registry,
        microphones: Microphones,
        authenticator: Authenticator,
        config: ServerConfig,
    ) -> None:
        self._registry = registry
        self._microphones = microphones
        self._authenticator = authenticator
        self._config = config
        self._allowed = frozenset(parse_place(place) for place in config.webhook_allow)

    def routes(self) -> list[WebSocketRoute]:
        """Route `/twilio`."""
        return [WebSocketRoute("/twilio", self._endpoint)]

    async def _endpoint(self, websocket: WebSocket) -> None:
        try:
            self._authenticator.check_origin(websocket)
        except MossStreamError as error:
            await websocket.send_denial_response(error_response(error))
            return
        await websocket.accept()
        stream = MediaStream()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                start = await _await_start(websocket, stream)
            if start is None:
                return
            url = self._check(websocket, start)
            settings = self._settings(start)
        except TimeoutError:
            await close_socket(websocket, Close(1008, f"no start within {START_TIMEOUT_S:g} s"))
            return
        except MossStreamError as error:
            await close_socket(websocket, _refusal(error))
            return
        await self._serve(websocket, stream, start, settings, url)

    def _check(self, websocket: WebSocket, start: Start) -> httpx.URL | None:
        """Find out where a call's events go, and whether it may send them there.

        Returns:
            A web address; None when the call is heard in a room alone, which checks its token.

        Raises:
            Unauthorized: It has no key, in the handshake or in its parameters.
            InvalidMessage: It names neither a webhook nor a room.
            Forbidden: Its webhook is not allowed.
        """
        address = start.parameters.get("webhook", websocket.query_params.get("webhook"))
        if address is None and "room" in start.parameters:
            return None
        try:
            self._authenticator.authenticate(websocket)
        except Unauthorized:
            # Twilio sets no header and no query of ours.
            self._authenticator.admit(start.parameters.get("token"))
        if address is None:
            raise InvalidMessage("the call names neither a webhook nor a room", field="webhook")
        return check_address(address, self._allowed)

    def _settings(self, start: Start) -> Settings:
        settings = Settings(preset=self._config.preset, format=FORMAT)
        if "preset" in start.parameters:
            asked = {"moss": {"preset": start.parameters["preset"]}}
            settings, _ = settings.updated(asked, has_audio=False)
        return settings

    async def _serve(
        self,
        websocket: WebSocket,
        stream: MediaStream,
        start: Start,
        settings: Settings,
        url: httpx.URL | None,
    ) -> None:
        report = CallReport(start)
        close = BROKEN
        async with _delivering(url) as tell:
            try:
                async with self._tracks(websocket, start, settings, report, tell) as tracks:
                    tell(report.started())
                    close = await self._listen(websocket, stream, tracks)
                    await close_socket(websocket, close)
                    await asyncio.gather(*(track.end() for track in tracks.values()))
            except MossStreamError as error:
                close = _refusal(error)
                await close_socket(websocket, close)
            finally:
                tell(report.stopped(close.reason))

    @asynccontextmanager
    async def _tracks(
        self,
        websocket: WebSocket,
        start: Start,
        settings: Settings,
        report: CallReport,
        tell: Tell,
    ) -> AsyncIterator[dict[str, Track]]:
        """A session for each track.

        Raises:
            TooManyStreams: There is no room for all of them.
            EngineStopped: The server is about to stop.
            MossStreamError: See `Microphones.join`.
        """
        tracks: dict[str, Track] = {}
        async with AsyncExitStack() as stack:
            for name in start.tracks:
                entry = await self._open(websocket, start, settings, report.speaker(name))
                track = Track(self._registry, entry, name, report, tell)
                tracks[name] = track
                stack.callback(track.release)
                await self._registry.attach(entry, track)
            yield tracks

    async def _open(
        self, websocket: WebSocket, start: Start, settings: Settings, speaker: str
    ) -> Entry[Session]:
        room = start.parameters.get("room")
        if room is None:
            return self._registry.open(settings)
        credential = credential_of(websocket) or start.parameters.get("token")
        return await self._microphones.join(credential, room, speaker, settings)

    async def _listen(
        self, websocket: WebSocket, stream: MediaStream, tracks: dict[str, Track]
    ) -> Close:
        """Feed the tracks until the call, or the session of a track, ends; returns how."""
        reading = asyncio.create_task(self._read(websocket, stream, tracks))
        try:
            await asyncio.wait(
                {reading, *(track.task for track in tracks.values())},
                return_when=asyncio.FIRST_COMPLETED,
            )
            if reading.done():
                return reading.result()
            return next(t.session.close for t in tracks.values() if t.task.done())
        except MossStreamError as error:
            return _refusal(error)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(
        self, websocket: WebSocket, stream: MediaStream, tracks: dict[str, Track]
    ) -> Close:
        """Feed the tracks until the client stops or is gone."""
        while True:
            try:
                async with asyncio.timeout(self._config.idle_timeout_s):
                    events = await _receive(websocket, stream)
            except TimeoutError:
                return IDLE
            if events is None:
                return GONE
            for event in events:
                match event:
                    case Audio():
                        await tracks[event.track].session.take(event.data)
                    case Stop():
                        return NORMAL


async def _receive(websocket: WebSocket, stream: MediaStream) -> list[Start | Audio | Stop] | None:
    """What the client's next message means; None when it is gone.

    Raises:
        MossStreamError: The message is wrong.
    """
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        return None
    if message.get("text") is None:
        raise InvalidMessage("a binary message, expected JSON text")
    return list(stream.read(message["text"]))


async def _await_start(websocket: WebSocket, stream: MediaStream) -> Start | None:
    """The start of the call; None when the client is gone before."""
    while (events := await _receive(websocket, stream)) is not None:
        for event in events:
            if isinstance(event, Start):
                return event
    return None


def _refusal(error: MossStreamError) -> Close:
    return Close(error.close_code or BROKEN.code, error.message, may_return=error.retryable)


@asynccontextmanager
async def _delivering(url: httpx.URL | None) -> AsyncIterator[Tell]:
    """Deliver a call's events; at the end wait until all are, or for too long."""
    if url is None:
        yield lambda event: None
        return
    webhook = Webhook(url)
    delivery = asyncio.create_task(webhook.deliver(), name="call-webhook")
    try:
        yield webhook.put
    finally:
        try:
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                await webhook.finish()
                await delivery
        except (TimeoutError, asyncio.CancelledError) as reason:
            logger.warning("webhook events left undelivered")
            if not isinstance(reason, TimeoutError):
                raise
        finally:
            delivery.cancel()
