"""Rooms over real sockets, with the shipped checkpoint."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import numpy as np
import pytest
from support.clips import load_clip
from support.realtime import PATIENCE_S, Client, Running, running
from support.rooms import Meeting
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from moss_stream.server.app import Backend

TAIL = np.zeros(16_000, np.float32)
CLIP = np.concatenate((load_clip("mix_duo_002")[: 16_000 * 2], TAIL))
WORDS = "Thank God for that."
DUO = np.concatenate((load_clip("mix_duo_002"), TAIL))
KEY = "sesame-sesame"


async def speak(client: Client, samples: np.ndarray = CLIP) -> None:
    await client.append(samples)
    await client.send("moss.finish")
    assert await client.rest() == 1000


async def status(awaitable: Any) -> int:
    """HTTP status of a handshake."""
    try:
        opened = await awaitable
    except InvalidStatus as error:
        return error.response.status_code
    await opened.next()
    return 101


@pytest.fixture(scope="module")
def locked(backend: Backend):
    with running(backend, api_keys=(KEY,)) as served:
        yield served
        assert served.sessions_end()


def test_viewers_read_what_participants_say(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http, title="Weekly") as meeting:
            early = await meeting.viewer()
            first = await early.next()
            assert first["title"] == "Weekly"
            assert first["role"] == "view"
            ana = await meeting.microphone("Ana")
            await ana.append(CLIP[:24_000])
            partial = await early.until("room.partial")
            assert partial["participant"] == "Ana"
            await ana.append(CLIP[24_000:])
            await early.until("room.entry")
            await speak(await meeting.microphone("Bea"))
            await early.until("room.entry")
            late = await meeting.viewer()
            listener = await meeting.listener()
            await late.next()
            assert sorted(early.board.lines()) == [("Ana", WORDS), ("Bea", WORDS)]
            assert late.board.entries == listener.board.entries == early.board.entries
            assert meeting.export("srt").count(f"Bea: {WORDS}") == 1
            await speak(ana, TAIL)

    asyncio.run(play())


def test_shared_microphone_is_diarized_and_its_speakers_get_names(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            viewer, listener = await meeting.viewer(), await meeting.listener()
            await speak(await meeting.microphone("Desk", shared="1"), DUO)
            labels = {s["speaker"] for s in json.loads(meeting.export("json"))["segments"]}
            assert labels >= {"S01", "S02"}
            renamed = meeting.rename("S02", "Ana")
            for reader in (viewer, listener):
                await reader.reach(renamed["revision"])
                assert {name for name, _ in reader.board.lines()} == labels - {"S02"} | {"Ana"}
            assert "\nAna [" in "\n" + meeting.export("txt")
            meeting.rename("S02", None)
            assert "Ana" not in meeting.export("vtt")

    asyncio.run(play())


def test_two_labels_of_one_person_become_one_for_everybody(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            viewer = await meeting.viewer()
            desk = await meeting.microphone("Desk", shared="1")
            await desk.append(DUO)
            await viewer.until("room.entry")
            while len(viewer.board.lines()) < 2:
                await viewer.next()
            body = {"speaker": "S02", "same_as": "S01"}
            answer = meeting.request("POST", "/speakers", meeting.publish_token, json=body)
            assert answer.json()["replaced_by"] == "S01"
            again = meeting.request("POST", "/speakers", meeting.publish_token, json=body)
            assert (again.status_code, again.json()["error"]["param"]) == (400, "same_as")
            await viewer.reach(answer.json()["revision"])
            # The microphone's own client may say so as well, of its session's names.
            await desk.send("moss.merge_speakers", speaker="S02", into="S01")
            relabel = await desk.until("moss.relabel")
            assert (relabel["speaker"], relabel["replaced_by"]) == ("S02", "S01")
            await desk.send("moss.merge_speakers", speaker="S02", into="S01", event_id="again")
            error = (await desk.until("error"))["error"]
            assert (error["param"], error["event_id"]) == ("speaker", "again")
            await speak(desk, DUO)
            assert "S02" not in {name for name, _ in viewer.board.lines()}
            lines = json.loads(meeting.export("json"))["segments"]
            assert "S02" not in {line["speaker"] for line in lines}

    asyncio.run(play())


def test_times_are_right_while_a_long_message_is_still_heard(server: Running) -> None:
    long = np.concatenate((np.zeros(16_000 * 100, np.float32), CLIP, np.zeros(16_000 * 200)))

    async def play() -> None:
        async with Meeting(server.http) as meeting:
            viewer = await meeting.viewer()
            ana = await meeting.microphone("Ana")
            await ana.append(long.astype(np.float32))
            entry = await viewer.until("room.entry")
            # All of it comes at once in a new room: nothing was heard before there was one.
            assert entry["start"] == pytest.approx(100, abs=1)
            await speak(ana, TAIL)

    asyncio.run(play())


def test_viewer_comes_back_for_what_it_missed(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            await speak(await meeting.microphone("Ana"))
            for name in ("A", "B"):
                meeting.rename("Ana", name)
            for reader in (await meeting.viewer(since=1), await meeting.listener(since=1)):
                reader.board.revision = 1
                await reader.reach(3)
                kinds = [message["type"] for message in reader.board.messages]
                assert kinds == ["room.resumed", "room.renamed", "room.renamed"]
                assert reader.board.names == {"Ana": "B"}

    asyncio.run(play())


def test_publisher_comes_back_on_a_new_socket(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            first = await meeting.microphone("Ana")
            token = (await first.next())["session"]["moss"]["resume_token"]
            await first.update(moss={"acks": True})
            await first.append(CLIP[:24_000])
            ack = await first.until("moss.ack")
            first.socket.transport.abort()
            last_seq = str(ack["moss"]["seq"])
            second = await meeting.microphone("Ana", resume=token, last_seq=last_seq)
            resumed = await second.next()
            await speak(second, CLIP[resumed["received_samples"] * 2 // 3 :])
            lines = json.loads(meeting.export("json"))["segments"]
            assert [(line["name"], line["text"]) for line in lines] == [("Ana", WORDS)]

    asyncio.run(play())


def test_what_a_lost_publisher_said_stays(backend: Backend) -> None:
    async def play(server: Running) -> None:
        async with Meeting(server.http) as meeting:
            viewer = await meeting.viewer()
            ana = await meeting.microphone("Ana")
            await ana.append(CLIP[:24_000])
            await viewer.until("room.partial")
            ana.socket.transport.abort()
            entry = await viewer.until("room.entry")
            assert not entry["complete"]
            assert viewer.board.partials == {}

    with running(backend, grace_s=0) as server:
        asyncio.run(play(server))
        assert server.sessions_end()


def test_deleted_room_sends_everybody_away(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            viewer, listener = await meeting.viewer(), await meeting.listener()
            ana = await meeting.microphone("Ana")
            await ana.next()
            assert meeting.request("DELETE").status_code == 403
            deleted = meeting.request("DELETE", token=meeting.publish_token)
            assert deleted.status_code == 204
            assert [await viewer.rest(), await listener.rest(), await ana.rest()] == [4410] * 3
            assert meeting.request("GET").status_code == 404
            assert await status(meeting.viewer()) == 404
            assert await status(meeting.microphone("Ana")) == 404

    asyncio.run(play())


def test_tokens_open_what_they_are_for(locked: Running) -> None:
    async def play() -> None:
        async with Meeting(locked.http, KEY) as meeting:
            other = Meeting(locked.http, KEY)
            publish, view = meeting.publish_token, meeting.view_token
            readers = {
                view: 200,
                publish: 200,
                KEY: 200,
                other.view_token: 401,
                "": 401,
                "ek_x": 401,
            }
            for token, expected in readers.items():
                assert meeting.request("GET", token=token).status_code == expected
                assert meeting.request("GET", "/transcript", token=token).status_code == expected
                handshake = 101 if expected == 200 else expected
                assert await status(meeting.viewer(token=token)) == handshake
            for token, expected in {
                view: 403,
                publish: 404,
                KEY: 404,
                other.publish_token: 401,
            }.items():
                renamed = meeting.request(
                    "POST", "/speakers", token, json={"speaker": "S01", "name": "A"}
                )
                assert renamed.status_code == expected
            for token, expected in {
                view: 403,
                publish: 101,
                KEY: 101,
                other.publish_token: 401,
            }.items():
                assert await status(meeting.microphone("Ana", token=token)) == expected
            for token, expected in {view: 403, publish: 403, KEY: 204}.items():
                assert meeting.request("DELETE", token=token).status_code == expected

    asyncio.run(play())


def test_room_tokens_open_nothing_else(locked: Running) -> None:
    meeting = Meeting(locked.http, KEY)
    for token in (meeting.publish_token, meeting.view_token):
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{locked.http}/v1/models", headers=headers).status_code == 401
        assert httpx.post(f"{locked.http}/v1/rooms", headers=headers).status_code == 401
        url = f"{locked.http.replace('http', 'ws')}/v1/realtime?token={token}"
        with pytest.raises(InvalidStatus):
            asyncio.run(_open(url))


async def _open(url: str, **options: Any) -> None:
    async with connect(url, **options):
        pass


def test_tokens_count_on_a_server_without_keys_too(server: Running) -> None:
    meeting = Meeting(server.http)
    assert meeting.request("GET", token="").status_code == 401
    assert meeting.request("GET", token="anything").status_code == 401
    assert meeting.request("DELETE", token=meeting.view_token).status_code == 403


def test_pages_of_other_sites_are_refused(server: Running) -> None:
    meeting = Meeting(server.http)
    url = f"{server.http}/v1/captions/{meeting.room}?token={meeting.view_token}"
    origin = {"Origin": "https://evil.example"}
    assert httpx.get(url, headers=origin).status_code == 403
    with pytest.raises(InvalidStatus) as caught:
        asyncio.run(_open(url.replace("http", "ws"), additional_headers=origin))
    assert caught.value.response.status_code == 403


def test_browser_gets_its_subprotocol_back(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            url = f"{server.http.replace('http', 'ws')}/v1/captions/{meeting.room}"
            offered = ["realtime", f"openai-insecure-api-key.{meeting.view_token}"]
            async with connect(url, subprotocols=offered) as socket:
                assert socket.subprotocol == "realtime"
                assert json.loads(await socket.recv())["type"] == "room.snapshot"

    asyncio.run(play())


@pytest.mark.parametrize(
    "query",
    [
        {"participant": ""},
        {"participant": "S01"},
        {"participant": "x" * 65},
        {"participant": "a\nb"},
        {"shared": "maybe"},
        {"preset": "podcast"},
    ],
)
def test_wrong_publisher_is_refused_before_the_handshake(server: Running, query: dict) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            assert await status(meeting.microphone(**{"participant": "Ana"} | query)) == 400

    asyncio.run(play())


@pytest.mark.parametrize("since", ["-1", "x", "9" * 40, "1.5", "²", ""])
def test_wrong_revision_is_refused(server: Running, since: str) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            assert await status(meeting.viewer(since=since)) == 400

    asyncio.run(play())


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"speaker": "S01"}',
        b'{"speaker": 1, "name": "A"}',
        b'{"speaker": "S01", "name": 1}',
        b'{"name": "A"}',
        b'{"speaker": "S01", "same_as": 1}',
        b"\xff",
    ],
)
def test_wrong_name_is_refused(server: Running, body: bytes) -> None:
    meeting = Meeting(server.http)
    answer = meeting.request("POST", "/speakers", meeting.publish_token, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_message"


@pytest.mark.parametrize("title", [5, "x" * 300, "a\nb", None])
def test_wrong_title_is_refused(server: Running, title: Any) -> None:
    answer = httpx.post(f"{server.http}/v1/rooms", json={"title": title})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "title"


def test_wrong_format_and_wrong_paths_are_refused(server: Running) -> None:
    meeting = Meeting(server.http)
    assert meeting.request("GET", "/transcript", params={"format": "pdf"}).status_code == 400
    assert meeting.request("GET", "/nothing").status_code == 404
    assert meeting.request("PUT").status_code == 405
    assert httpx.get(f"{server.http}/v1/rooms/nobody?token=x").status_code == 404


def test_what_viewers_send_disturbs_nobody(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            url = f"{server.http.replace('http', 'ws')}/v1/captions/{meeting.room}"
            async with connect(f"{url}?token={meeting.view_token}") as socket:
                for garbage in ("{", "x" * 10_000, b"\xff\x00", '{"type": "room.entry"}'):
                    await socket.send(garbage)
                await socket.recv()
                await speak(await meeting.microphone("Ana"))
                async with asyncio.timeout(10):
                    while json.loads(await socket.recv())["type"] != "room.entry":
                        pass

    asyncio.run(play())


def test_slow_viewer_is_dropped_and_delays_nobody(backend: Backend) -> None:
    async def play(server: Running) -> None:
        async with Meeting(server.http) as meeting:
            quick = await meeting.viewer()
            await quick.next()
            url = f"{server.http.replace('http', 'ws')}/v1/captions/{meeting.room}"
            async with connect(f"{url}?token={meeting.view_token}", max_size=None) as slow:
                await slow.recv()
                slow.transport.pause_reading()
                house, loop = server.server.app.state.house, server.server._loop

                async def publish() -> int:
                    async with house.visit(meeting.room) as opened:
                        opened.viewers.publish({"type": "room.test", "pad": "x" * 200_000})
                        return opened.viewers.num_dropped

                num_dropped = 0
                while not num_dropped:
                    publishing = asyncio.run_coroutine_threadsafe(publish(), loop)
                    num_dropped = await asyncio.wrap_future(publishing)
                    await quick.until("room.test")
                slow.transport.resume_reading()
                with pytest.raises(ConnectionClosedError):
                    async for _ in slow:
                        pass
                assert slow.close_code == 1013
                assert "messages wait" in slow.close_reason

    with running(backend, max_viewer_messages=8) as server:
        asyncio.run(play(server))


def test_full_house_refuses_viewers(backend: Backend) -> None:
    async def play(server: Running) -> None:
        async with Meeting(server.http) as meeting:
            reader = await meeting.viewer()
            await reader.next()
            assert await status(meeting.viewer()) == 503
            url = f"{server.http}/v1/captions/{meeting.room}"
            refused = await asyncio.to_thread(httpx.get, url, params={"token": meeting.view_token})
            assert refused.status_code == 503
            assert int(refused.headers["Retry-After"]) > 0

    with running(backend, max_viewers=1) as server:
        asyncio.run(play(server))


def test_nothing_is_held_for_viewers_who_have_left(backend: Backend) -> None:
    async def play(server: Running) -> None:
        async with Meeting(server.http) as meeting:
            readers = [await meeting.viewer() for _ in range(3)]
            readers += [await meeting.listener() for _ in range(3)]
            for reader in readers[:3]:
                await reader.next()
            assert viewers(server) == 6

    with running(backend) as server:
        asyncio.run(play(server))
        ends_s = time.monotonic() + PATIENCE_S
        while viewers(server):
            assert time.monotonic() < ends_s
            time.sleep(0.01)


def viewers(server: Running) -> float:
    """How many the server believes to have."""
    lines = httpx.get(f"{server.http}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("moss_viewers ")]
    return float(line.split()[1])
