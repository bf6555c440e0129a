"""The last server events of a session, numbered: what a socket sends and a new one replays."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import orjson

from moss_stream.errors import TooSlow


class EventLog:
    """Events in order, sent or not. For one reader at a time.

    Args:
        max_events: Most events kept.
        max_unsent: Events not sent at which `room` waits.
    """

    def __init__(self, max_events: int, max_unsent: int) -> None:
        self._max_events = max_events
        self._max_unsent = max_unsent
        self._texts: deque[str] = deque()
        self._sent = 0
        self.last = 0
        """Number of the newest event; the first has 1."""
        self._is_complete = False
        self._changed = asyncio.Event()

    @property
    def oldest(self) -> int:
        """Number of the oldest event kept."""
        return self.last - len(self._texts) + 1

    @property
    def is_complete(self) -> bool:
        """Whether nothing more is added."""
        return self._is_complete

    def append(self, message: dict[str, Any]) -> None:
        """Add the next event.

        Raises:
            TooSlow: As many events as are kept wait to be sent; the log is complete with that, as
                nothing may follow a hole.
        """
        if self.last - self._sent >= self._max_events:
            self._texts.clear()
            self._sent = self.last
            self.complete()
            raise TooSlow(
                f"{self._max_events} events wait to be read, no more are kept",
                field="replay_events",
            )
        self.last += 1
        self._texts.append(orjson.dumps(message).decode())
        if len(self._texts) > self._max_events:
            self._texts.popleft()
        self._changed.set()

    def complete(self) -> None:
        """Nothing more comes."""
        self._is_complete = True
        self._changed.set()

    def rewind(self, seq: int) -> int | None:
        """Take everything after `seq` as not sent.

        Returns:
            How many events that are; None when some of them are not kept any more or `seq` has
            never been.
        """
        if not self.oldest - 1 <= seq <= self.last:
            return None
        self._sent = seq
        self._changed.set()
        return self.last - seq

    async def next(self) -> str | None:
        """Wait for the next event that was not sent; None when all were and no more come."""
        while self._sent == self.last:
            if self._is_complete:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._texts[self._sent - self.last]

    def sent(self) -> None:
        """The event that `next` gave is on its way."""
        self._sent = min(self._sent + 1, self.last)  # the log may have been dropped meanwhile
        self._changed.set()

    async def room(self) -> None:
        """Wait until not too many events are unsent."""
        while self.last - self._sent > self._max_unsent and not self._is_complete:
            self._changed.clear()
            await self._changed.wait()
