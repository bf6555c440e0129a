"""A client of `/v1/listen` that speaks in plain WebSocket messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running, running
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from moss_stream.audio.pcm import encode_s16le
from moss_stream.server.app import Backend

LINEAR16 = "encoding=linear16&sample_rate=16000"
SPEECH = load_clip("mix_duo_002")[: 16_000 * 2]
TAIL = np.zeros(16_000, np.float32)
CLIP = np.concatenate((SPEECH, TAIL))
WORDS = "Thank God for that."
"""What is said in it."""


class Listener:
    """A socket and the messages that came on it."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.messages: list[dict[str, Any]] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def play(self, samples: np.ndarray, piece_samples: int = 3_200) -> None:
        """Send 16-bit samples, 200 ms a message."""
        for start in range(0, len(samples), piece_samples):
            await self.socket.send(encode_s16le(samples[start : start + piece_samples]))

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            message = json.loads(await self.socket.recv())
        self.messages.append(message)
        return message

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        while True:
            message = await self.next()
            if message["type"] == kind and fields.items() <= message.items():
                return message

    async def rest(self) -> int:
        """Read until the server closes; returns its close code."""
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            return self.socket.close_code

    async def finished(self) -> list[str]:
        """Say that no more comes, and read the rest; returns the final texts."""
        await self.send("CloseStream")
        assert await self.rest() == 1000
        assert self.messages[-1]["type"] == "Metadata"
        return self.finals()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def results(self, channel: int = 0) -> list[dict[str, Any]]:
        """Final results of a channel."""
        return [
            result
            for result in self.of("Results")
            if result["is_final"] and result["channel_index"][0] == channel
        ]

    def finals(self, channel: int = 0) -> list[str]:
        """Final texts of a channel that are not empty."""
        return [text for result in self.results(channel) if (text := transcript(result))]


def transcript(result: dict[str, Any]) -> str:
    return result["channel"]["alternatives"][0]["transcript"]


async def open_listener(server: Running, query: str = LINEAR16, **options: Any) -> Listener:
    url = f"ws://127.0.0.1:{server.port}/v1/listen?{query}"
    return Listener(await connect(url, max_size=None, **options))


async def heard(server: Running, query: str, data: bytes, piece_bytes: int = 9_999) -> Listener:
    """Send bytes in pieces and read everything."""
    client = await open_listener(server, query)
    for start in range(0, len(data), piece_bytes):
        await client.socket.send(data[start : start + piece_bytes])
    await client.finished()
    return client


def pcm16(samples: np.ndarray) -> np.ndarray:
    """Samples as 16-bit integers, for `media_bytes`."""
    return np.frombuffer(encode_s16le(samples), "<i2")


def patient_server(backend: Backend) -> Iterator[Running]:
    """A server that several tests share, patient with clients that wait for a busy machine."""
    with running(backend, listen_idle_s=300) as shared:
        yield shared
        assert shared.sessions_end()
    backend.engine.check_idle()
