"""A scripted server on loopback: a deterministic session behind a connection that can go wrong.

What a session says depends only on the samples it received, so a run with faults must give the
events of the undisturbed run. Every message in or out is a *point*; a plan names the fault of a
point.
"""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

BLOCK_SAMPLES = 400
"""Samples for each word of the fake transcript."""
BLOCKS_PER_ITEM = 3
TRANSCRIPTION = "conversation.item.input_audio_transcription"
FAULTS = ("cut_before", "cut_after", "twice", "late", "swapped", "refuse")

Plan = Callable[[int], str | None]


class Cut(Exception):
    """The script drops the connection here."""


class FakeSession:
    """The server's side of one stream: samples in, a numbered log of events out."""

    def __init__(self, token: str, grace_s: float) -> None:
        self.token = token
        self.grace_s = grace_s
        self.log: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self.owner: object = None
        self.pcm = bytearray()
        self.wants: dict[str, Any] = {}
        self.rate_hz = 24000
        self.holds_acks = False
        self.speakers = {"S01", "S02", "S03"}
        self.merges: list[tuple[str, str]] = []
        """Those that came, carried out or not."""
        self._done_blocks = 0
        self._words: list[str] = []
        self.close_code: int | None = None
        """With what to close once all events are sent, None to stay open."""
        self.emit("session.created", session=self.describe())

    @property
    def received_samples(self) -> int:
        return len(self.pcm) // 2

    def describe(self) -> dict[str, Any]:
        return {
            "id": "sess_1",
            "type": "transcription",
            "audio": {"input": {"format": {"type": "audio/pcm", "rate": self.rate_hz}}},
            "moss": {"resume_token": self.token, "grace_s": self.grace_s, **self.wants},
        }

    def emit(self, kind: str, **fields: Any) -> None:
        seq = len(self.log) + 1
        self.log.append({"type": kind, "event_id": f"event_{seq}", "moss": {"seq": seq}, **fields})
        self.changed.set()

    def receive(self, message: str | bytes) -> None:
        if isinstance(message, bytes):
            self.pcm += message
            while self.received_samples >= (self._done_blocks + 1) * BLOCK_SAMPLES:
                self._block(self._done_blocks * BLOCK_SAMPLES, BLOCK_SAMPLES)
            return
        raw = json.loads(message)
        if raw["type"] == "session.update":
            self.wants = raw["session"]["moss"]
            self.rate_hz = raw["session"]["audio"]["input"]["format"]["rate"]
            self.emit("session.updated", session=self.describe())
        elif raw["type"] == "moss.merge_speakers":
            self._merge(raw["speaker"], raw["into"])
        elif raw["type"] == "moss.finish" and self.close_code is None:
            self._finish()

    def _merge(self, speaker: str, into: str) -> None:
        self.merges.append((speaker, into))
        for param, name in (("speaker", speaker), ("into", into)):
            if name not in self.speakers:
                error = {"type": "invalid_request_error", "code": "not_found", "message": "no"}
                self.emit("error", error=error | {"param": param})
                return
        self.speakers.discard(speaker)
        self.emit("moss.relabel", speaker=speaker, replaced_by=into)

    def _block(self, start: int, length: int) -> None:
        item = f"item_{self._done_blocks // BLOCKS_PER_ITEM}"
        if not self._words:
            ms = start * 1000 // self.rate_hz
            self.emit("input_audio_buffer.speech_started", item_id=item, audio_start_ms=ms)
        word = f"{zlib.crc32(self.pcm[2 * start : 2 * (start + length)]):08x} "
        self._words.append(word)
        self._done_blocks += 1
        if self.wants["acks"] and not self.holds_acks:
            at = {"received_samples": start + length, "decoded_samples": start}
            self.emit("moss.ack", **at, lag_ms=25, degraded=False)
        if self.wants["snapshots"]:
            self._snapshot(item)
        self.emit(f"{TRANSCRIPTION}.delta", item_id=item, content_index=0, delta=word)
        if len(self._words) == BLOCKS_PER_ITEM:
            self._complete(item, start + length)

    def _snapshot(self, item: str) -> None:
        *committed, partial = self._words
        self.emit(
            "moss.hypothesis",
            item_id=item,
            revision=len(self._words),
            committed_text="".join(committed),
            partial_text=partial,
            segments=[],
            lag_ms=25.0,
        )

    def _complete(self, item: str, end: int) -> None:
        text = "".join(self._words)
        self._words = []
        ms = end * 1000 // self.rate_hz
        self.emit("input_audio_buffer.speech_stopped", item_id=item, audio_end_ms=ms)
        times = {"start": 0.0, "end": end / self.rate_hz}
        self.emit(
            f"{TRANSCRIPTION}.segment", item_id=item, id=f"seg_{item}", speaker="S01", text=text,
            **times,
        )  # fmt: skip
        self.emit(f"{TRANSCRIPTION}.completed", item_id=item, content_index=0, transcript=text)

    def _finish(self) -> None:
        start = self._done_blocks * BLOCK_SAMPLES
        if rest := self.received_samples - start:
            self._block(start, rest)
        if self._words:
            self._complete(
                f"item_{(self._done_blocks - 1) // BLOCKS_PER_ITEM}", self.received_samples
            )
        self.close_code = 1000
        self.emit("moss.finished", received_samples=self.received_samples)


class FakeServer:
    """Sessions by token, and the script of what goes wrong."""

    def __init__(self, plan: Plan, grace_s: float) -> None:
        self.plan = plan
        self.grace_s = grace_s
        self.url = ""
        self.sessions: dict[str, FakeSession] = {}
        self.connections: list[ServerConnection] = []
        self.requests: list[Request] = []
        self.num_points = 0
        self.num_refused = 0
        self.status: int | None = None
        """HTTP status to answer every handshake with, None to accept."""
        self.closes_with: tuple[int, str] | None = None
        """Close code and reason for every new connection, None to serve it."""
        self.is_silent = False
        """Whether new connections are accepted and never answered."""
        self._refusals = 0

    @property
    def session(self) -> FakeSession:
        """The newest session."""
        return list(self.sessions.values())[-1]

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if self.status is not None:
            return self._answer(connection, self.status)
        if self._refusals and "resume=" in request.path:
            self._refusals -= 1
            self.num_refused += 1
            return self._answer(connection, 503)
        return None

    async def handle(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        if self.closes_with is not None:
            await connection.close(*self.closes_with)
            return
        if self.is_silent:
            await connection.wait_closed()
            return
        assert connection.request is not None
        query = parse_qs(urlsplit(connection.request.path).query)
        try:
            if "resume" in query:
                session = self.sessions.get(query["resume"][0])
                if session is None:
                    await self._unknown(connection)
                    return
                session.owner = connection
                cursor = int(query["last_seq"][0])
                await self._send(
                    connection,
                    {
                        "type": "moss.resumed",
                        "moss": {},
                        "received_samples": session.received_samples,
                        "replayed": len(session.log) - cursor,
                    },
                )
            else:
                session = FakeSession(f"token_{len(self.sessions)}", self.grace_s)
                self.sessions[session.token] = session
                session.owner = connection
                cursor = 0
            await self._serve(connection, session, cursor)
        except Cut:
            connection.transport.abort()
        except ConnectionClosed:
            pass

    async def _serve(self, connection: ServerConnection, session: FakeSession, cursor: int) -> None:
        speaking = asyncio.create_task(self._speak(connection, session, cursor))
        listening = asyncio.create_task(self._listen(connection, session))
        try:
            await asyncio.wait((speaking, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            speaking.cancel()
            listening.cancel()
            await asyncio.wait((speaking, listening))
        for task in (speaking, listening):
            if not task.cancelled():
                task.result()

    async def _speak(self, connection: ServerConnection, session: FakeSession, cursor: int) -> None:
        while True:
            while cursor < len(session.log):
                fault = await self._point()
                if fault == "swapped" and cursor + 1 < len(session.log):
                    await self._put(connection, session.log[cursor + 1])
                await self._put(connection, session.log[cursor])
                if fault == "twice":
                    await self._put(connection, session.log[cursor])
                if fault == "cut_after":
                    raise Cut
                cursor += 1
            if session.close_code is not None:
                await connection.close(session.close_code)
                return
            session.changed.clear()
            await session.changed.wait()

    async def _listen(self, connection: ServerConnection, session: FakeSession) -> None:
        async for message in connection:
            fault = await self._point()
            if session.owner is not connection:
                return
            session.receive(message)
            if fault == "cut_after":
                raise Cut

    async def _send(self, connection: ServerConnection, event: dict[str, Any]) -> None:
        fault = await self._point()
        await self._put(connection, event)
        if fault == "twice":
            await self._put(connection, event)
        if fault == "cut_after":
            raise Cut

    async def _put(self, connection: ServerConnection, event: dict[str, Any]) -> None:
        await connection.send(json.dumps(event))

    async def _unknown(self, connection: ServerConnection) -> None:
        error = {"type": "invalid_request_error", "code": "resume_expired", "message": "too late"}
        await self._put(connection, {"type": "error", "moss": {}, "error": error})
        await connection.close(4404, "resume unknown")

    async def _point(self) -> str | None:
        fault = self.plan(self.num_points)
        self.num_points += 1
        if fault == "cut_before":
            raise Cut
        if fault == "refuse":
            self._refusals += 1
            raise Cut
        if fault == "late":
            for _ in range(20):
                await asyncio.sleep(0)
        return fault

    @staticmethod
    def _answer(connection: ServerConnection, status: int) -> Response:
        response = connection.respond(status, "no\n")
        response.headers["Retry-After"] = "0"
        return response


@asynccontextmanager
async def fake_server(
    plan: Plan = lambda _: None, grace_s: float = 30.0
) -> AsyncIterator[FakeServer]:
    fake = FakeServer(plan, grace_s)
    async with serve(
        fake.handle, "127.0.0.1", 0, process_request=fake.admit, compression=None, close_timeout=0.5
    ) as server:
        host, port = server.sockets[0].getsockname()[:2]
        fake.url = f"ws://{host}:{port}"
        yield fake


def fault_at(point: int, fault: str) -> Plan:
    """One fault at one point."""
    return lambda here: fault if here == point else None


def random_faults(seed: int, share: float) -> Plan:
    """A fault at about `share` of the points."""
    rng = random.Random(seed)
    return lambda _: rng.choice(FAULTS) if rng.random() < share else None
