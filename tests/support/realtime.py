"""A whole server on a real port, and a client that speaks to it in plain WebSocket messages."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from moss_stream.audio.pcm import encode_s16le
from moss_stream.audio.resample import resample
from moss_stream.engine.engine import Engine
from moss_stream.model.checkpoint import Model
from moss_stream.model.vad import load_vad
from moss_stream.server.app import Backend
from moss_stream.server.config import ServerConfig
from moss_stream.server.serve import DrainingServer

PATIENCE_S = 30


class NoRecordings:
    """Stands in for the transcriber where a test sends no files."""

    description: ClassVar[dict[str, Any]] = {"max_audio_s": 60.0}


@contextmanager
def make_backend(model: Model) -> Iterator[Backend]:
    engine = Engine(model, threads=2)
    try:
        yield Backend("mini", model, engine, load_vad(), NoRecordings())
    finally:
        engine.close()


class Running:
    """A server that runs in a thread."""

    def __init__(self, server: DrainingServer) -> None:
        self.server = server
        self.port = server.servers[0].sockets[0].getsockname()[1]
        self.registry = server.app.state.registry

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime?intent=transcription"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def sessions_end(self) -> bool:
        """Wait until no session is left, or for too long."""
        ends_s = time.monotonic() + PATIENCE_S
        while len(self.registry) and time.monotonic() < ends_s:
            time.sleep(0.01)
        return len(self.registry) == 0

    def drain(self) -> None:
        """As SIGTERM does."""
        self.server._loop.call_soon_threadsafe(self.server.drain)


@contextmanager
def running(backend: Backend, **options: Any) -> Iterator[Running]:
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = DrainingServer(ServerConfig(port=0, **{"preset": "agent"} | options), backend)
    started = threading.Event()
    startup = server.startup

    async def tell(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = tell
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(PATIENCE_S)
        yield Running(server)
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class Client:
    """A socket and the events that came on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def update(self, **session: Any) -> None:
        await self.send("session.update", session={"type": "transcription", **session})

    async def append(self, samples: np.ndarray, rate_hz: int = 24_000) -> None:
        data = encode_s16le(resample(samples, 16_000, rate_hz))
        await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            event = json.loads(await self.socket.recv())
        self.events.append(event)
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            event = await self.next()
            if event["type"] == kind:
                return event

    async def rest(self) -> int:
        """Read until the server closes; returns its close code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            return self.socket.close_code

    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def seqs(self) -> list[int]:
        return [event["moss"]["seq"] for event in self.events if "seq" in event["moss"]]


async def open_client(server: Running, query: str = "", **options: Any) -> Client:
    return Client(await connect(server.url + query, max_size=None, **options))
