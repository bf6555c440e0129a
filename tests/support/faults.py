"""A client to whom everything happens, and who tells its whole story all the same."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from support.realtime import PATIENCE_S, Running
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

TRANSCRIPTION = "conversation.item.input_audio_transcription"
RATE_HZ = 16_000
SAMPLE_BYTES = 2
SILENCE_MS = 300
"""Silence that ends a turn, whatever its text says."""
MAX_MESSAGE_BYTES = 1 << 16
"""What the server of these clients takes at once."""

BREAKS = ("cut", "lose", "leave", "oversized", "overtake", "twins")
"""Mishaps after which the client must come back."""
BLUNDERS = ("garbage", "wrong_rate", "wrong_audio", "deaf", "pause")
"""Mishaps that a session survives."""

_BLUNDER_TEXTS = {
    "garbage": ("{", "[]", "null", "\x00\ufffd", '{"type": 7}', '{"type": "response.create"}'),
    "wrong_audio": tuple(
        json.dumps({"type": "input_audio_buffer.append", "audio": audio})
        for audio in (None, 5, "%%%", "abc")
    ),
    "wrong_rate": tuple(
        json.dumps({"type": "session.update", "session": {"audio": {"input": {"format": form}}}})
        for form in (
            {"type": "audio/pcm", "rate": 44_100},
            {"type": "audio/pcm", "rate": 8_000},
            {"type": "audio/opus"},
            "pcm16",
        )
    ),
}


@dataclass(frozen=True, slots=True)
class Final:
    """What a client was told of one item at last."""

    transcript: str | None
    """None if it failed."""
    segments: tuple[tuple[str, float, float, str], ...]


@dataclass
class Story:
    """The numbered events of one session as its client has them, over all its sockets."""

    events: list[dict[str, Any]] = field(default_factory=list)

    def note(self, event: dict[str, Any]) -> None:
        """Take an event: the next one, or one that is known already, and then the same."""
        seq = event["moss"].get("seq")
        if seq is None:
            return
        assert seq <= len(self.events) + 1, f"event {seq} came after {len(self.events)}"
        if seq <= len(self.events):
            assert event == self.events[seq - 1], f"event {seq} changed"
        else:
            self.events.append(event)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def item(self, kind: str, item_id: str) -> list[dict[str, Any]]:
        return [
            event for event in self.of(f"{TRANSCRIPTION}.{kind}") if event["item_id"] == item_id
        ]

    @property
    def is_finished(self) -> bool:
        return bool(self.of("moss.finished"))

    def finals(self) -> list[Final]:
        """The outcome of each item in order; every item has exactly one."""
        return [self._final(event["item_id"]) for event in self.of("input_audio_buffer.committed")]

    def _final(self, item_id: str) -> Final:
        completed, failed = self.item("completed", item_id), self.item("failed", item_id)
        assert len(completed) + len(failed) == 1
        keys = ("speaker", "start", "end", "text")
        segments = tuple(
            tuple(event[key] for key in keys) for event in self.item("segment", item_id)
        )
        return Final(completed[0]["transcript"] if completed else None, segments)

    def told_only_what_is_final(self) -> bool:
        """Whether the deltas of each item make up its transcript, or a warning says otherwise."""
        revised = {e["item_id"] for e in self.of("moss.warning") if e["code"] == "text_revised"}
        return all(
            "".join(delta["delta"] for delta in self.item("delta", event["item_id"]))
            == event["transcript"]
            for event in self.of(f"{TRANSCRIPTION}.completed")
            if event["item_id"] not in revised
        )


class Unlucky:
    """A client that sends a recording through mishaps.

    Args:
        server: Takes messages of at most `MAX_MESSAGE_BYTES`.
        pcm: s16le at `RATE_HZ`.
        seed: Decides what happens when.
        mishaps: What may happen; nothing if empty.
    """

    def __init__(
        self, server: Running, pcm: bytes, seed: int = 0, mishaps: Sequence[str] = ()
    ) -> None:
        self.story = Story()
        self.past: list[str] = []
        """The mishaps so far."""
        self._server = server
        self._pcm = pcm
        self._rng = random.Random(seed)
        self._mishaps = mishaps
        self._left = self._rng.randint(1, 5) if mishaps else 0
        self._is_twin = False
        self._old: set[asyncio.Task[None]] = set()

    async def play(self) -> Story:
        """Send everything, come back as often as needed, and read to the end."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.story.is_finished:
                try:
                    await self._use_socket()
                except (OSError, WebSocketException):
                    continue
            # Sockets left open are closed by the server, which must not tell them anything else.
            await asyncio.gather(*self._old)
        return self.story

    async def die(self) -> None:
        """Send some of it and vanish."""
        socket = await self._open()
        end = self._rng.randrange(len(self._pcm))
        for at in range(0, end, 9_999):
            await socket.send(self._pcm[at : at + 9_999])
        if self._rng.random() < 0.5:
            await _send(socket, "moss.finish")
        for _ in range(self._rng.randrange(4)):
            await socket.recv()
        await self._wait()
        socket.transport.abort()

    async def _use_socket(self) -> None:
        socket = await self._open()
        if self._is_twin:  # whichever the server takes for the newer one wins
            self._is_twin = False
            other = await self._open()
            socket, other = self._rng.sample((socket, other), 2)
            self._forsake(other)
        first = json.loads(await socket.recv())
        assert first["type"] in ("session.created", "moss.resumed"), first
        self.story.note(first)
        reading = asyncio.create_task(self._read(socket))
        try:
            received = first.get("received_samples", 0)
            is_over = await self._speak(socket, received * SAMPLE_BYTES)
        except ConnectionClosed:
            is_over = True
        finally:
            if socket.state is not socket.state.OPEN:
                await reading
        if is_over:
            await reading
        else:
            self._old.add(reading)

    async def _open(self) -> ClientConnection:
        query = ""
        if self.story.events:
            token = self.story.events[0]["session"]["moss"]["resume_token"]
            known = len(self.story.events)
            query = f"&resume={token}&last_seq={max(0, known - self._rng.choice([0, 0, 1, 6]))}"
        return await connect(self._server.url + query, max_size=None)

    def _forsake(self, socket: ClientConnection) -> None:
        """Use another socket without closing this one."""
        self._old.add(asyncio.create_task(self._read(socket)))

    async def _read(self, socket: ClientConnection) -> None:
        try:
            async for text in socket:
                self.story.note(json.loads(text))
        except ConnectionClosed:
            return

    async def _speak(self, socket: ClientConnection, at: int) -> bool:
        """Send what is left from byte `at` on; returns whether this socket is used to its end."""
        if not self.story.of("session.updated"):
            audio = {
                "format": {"type": "audio/pcm", "rate": RATE_HZ},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": SILENCE_MS},
            }
            await _send(socket, "session.update", session={"audio": {"input": audio}})
        while at < len(self._pcm):
            size = self._rng.choice([1, 777, 4_801, 20_000, 40_001])
            data = self._pcm[at : at + size]
            at += len(data)
            if self._rng.random() < 0.5:
                await socket.send(data)
            else:
                audio = base64.b64encode(data).decode()
                await _send(socket, "input_audio_buffer.append", audio=audio)
            if await self._mishap(socket, 0.25):
                return False
        await _send(socket, "moss.finish")
        return not await self._mishap(socket, 0.5)

    async def _mishap(self, socket: ClientConnection, chance: float) -> bool:
        """Let something happen, or not; returns whether the client goes on with a new socket."""
        if self._left == 0 or self._rng.random() > chance:
            return False
        self._left -= 1
        kind = self._rng.choice(self._mishaps)
        self.past.append(kind)
        match kind:
            case "cut":
                socket.transport.abort()
            case "lose":  # what the server sends meanwhile counts as sent and never arrives
                socket.transport.pause_reading()
                await self._wait()
                socket.transport.abort()
            case "leave":
                await socket.close(1001)
            case "oversized":
                await socket.send(bytes(MAX_MESSAGE_BYTES + 1))
                await socket.wait_closed()
            case "overtake" | "twins":
                self._is_twin = kind == "twins"
                return True
            case "deaf":
                socket.transport.pause_reading()
                await self._wait()
                socket.transport.resume_reading()
            case "pause":
                await self._wait()
            case _:
                await socket.send(self._rng.choice(_BLUNDER_TEXTS[kind]))
        await self._wait()
        return kind in BREAKS

    async def _wait(self) -> None:
        """Give the server time for anything between nothing and a whole decode."""
        await asyncio.sleep(self._rng.choice([0, 0, 0.01, 0.1, 0.5]))


async def _send(socket: ClientConnection, kind: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": kind, **fields}))
