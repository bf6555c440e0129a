import asyncio

import pytest

from moss_stream.errors import TooSlow
from moss_stream.server.event_log import EventLog


def filled(count: int, **limits: int) -> EventLog:
    log = EventLog(**{"max_events": 4, "max_unsent": 2} | limits)
    for i in range(count):
        log.append({"n": i + 1})
    return log


async def sent(log: EventLog, count: int) -> list[str]:
    texts = []
    for _ in range(count):
        texts.append(await log.next())
        log.sent()
    return texts


def test_events_come_in_order_and_end_when_the_log_is_complete() -> None:
    async def play() -> None:
        log = filled(2)
        log.complete()
        assert await sent(log, 2) == ['{"n":1}', '{"n":2}']
        assert await log.next() is None

    asyncio.run(play())


def test_an_event_counts_as_sent_only_when_it_is() -> None:
    async def play() -> None:
        log = filled(1)
        assert await log.next() == await log.next() == '{"n":1}'

    asyncio.run(play())


def test_rewind_replays_what_is_kept_and_nothing_else() -> None:
    async def play() -> None:
        log = filled(4)
        await sent(log, 4)
        log.append({"n": 5})
        log.append({"n": 6})
        assert log.oldest == 3
        assert log.rewind(1) is None
        assert log.rewind(7) is None
        assert log.rewind(2) == 4
        assert (await sent(log, 4))[0] == '{"n":3}'
        assert log.rewind(6) == 0

    asyncio.run(play())


def test_a_log_without_room_ends_instead_of_leaving_a_hole() -> None:
    async def play() -> None:
        log = filled(4)
        with pytest.raises(TooSlow):
            log.append({"n": 5})
        assert await log.next() is None

    asyncio.run(play())


def test_dropped_log_ends_for_a_reader_that_is_sending() -> None:
    async def play() -> None:
        log = filled(4)
        await log.next()
        with pytest.raises(TooSlow):
            log.append({"n": 5})
        log.sent()
        assert await log.next() is None

    asyncio.run(play())


def test_room_waits_until_events_are_sent() -> None:
    async def play() -> None:
        log = filled(3)
        waiting = asyncio.create_task(log.room())
        await asyncio.sleep(0)
        assert not waiting.done()
        await sent(log, 1)
        await waiting

    asyncio.run(play())
