"""Events between the connection that reads them and the caller who iterates."""

from __future__ import annotations

import asyncio

from moss_stream_client.errors import EventsUnread
from moss_stream_client.events import Ack, Event, Hypothesis

_Key = int | tuple[str, ...]


class Inbox:
    """A bounded queue in which a snapshot replaces an unread older one of its kind.

    So a slow reader gets the newest hypothesis, and only text and notices pile up. The limit is an
    error and not a wait, for a caller who sends everything before reading would wait for ever.

    Args:
        max_events: Most events that wait unread.
    """

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._unread: dict[_Key, Event] = {}
        self._count = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self.has_ended = False
        """Whether nothing more comes."""

    def put(self, event: Event) -> None:
        """Append an event.

        Raises:
            EventsUnread: The limit is reached.
        """
        if len(self._unread) >= self._max_events:
            raise EventsUnread(
                f"{len(self._unread)} events wait unread: iterate over the stream while sending"
            )
        self._count += 1
        key = self._key(event)
        self._unread.pop(key, None)
        self._unread[key] = event
        self._changed.set()

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes; readers get what waits, then the error if there is one."""
        if not self.has_ended:
            self.has_ended = True
            self._error = error
            self._changed.set()

    def check(self) -> None:
        """Raise the error the stream ended with, if it did."""
        if self._error is not None:
            raise self._error

    async def get(self) -> Event | None:
        """Return the next event, None after the last.

        Raises:
            ClientError: The stream ended with it.
        """
        while not self._unread:
            if self.has_ended:
                self.check()
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._unread.pop(next(iter(self._unread)))

    def _key(self, event: Event) -> _Key:
        if isinstance(event, Hypothesis):
            return ("hypothesis", event.item_id)
        return ("ack",) if isinstance(event, Ack) else self._count
