"""What every program here has: a microphone that hears what it is ordered to, and a voice.

Orders come on standard input, a line each: the path of a file with 16-bit samples at 16 kHz, to be
heard next. In between there is silence, as a real microphone gives it. The end of the orders is the
end of the program.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

RATE_HZ = 16_000
FRAME_S = 0.02
FRAME_BYTES = 2 * int(RATE_HZ * FRAME_S)


def tell(kind: str, **fields: Any) -> None:
    """Print an object for the test."""
    print(json.dumps({"kind": kind, **fields}), flush=True)


async def microphone() -> AsyncIterator[bytes]:
    """Frames of 20 ms at the pace of speech, until the orders end."""
    loop = asyncio.get_running_loop()
    orders: asyncio.Queue[str] = asyncio.Queue()
    listening = asyncio.create_task(_read_orders(orders))
    pcm = b""
    due_s = loop.time()
    while not (listening.done() and orders.empty()):
        if not pcm and not orders.empty():
            pcm = await asyncio.to_thread(Path(orders.get_nowait()).read_bytes)
        frame, pcm = pcm[:FRAME_BYTES].ljust(FRAME_BYTES, b"\0"), pcm[FRAME_BYTES:]
        yield frame
        due_s += FRAME_S
        await asyncio.sleep(due_s - loop.time())


async def _read_orders(orders: asyncio.Queue[str]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        orders.put_nowait(line.decode().strip())
