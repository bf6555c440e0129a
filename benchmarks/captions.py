"""A room with many viewers: how late events reach them, and what that costs the server.

A synthetic speaker talks in a server process of its own: a growing utterance is told several times
a second and settles every few seconds, stored in a SQLite file. No model runs, so the figures are
those of the fan-out alone. The viewers live in this process, on plain WebSockets, and measure from
the moment an event is made to the moment it is read; that they are many in one process makes
figures worse, never better. One more viewer reads nothing: it must be dropped, and delay nobody.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
import uvicorn
from conditions import conditions, report
from starlette.applications import Starlette
from websockets.asyncio.client import ClientConnection, connect

from moss_stream.captions.house import House, HouseRules
from moss_stream.captions.room import Entry
from moss_stream.captions.store import Store
from moss_stream.captions.viewers import Farewell
from moss_stream.server.auth import Authenticator
from moss_stream.server.captions import Captions
from moss_stream.server.metrics import Metrics
from moss_stream.server.room_door import RoomDoor
from moss_stream.types import Segment

WORDS = "and so the next thing we have to decide is when the others can be told about it".split()
EVENTS_PER_UTTERANCE = 12
MAX_WAITING = 32
"""Messages that may wait for one viewer: few, so that the deaf one is dropped within the run."""
SOCKET_BYTES = 16 << 10
"""What the system may hold back for one viewer: little, as on a slow line, for the same reason."""
JOIN_AT_ONCE = 25
_START_S = 60.0
_END_S = 30.0


def serve(pipe: Connection, events_per_s: float) -> None:
    """The server process: announces itself, talks when it is told to, and says what it did."""
    asyncio.run(_serve(pipe, events_per_s))


async def _serve(pipe: Connection, events_per_s: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        rules = HouseRules(10, 100_000, MAX_WAITING, 0)
        house = House(Store(f"sqlite:///{directory}/rooms.sqlite3"), rules)
        made = await house.create("Benchmark")
        async with _serving(house) as port, house.visit(made.record.id) as opened:
            pipe.send((port, made.record.id, made.view_token))
            duration_s = await asyncio.to_thread(pipe.recv)
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            num_events = 0
            while loop.time() < begin_s + duration_s:
                utterance, step = divmod(num_events, EVENTS_PER_UTTERANCE)
                entry = _entry(opened.now_s(), utterance, step)
                is_last = step == EVENTS_PER_UTTERANCE - 1
                opened.take([opened.room.settle(entry) if is_last else opened.room.hear(entry)])
                num_events += 1
                due_s = begin_s + num_events / events_per_s
                await asyncio.sleep(max(0.0, due_s - loop.time()))
            await opened.saved()
            opened.viewers.close(Farewell(1000, "over"))
            pipe.send((num_events, opened.viewers.num_dropped))
            await asyncio.to_thread(pipe.recv)
        await house.close()


def _entry(now_s: float, utterance: int, step: int) -> Entry:
    """An utterance as far as it has grown, with the time it is made at as its participant."""
    text = " ".join(WORDS * (1 + step))
    made = f"{time.monotonic():.6f}"  # one clock for all processes of a machine
    return Entry(f"bench-{utterance}", made, False, (Segment(now_s, now_s + 1, "Ana", text),), 1)


@asynccontextmanager
async def _serving(house: House) -> AsyncIterator[int]:
    authenticator = Authenticator()
    captions = Captions(RoomDoor(house, authenticator), authenticator, Metrics())
    config = uvicorn.Config(
        Starlette(routes=captions.routes()), log_level="warning", lifespan="off",
        ws="websockets-sansio", ws_per_message_deflate=False,
        ws_ping_interval=None,  # it would find the deaf viewer out before the bound does
    )  # fmt: skip
    started = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            started.set()

    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    server = Server(config)
    running = asyncio.create_task(server.serve([listening]))
    await started.wait()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def watch(
    url: str, count: int, pipe: Connection, seconds: float
) -> tuple[list[float], tuple[int, int]]:
    """Let the viewers in, have the speaker talk, and read to the end.

    Returns:
        The delays of all events, seconds; and how many events and dropped viewers there were.
    """
    sockets = []
    for start in range(0, count, JOIN_AT_ONCE):
        group = range(start, min(start + JOIN_AT_ONCE, count))
        sockets += await asyncio.gather(*(connect(url, compression=None) for _ in group))
    async with await _deaf(url):
        reading = [asyncio.create_task(_read(connection)) for connection in sockets]
        pipe.send(seconds)
        result = await asyncio.to_thread(pipe.recv)
        async with asyncio.timeout(_END_S):
            delays_s = await asyncio.gather(*reading)
    return [delay_s for viewer in delays_s for delay_s in viewer], result


async def _deaf(url: str) -> ClientConnection:
    """A viewer that reads nothing, with little room in its socket."""
    address = url.removeprefix("ws://").partition("/")[0].partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((address[0], int(address[2])))
    raw.setblocking(False)
    connection = await connect(
        url, sock=raw, compression=None, ping_interval=None, close_timeout=0.1
    )
    connection.transport.pause_reading()
    return connection


async def _read(connection: ClientConnection) -> list[float]:
    delays_s = []
    async for message in connection:
        event = orjson.loads(message)
        if event["type"] in ("room.partial", "room.entry"):
            delays_s.append(time.monotonic() - float(event["participant"]))
    return delays_s


def _cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(viewers: int, events_per_s: float, seconds: float) -> dict[str, Any]:
    """One run with a server of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=serve, args=(there, events_per_s), daemon=True)
    process.start()
    try:
        if not here.poll(_START_S):
            raise TimeoutError(f"the server did not start within {_START_S:g} s")
        port, room, token = here.recv()
        url = f"ws://127.0.0.1:{port}/v1/captions/{room}?token={token}"
        before_s = _cpu_s(process.pid or 0), time.process_time(), time.monotonic()
        delays_s, (num_events, num_dropped) = asyncio.run(watch(url, viewers, here, seconds))
        after_s = _cpu_s(process.pid or 0), time.process_time(), time.monotonic()
        here.send(None)
        process.join(_START_S)
    finally:
        process.kill()
    server_s, clients_s, wall_s = np.subtract(after_s, before_s)
    p50, p95, p99 = 1000 * np.percentile(delays_s, (50, 95, 99))
    return {
        "viewers": viewers,
        "events": num_events,
        "delivered": len(delays_s),
        "missing": num_events * viewers - len(delays_s),
        "delay p50 ms": float(p50),
        "p95 ms": float(p95),
        "p99 ms": float(p99),
        "server cores": float(server_s / wall_s),
        "clients' cores": float(clients_s / wall_s),
        "deaf viewers dropped": num_dropped,
    }


def main(
    viewers: Annotated[str, typer.Option(help="Viewers at the same time.")] = "100,500",
    events: Annotated[float, typer.Option(help="Events a second.")] = 4.0,
    seconds: Annotated[float, typer.Option(help="How long is talked.")] = 90.0,
    json: Path | None = None,
) -> None:
    """Time a room with many viewers."""
    rows = [measure(int(count), events, seconds) for count in viewers.split(",")]
    where = conditions(events_per_s=events, seconds=seconds, max_waiting=MAX_WAITING)
    report("A room with many viewers", where, rows, json)


if __name__ == "__main__":
    typer.run(main)
