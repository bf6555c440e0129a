"""Messages of a client that were read and not carried out yet, up to so many bytes."""

from __future__ import annotations

import asyncio
from collections import deque

OVERHEAD = 64
"""What a message takes besides its text, so that empty ones have a limit too."""


class Inbox:
    """A queue for one writer and one reader.

    Args:
        max_size: Bytes or characters of waiting messages beyond which the next one is not taken.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._messages: deque[str | bytes] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self._is_taking = False

    @property
    def is_empty(self) -> bool:
        """Whether all is carried out."""
        return not self._messages and not self._is_taking

    async def put(self, message: str | bytes) -> None:
        """Add a message; then wait while there are too many."""
        self._messages.append(message)
        self._size += len(message) + OVERHEAD
        self._changed.set()
        while self._size > self._max_size:
            await self._change()

    async def get(self) -> str | bytes:
        """Wait for the next message; the one before is carried out with that."""
        self._is_taking = False
        self._changed.set()
        while not self._messages:
            await self._change()
        self._is_taking = True
        message = self._messages.popleft()
        self._size -= len(message) + OVERHEAD
        self._changed.set()
        return message

    async def emptied(self) -> None:
        """Wait until all is carried out."""
        while not self.is_empty:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
