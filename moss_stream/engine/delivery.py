"""How what the engine thread produces reaches whoever asked: a blocking face and an asyncio face.

Everything a step produced crosses to an event loop in one call, however many requests it concerns.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Protocol

from moss_stream.engine.request import Result, TokenDelta
from moss_stream.errors import MossStreamError, StateError

Event = TokenDelta | Result | MossStreamError
"""What a request's owner is told: tokens any number of times, then a result or an error once."""


class Receiver(Protocol):
    """Where the events of one request go."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop `put` must be called on; None when any thread may call it."""
        ...

    def put(self, event: Event) -> None:
        """Take one event."""
        ...


class Outbox:
    """Events of one engine step on their way out."""

    def __init__(self) -> None:
        self._events: list[tuple[Receiver, Event]] = []

    def add(self, receiver: Receiver, event: Event) -> None:
        """Put an event in the box."""
        self._events.append((receiver, event))

    def flush(self) -> None:
        """Deliver everything, in order, with one call per event loop."""
        events, self._events = self._events, []
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Receiver, Event]]] = {}
        for receiver, event in events:
            if receiver.loop is None:
                receiver.put(event)
            else:
                by_loop.setdefault(receiver.loop, []).append((receiver, event))
        for loop, batch in by_loop.items():
            # A closed loop has nobody left to tell, and says so in this way alone.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, batch)


def _deliver(batch: list[tuple[Receiver, Event]]) -> None:
    for receiver, event in batch:
        receiver.put(event)


class Handle:
    """Blocking face of one request. For one consumer."""

    loop = None

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._end: Result | MossStreamError | None = None

    def put(self, event: Event) -> None:
        """See `Receiver.put`."""
        self._events.put(event)

    def cancel(self) -> None:
        """Stop the request in whatever state it is; its result becomes `Cancelled`."""
        self._cancel()

    def tokens(self) -> Iterator[tuple[int, ...]]:
        """Output tokens as they come, forced ones apart; ends when the request ends.

        Raises:
            MossStreamError: The request failed or was cancelled.
        """
        while True:
            event = self._next(None)
            if isinstance(event, TokenDelta):
                yield event.token_ids
            elif isinstance(event, MossStreamError):
                raise event
            else:
                return

    def result(self, timeout_s: float | None = None) -> Result:
        """Wait for the end.

        Raises:
            TimeoutError: It did not end within `timeout_s` seconds of silence.
            MossStreamError: The request failed or was cancelled.
        """
        while isinstance(event := self._next(timeout_s), TokenDelta):
            pass
        if isinstance(event, MossStreamError):
            raise event
        return event

    def _next(self, timeout_s: float | None) -> Event:
        if self._end is not None:
            return self._end
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty as error:
            raise TimeoutError(f"no news of the request for {timeout_s} s") from error
        if not isinstance(event, TokenDelta):
            self._end = event
        return event


class AsyncHandle:
    """asyncio face of one request, to be used on the loop it was made on. For one consumer."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._cancel = cancel
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._end: Result | MossStreamError | None = None

    def put(self, event: Event) -> None:
        """See `Receiver.put`."""
        self._events.put_nowait(event)

    def cancel(self) -> None:
        """Stop the request in whatever state it is; its result becomes `Cancelled`."""
        self._cancel()

    async def tokens(self) -> AsyncIterator[tuple[int, ...]]:
        """Output tokens as they come, forced ones apart; ends when the request ends.

        Raises:
            MossStreamError: The request failed or was cancelled.
        """
        while True:
            event = await self._next()
            if isinstance(event, TokenDelta):
                yield event.token_ids
            elif isinstance(event, MossStreamError):
                raise event
            else:
                return

    async def result(self) -> Result:
        """Wait for the end; cancelling the wait does not cancel the request.

        Raises:
            MossStreamError: The request failed or was cancelled.
        """
        while isinstance(event := await self._next(), TokenDelta):
            pass
        if isinstance(event, MossStreamError):
            raise event
        return event

    async def _next(self) -> Event:
        if self._end is not None:
            return self._end
        if asyncio.get_running_loop() is not self.loop:
            raise StateError("an AsyncHandle belongs to the event loop it was made on")
        event = await self._events.get()
        if not isinstance(event, TokenDelta):
            self._end = event
        return event
