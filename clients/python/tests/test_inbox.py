from __future__ import annotations

import asyncio

import pytest

from moss_stream_client import Ack, Delta, StreamLost
from moss_stream_client.inbox import Inbox


def test_inbox_gives_the_newest_snapshot_at_its_own_place() -> None:
    async def main() -> None:
        inbox = Inbox(10)
        inbox.put(Ack(1, 0, 0.0, False))
        inbox.put(Delta("i", "a"))
        inbox.put(Ack(2, 0, 0.0, False))
        assert await inbox.get() == Delta("i", "a")
        assert await inbox.get() == Ack(2, 0, 0.0, False)

    asyncio.run(main())


def test_inbox_gives_what_waits_before_the_error() -> None:
    async def main() -> None:
        inbox = Inbox(10)
        inbox.put(Delta("i", "a"))
        inbox.end(StreamLost("gone"))
        assert await inbox.get() == Delta("i", "a")
        for _ in range(2):
            with pytest.raises(StreamLost):
                await inbox.get()

    asyncio.run(main())
