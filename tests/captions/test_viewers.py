from __future__ import annotations

import asyncio

from moss_stream.captions.viewers import DELETED, Packet, Viewer, Viewers


def message(number: int) -> dict[str, object]:
    return {"type": "room.entry", "revision": number, "text": "ü\n"}


async def rest(viewer: Viewer) -> list[str]:
    texts = []
    while (packet := await viewer.next()) is not None:
        texts.append(packet.text)
    return texts


def test_everybody_gets_everything_in_order() -> None:
    async def story() -> None:
        viewers = Viewers(8)
        early = viewers.add([message(0)])
        viewers.publish(message(1))
        late = viewers.add([message(1)])
        viewers.publish(message(2))
        viewers.close(DELETED)
        told = [Packet(message(number)).text for number in (0, 1, 2)]
        assert (await rest(early))[:-1] == told
        assert (await rest(late))[:-1] == told[1:]
        assert early.gone.result() == DELETED
        assert len(viewers) == 0

    asyncio.run(story())


def test_event_is_encoded_once_for_all() -> None:
    async def story() -> None:
        viewers = Viewers(8)
        readers = [viewers.add([]) for _ in range(3)]
        viewers.publish(message(1))
        packets = {id(await reader.next()) for reader in readers}
        assert len(packets) == 1

    asyncio.run(story())


def test_slow_viewer_is_dropped_and_holds_up_nobody() -> None:
    async def story() -> None:
        viewers = Viewers(3)
        slow, quick = viewers.add([message(0)] * 5), viewers.add([])
        for number in range(4):
            viewers.publish(message(number))
            assert await quick.next() is not None
        assert slow.gone.result().code == 1013
        assert "8 messages" in slow.gone.result().reason
        assert await rest(slow) == []
        assert not quick.gone.done()
        assert viewers.num_dropped == 1

    asyncio.run(story())


def test_viewer_that_waits_is_woken() -> None:
    async def story() -> None:
        viewers = Viewers(3)
        viewer = viewers.add([])
        waiting = asyncio.create_task(viewer.next())
        await asyncio.sleep(0)
        viewers.publish(message(1))
        assert (await waiting) is not None
        waiting = asyncio.create_task(viewer.next())
        await asyncio.sleep(0)
        viewer.leave(DELETED)
        assert await waiting is None

    asyncio.run(story())


def test_server_sent_event_is_one_event() -> None:
    assert Packet(message(7)).sse == (
        'id: 7\nevent: room.entry\ndata: {"type":"room.entry","revision":7,"text":"ü\\n"}\n\n'
    )
    assert "id:" not in Packet({"type": "room.partial"}).sse
