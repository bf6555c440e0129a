"""A recording at the speed of speech."""

from __future__ import annotations

from asyncio import get_running_loop, sleep
from collections.abc import AsyncIterator, Iterable

from moss_stream_client.audio import SAMPLE_BYTES


async def at_speech_speed(blocks: Iterable[bytes], rate_hz: int) -> AsyncIterator[bytes]:
    """Yield each block when its last sample would have been spoken.

    Waits are towards absolute times, so that a late block does not delay the ones after it.
    """
    clock = get_running_loop().time
    due = clock()
    for block in blocks:
        due += len(block) / SAMPLE_BYTES / rate_hz
        await sleep(max(0.0, due - clock()))
        yield block
