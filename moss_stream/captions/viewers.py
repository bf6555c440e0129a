"""Who reads a room, and what each still has to get.

An event is encoded once for all. Every viewer has a queue of its own, so none waits for another;
one that falls further behind than the queue holds is dropped with a reason and may come back for
what it missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import orjson


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a viewer gets no more."""

    code: int
    """As a WebSocket is closed."""
    reason: str


TOO_SLOW: Final = 1013
RESTARTING: Final = Farewell(1012, "the server restarts: come back with the last revision")
DELETED: Final = Farewell(4410, "the room was deleted")
BROKEN: Final = Farewell(1011, "internal error")


class Packet:
    """A message as it goes to everybody.

    Args:
        message: With `type`, and with `revision` where it has one.
    """

    def __init__(self, message: dict[str, Any]) -> None:
        self._kind = message["type"]
        self._revision = message.get("revision")
        self.text = orjson.dumps(message).decode()
        """For a WebSocket."""

    @cached_property
    def sse(self) -> str:
        """As a server-sent event."""
        number = "" if self._revision is None else f"id: {self._revision}\n"
        return f"{number}event: {self._kind}\ndata: {self.text}\n\n"


class Viewer:
    """One reader.

    Args:
        first: What it gets before anything new.
        max_waiting: New packets that may wait for it.
    """

    def __init__(self, first: Iterable[Packet], max_waiting: int) -> None:
        self.gone: asyncio.Future[Farewell] = asyncio.get_running_loop().create_future()
        """Done when nothing more is added, with the reason."""
        self._waiting = deque(first)
        self._max_waiting = max_waiting + len(self._waiting)
        self._changed = asyncio.Event()

    @property
    def was_dropped(self) -> bool:
        """Whether it was too slow."""
        return self.gone.done() and self.gone.result().code == TOO_SLOW

    def offer(self, packet: Packet) -> bool:
        """Add a packet; False if the viewer has too many of them, and is dropped with that."""
        if len(self._waiting) >= self._max_waiting:
            count = len(self._waiting)
            self._waiting.clear()
            self.leave(Farewell(TOO_SLOW, f"too slow: {count} messages wait, no more are kept"))
            return False
        self._waiting.append(packet)
        self._changed.set()
        return True

    def leave(self, farewell: Farewell) -> None:
        """Add nothing more."""
        if not self.gone.done():
            self.gone.set_result(farewell)
        self._changed.set()

    async def next(self) -> Packet | None:
        """Wait for the next packet; None when all are given and no more come."""
        while not self._waiting:
            if self.gone.done():
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class Viewers:
    """All readers of one room.

    Args:
        max_waiting: Packets that may wait for one of them.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._viewers: set[Viewer] = set()
        self.num_dropped = 0
        """Those that were too slow."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._viewers)

    def add(self, first: Iterable[dict[str, Any]]) -> Viewer:
        """Let a reader in; it gets `first`, and then everything from now on."""
        viewer = Viewer(map(Packet, first), self._max_waiting)
        self._viewers.add(viewer)
        return viewer

    def remove(self, viewer: Viewer) -> None:
        """A reader has left."""
        self._viewers.discard(viewer)

    def publish(self, message: dict[str, Any]) -> None:
        """Tell everybody."""
        if not self._viewers:
            return
        packet = Packet(message)
        for viewer in [viewer for viewer in self._viewers if not viewer.offer(packet)]:
            self._viewers.discard(viewer)
            self.num_dropped += 1

    def close(self, farewell: Farewell) -> None:
        """Send everybody away, after what they still have to get."""
        self.publish({"type": "room.closed", "code": farewell.code, "reason": farewell.reason})
        for viewer in self._viewers:
            viewer.leave(farewell)
        self._viewers.clear()
