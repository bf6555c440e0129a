"""A network between clients and a server that fails on command."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from support.realtime import PATIENCE_S

_BLOCK_BYTES = 1 << 16


class _Link:
    """One connection through the relay."""

    def __init__(self, *ends: asyncio.StreamWriter) -> None:
        self._ends = ends
        self.flows = asyncio.Event()
        self.flows.set()

    def cut(self) -> None:
        self.flows.set()
        for end in self._ends:
            end.transport.abort()


class Relay:
    """Passes bytes on to `target_port` of this machine; runs in an event loop of its own."""

    def __init__(self, target_port: int, loop: asyncio.AbstractEventLoop) -> None:
        self._target_port = target_port
        self._loop = loop
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_away = False
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break every connection; new ones work."""
        self._call(self._cut)

    def strand(self) -> None:
        """Let every connection hang, as when a phone leaves a network; new ones work."""
        self._call(lambda: [link.flows.clear() for link in self._links])

    def go_away(self) -> None:
        """Break every connection, and every new one."""

        def go() -> None:
            self._is_away = True
            self._cut()

        self._call(go)

    def come_back(self) -> None:
        self._call(lambda: setattr(self, "_is_away", False))

    def _call(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(PATIENCE_S)

    def _cut(self) -> None:
        for link in self._links:
            link.cut()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_away:
            writer.transport.abort()
            return
        there, to_there = await asyncio.open_connection("127.0.0.1", self._target_port)
        link = _Link(writer, to_there)
        self._links.add(link)
        await asyncio.gather(_pump(reader, to_there, link), _pump(there, writer, link))
        self._links.discard(link)
        link.cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: _Link) -> None:
    with contextlib.suppress(OSError):  # one end is gone: so is then the other
        while data := await reader.read(_BLOCK_BYTES):
            await link.flows.wait()
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@contextmanager
def relay(target_port: int) -> Iterator[Relay]:
    """Run a relay to a port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = Relay(target_port, loop)
    try:
        asyncio.run_coroutine_threadsafe(made.open(), loop).result(PATIENCE_S)
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.close(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
