"""People of a meeting on real sockets: who makes a room, who speaks in it, and who reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any
from urllib.parse import urlencode

import httpx
from support.captions import Board
from support.realtime import PATIENCE_S, Client
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed


class Meeting:
    """A room on a server.

    Args:
        http: The server's address, `http://HOST:PORT`.
        key: An API key of the server, if it has one.
        title: Of the room.
    """

    def __init__(self, http: str, key: str | None = None, title: str = "") -> None:
        self.http = http
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        made = httpx.post(f"{http}/v1/rooms", json={"title": title}, headers=self.headers)
        assert made.status_code == 201, made.text
        self.about: dict[str, Any] = made.json()
        self.room: str = self.about["room"]
        self.publish_token: str = self.about["publish_token"]
        self.view_token: str = self.about["view_token"]
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Meeting:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all sockets that were opened for it."""
        await self._closing.aclose()

    def request(self, method: str, path: str = "", token: str | None = None, **more: Any):
        """Ask something about the room, as a viewer unless told otherwise."""
        token = self.view_token if token is None else token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.http}/v1/rooms/{self.room}{path}"
        return httpx.request(method, url, headers=headers, **more)

    def export(self, format: str) -> str:
        """The transcript."""
        answer = self.request("GET", "/transcript", params={"format": format})
        assert answer.status_code == 200, answer.text
        return answer.text

    def rename(self, speaker: str, name: str | None) -> dict[str, Any]:
        """Name a speaker."""
        body = {"speaker": speaker, "name": name}
        answer = self.request("POST", "/speakers", self.publish_token, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def microphone(self, participant: str, **query: str) -> Client:
        """A socket to speak into the room."""
        fields = {
            "intent": "transcription",
            "room": self.room,
            "participant": participant,
            "token": self.publish_token,
        }
        url = f"{self._ws}/v1/realtime?{urlencode(fields | query)}"
        return Client(await self._closing.enter_async_context(connect(url, max_size=None)))

    async def viewer(self, **query: Any) -> Reader:
        """Somebody who reads by WebSocket."""
        fields = {"token": self.view_token} | query
        url = f"{self._ws}/v1/captions/{self.room}?{urlencode(fields)}"
        socket = await self._closing.enter_async_context(connect(url, max_size=None))
        return Reader(_socket_messages(socket))

    async def listener(self, since: int | None = None) -> Reader:
        """Somebody who reads server-sent events."""
        headers = {} if since is None else {"Last-Event-ID": str(since)}
        url = f"{self.http}/v1/captions/{self.room}"
        messages = _sse_messages(url, {"token": self.view_token}, headers)
        reader = Reader(await self._closing.enter_async_context(aclosing(messages)))
        await reader.next()
        return reader

    @property
    def _ws(self) -> str:
        return self.http.replace("http", "ws", 1)


class Reader:
    """A viewer and what it sees."""

    def __init__(self, messages: AsyncIterator[dict[str, Any]], board: Board | None = None) -> None:
        self.board = Board() if board is None else board
        self.close_code: int | None = None
        self._messages = messages

    async def next(self) -> dict[str, Any] | None:
        """The next message; None when the server has ended it, with `close_code`."""
        async with asyncio.timeout(PATIENCE_S):
            message = await anext(self._messages)
        if message["type"] == "closed":
            self.close_code = message["code"]
            return None
        self.board.take(message)
        return message

    async def until(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        while (message := await self.next()) is not None:
            if message["type"] == kind:
                return message
        raise AssertionError(f"closed with {self.close_code} before {kind}")

    async def reach(self, revision: int) -> None:
        """Read up to a revision."""
        while self.board.revision < revision:
            assert await self.next() is not None, f"closed with {self.close_code}"

    async def rest(self) -> int | None:
        """Read until the server ends it; returns the close code."""
        while await self.next() is not None:
            pass
        return self.close_code


async def _socket_messages(socket) -> AsyncIterator[dict[str, Any]]:
    try:
        while True:
            yield json.loads(await socket.recv())
    except ConnectionClosed:
        yield {"type": "closed", "code": socket.close_code}


async def _sse_messages(
    url: str, params: dict[str, str], headers: dict[str, str]
) -> AsyncGenerator[dict[str, Any]]:
    code = None
    headers = headers | {"Accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
        client.stream("GET", url, params=params, headers=headers) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.status_code
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if line:
                fields[name] = value
                continue
            if "data" in fields:
                message = json.loads(fields["data"])
                assert fields["event"] == message["type"]
                assert fields.get("id") == (
                    str(message["revision"]) if "revision" in message else None
                )
                code = message["code"] if message["type"] == "room.closed" else code
                yield message
            fields = {}
    yield {"type": "closed", "code": code}
