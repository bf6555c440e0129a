"""A web server of a client's that takes events."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.http import serving
from support.realtime import PATIENCE_S


class Receiver:
    """What came, and how it is answered."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[Any] = []
        self.paths: list[str] = []
        self.answers: list[int] = []
        """Statuses of the next answers; after them everything is taken."""
        self._changed = threading.Condition()

    async def take(self, request: Request) -> Response:
        self.paths.append(request.url.path)
        if self.answers:
            return Response(status_code=self.answers.pop(0), headers={"Location": "/elsewhere"})
        event = await request.json()
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()
        return Response(status_code=204)

    def until(self, kind: str, count: int = 1) -> Any:
        """Wait for so many events of a kind; returns the first."""
        with self._changed:
            is_here = self._changed.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE_S)
            assert is_here, self.events
        return self.of(kind)[0]

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event["event"] == kind]


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    routes = [Route("/{path}", receiver.take, methods=["POST", "GET"])]
    with serving(Starlette(routes=routes)) as receiver.url:
        yield receiver
