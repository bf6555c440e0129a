"""Phone calls over Twilio Media Streams, with a client that sends what Twilio sends."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running, running
from support.rooms import Meeting
from support.webhook import Receiver, receiving
from support.words import normal_words
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from moss_stream.audio.pcm import encode_mulaw
from moss_stream.audio.resample import resample
from moss_stream.server import twilio
from moss_stream.server.app import Backend

Samples = npt.NDArray[np.float32]

WORDS = load_clip("asterisk_human_000")
SAID = "The conference will begin when the leader arrives."
PAUSE = np.zeros(16_000, np.float32)
QUIET = np.zeros(len(WORDS) + len(PAUSE), np.float32)
KEY = "a-key-of-the-operator"
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


class Call:
    """What Twilio does for a call."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._sequence = 0
        self._sent_ms = {"inbound": 0, "outbound": 0}

    async def send(self, event: str, **fields: Any) -> None:
        self._sequence += 1
        message = {"event": event, "sequenceNumber": str(self._sequence), "streamSid": "MZ1"}
        await self.socket.send(json.dumps(message | fields))

    async def start(self, tracks: list[str], **parameters: str) -> None:
        await self.socket.send(json.dumps({"event": "connected", "protocol": "Call"}))
        await self.send(
            "start",
            start={
                "accountSid": "AC1",
                "callSid": "CA1",
                "streamSid": "MZ1",
                "tracks": tracks,
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": parameters,
            },
        )

    async def say(self, **tracks: Samples) -> None:
        """Send packets of 20 ms, of all tracks side by side."""
        data = {t: encode_mulaw(resample(s, 16_000, 8_000)) for t, s in tracks.items()}
        for at in range(0, max(map(len, data.values())), 160):
            for track, samples in data.items():
                payload = base64.b64encode(samples[at : at + 160]).decode()
                media = {"track": track, "chunk": "1", "payload": payload}
                media["timestamp"] = str(self._sent_ms[track])
                await self.send("media", media=media)
                self._sent_ms[track] += 20

    async def stop(self) -> None:
        await self.send("stop", stop={"accountSid": "AC1", "callSid": "CA1"})

    async def close(self) -> tuple[int | None, str | None]:
        """Wait until the server closes; code and reason."""
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ConnectionClosed):
                await self.socket.recv()
        return self.socket.close_code, self.socket.close_reason


async def dial(server: Running, query: str = "", **options: Any) -> Call:
    return Call(await connect(f"ws://127.0.0.1:{server.port}/twilio{query}", **options))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def allowed(receiver: Receiver) -> tuple[str, ...]:
    return (receiver.url.removeprefix("http://"),)


@pytest.fixture
def server(backend: Backend, receiver: Receiver) -> Iterator[Running]:
    with running(backend, webhook_allow=allowed(receiver)) as served:
        yield served
        assert served.sessions_end()
    backend.engine.check_idle()


def words(events: list[Any]) -> str:
    return normal_words(" ".join(event["text"] for event in events))


def test_both_sides_of_a_call_are_told(server: Running, receiver: Receiver) -> None:
    async def play() -> tuple[int | None, str | None]:
        call = await dial(server)
        await call.start(
            ["inbound", "outbound"], webhook=f"{receiver.url}/calls", inbound="Ana", order="17"
        )
        await call.say(inbound=np.concatenate((WORDS, PAUSE)), outbound=QUIET)
        await call.say(inbound=QUIET, outbound=np.concatenate((WORDS, PAUSE)))
        await call.stop()
        return await call.close()

    assert asyncio.run(play())[0] == 1000
    receiver.until("stopped")
    started, *_, stopped = receiver.events
    ana, other = receiver.of("final")
    assert started["parameters"] == {"order": "17"}
    assert (started["call_sid"], started["stream_sid"]) == ("CA1", "MZ1")
    assert [(ana["track"], ana["speaker"]), (other["track"], other["speaker"])] == [
        ("inbound", "Ana"),
        ("outbound", "outbound"),
    ]
    assert words([ana]) == words([other]) == normal_words(SAID)
    assert 0 <= ana["start"] < ana["end"] < 4
    assert 4 <= other["start"] < other["end"] < 8
    assert stopped["reason"] == ""
    assert [event["sequence"] for event in receiver.events] == list(
        range(1, len(receiver.events) + 1)
    )
    assert receiver.paths == ["/calls"] * len(receiver.events)


def test_call_with_the_parameters_of_the_readme_is_told(
    backend: Backend, receiver: Receiver
) -> None:
    (example,) = re.findall(r"^```xml\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    stream = ElementTree.fromstring(example).find("Start/Stream")
    parameters = {each.attrib["name"]: each.attrib["value"] for each in stream.iter("Parameter")}
    tracks = {"both_tracks": ["inbound", "outbound"]}[stream.attrib["track"]]
    path = parameters["webhook"].removeprefix("https://hooks.example.org")
    parameters["webhook"] = f"{receiver.url}{path}"  # the rest is as a stranger copies it
    assert stream.attrib["url"] == "wss://HOST/twilio"

    async def play(server: Running) -> None:
        call = await dial(server)
        await call.start(tracks, **parameters)
        await call.say(inbound=np.concatenate((WORDS, PAUSE)), outbound=QUIET)
        await call.stop()
        assert (await call.close())[0] == 1000

    key = parameters["token"]
    with running(backend, api_keys=(key,), webhook_allow=allowed(receiver)) as server:
        asyncio.run(play(server))
        receiver.until("stopped")
    (final,) = receiver.of("final")
    assert final["speaker"] == parameters["inbound"]
    assert words([final]) == normal_words(SAID)
    assert receiver.paths[0] == path


def test_track_that_falls_silent_on_the_wire_is_told_all_the_same(
    server: Running, receiver: Receiver
) -> None:
    """Its turn ends while the other side goes on."""

    async def play() -> Any:
        call = await dial(server)
        await call.start(["inbound", "outbound"], webhook=f"{receiver.url}/calls")
        await call.say(outbound=WORDS)
        await call.say(inbound=np.zeros(64_000, np.float32))
        told = await asyncio.to_thread(receiver.until, "final")
        await call.stop()
        await call.close()
        return told

    assert words([asyncio.run(play())]) == normal_words(SAID)


def test_caller_that_hangs_up_is_told_to_the_end(server: Running, receiver: Receiver) -> None:
    async def play() -> None:
        call = await dial(server)
        await call.start(["inbound"], webhook=f"{receiver.url}/calls")
        await call.say(inbound=WORDS)
        call.socket.transport.abort()

    asyncio.run(play())
    receiver.until("stopped")
    assert words(receiver.of("final")) == normal_words(SAID)


def test_call_is_heard_in_a_room(server: Running) -> None:
    async def play() -> None:
        async with Meeting(server.http) as meeting:
            viewer = await meeting.viewer()
            query = {"room": meeting.room, "token": meeting.publish_token}
            call = await dial(server)
            await call.start(["inbound", "outbound"], inbound="Ana", **query)
            await call.say(inbound=np.concatenate((WORDS, PAUSE)), outbound=QUIET)
            await call.say(inbound=QUIET, outbound=np.concatenate((WORDS, PAUSE)))
            await call.stop()
            assert (await call.close())[0] == 1000
            while len(viewer.board.lines()) < 2:
                await viewer.next()
            assert [name for name, _ in viewer.board.lines()] == ["Ana", "outbound"]
            ana, outbound = viewer.board.entries.values()
            assert outbound["start"] - ana["start"] == pytest.approx(len(QUIET) / 16_000, abs=0.5)

    asyncio.run(play())


def test_room_that_does_not_let_a_call_in_ends_it(server: Running) -> None:
    meeting = Meeting(server.http)

    async def play(**parameters: str) -> tuple[int | None, str]:
        call = await dial(server)
        await call.start(["inbound"], **parameters)
        code, reason = await call.close()
        return code, reason or ""

    for token in (meeting.view_token, "wrong"):
        code, reason = asyncio.run(play(room=meeting.room, token=token))
        assert (code, "token" in reason) == (1008, True)
    code, reason = asyncio.run(play(room="nowhere", token=meeting.publish_token))
    assert "nowhere" in reason
    code, reason = asyncio.run(play(room=meeting.room, token=meeting.publish_token, inbound="S01"))
    assert (code, "participant" in reason) == (1007, True)


def test_webhook_may_be_named_in_the_address(server: Running, receiver: Receiver) -> None:
    async def play() -> None:
        call = await dial(server, f"?webhook={receiver.url}/calls")
        await call.start(["inbound"])
        await call.stop()
        await call.close()

    asyncio.run(play())
    assert receiver.until("stopped")["sequence"] == 2


def refusal(
    server: Running, *texts: str | bytes, tracks: list[str] | None = None, **parameters: str
) -> Any:
    """How the server closes a call that starts like this and then says that."""

    async def play() -> Any:
        call = await dial(server)
        await call.start(tracks or ["inbound"], **parameters)
        for text in texts:
            await call.socket.send(text)
        return await call.close()

    return asyncio.run(play())


def test_call_without_webhook_and_room_is_refused(server: Running) -> None:
    assert refusal(server) == (1007, "the call names neither a webhook nor a room")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:1/", "http://169.254.169.254/", "https://example.org/"]
)
def test_webhook_that_is_not_allowed_is_refused(server: Running, address: str) -> None:
    code, reason = refusal(server, webhook=address)

    assert code == 1008
    assert "which this server does not call" in reason


def test_nothing_is_allowed_by_default(backend: Backend, receiver: Receiver) -> None:
    with running(backend) as server:
        assert refusal(server, webhook=f"{receiver.url}/calls")[0] == 1008
    assert receiver.paths == []


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("no JSON", 1007, "not JSON"),
        ("[]", 1007, "a list, expected a JSON object"),
        (b"\x7f\xff", 1007, "a binary message"),
        ('{"event": "start"}', 1008, "start came twice"),
        ('{"event": "media", "media": {"track": "outbound"}}', 1007, "media.track is 'outbound'"),
    ],
)
def test_bad_message_ends_the_call_with_its_reason(
    server: Running, receiver: Receiver, text: str | bytes, code: int, reason: str
) -> None:
    closed = refusal(server, text, webhook=f"{receiver.url}/calls")

    assert closed[0] == code
    assert closed[1].startswith(reason)
    assert receiver.until("stopped")["reason"].startswith(reason)


def test_what_was_said_before_a_bad_message_is_told(server: Running, receiver: Receiver) -> None:
    async def play() -> None:
        call = await dial(server)
        await call.start(["inbound"], webhook=f"{receiver.url}/calls")
        await call.say(inbound=WORDS)
        await call.socket.send("no JSON")
        assert (await call.close())[0] == 1007

    asyncio.run(play())
    receiver.until("stopped")
    assert words(receiver.of("final")) == normal_words(SAID)


def test_call_that_does_not_start_is_closed(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(twilio, "START_TIMEOUT_S", 0.1)

    async def play() -> tuple[int | None, str | None]:
        return await (await dial(server)).close()

    assert asyncio.run(play()) == (1008, "no start within 0.1 s")


def test_call_needs_a_key_where_others_do(backend: Backend, receiver: Receiver) -> None:
    hook = f"{receiver.url}/calls"

    async def with_header(server: Running) -> None:
        call = await dial(server, additional_headers={"Authorization": f"Bearer {KEY}"})
        await call.start(["inbound"], webhook=hook)
        await call.stop()
        assert (await call.close())[0] == 1000

    with running(backend, api_keys=(KEY,), webhook_allow=allowed(receiver)) as server:
        assert refusal(server, webhook=hook)[0] == 1008
        assert refusal(server, webhook=hook, token="a-key-of-nobody") == (
            1008, "the API key is not known",
        )  # fmt: skip
        assert receiver.paths == []
        assert refusal(server, '{"event": "stop"}', webhook=hook, token=KEY)[0] == 1000
        asyncio.run(with_header(server))
    assert KEY not in json.dumps(receiver.events)


def test_page_of_another_site_is_refused(server: Running) -> None:
    with pytest.raises(InvalidStatus) as caught:
        asyncio.run(dial(server, origin="https://evil.example"))
    assert caught.value.response.status_code == 403


def test_each_track_counts_as_a_session(backend: Backend, receiver: Receiver) -> None:
    with running(backend, max_sessions=1, webhook_allow=allowed(receiver)) as server:
        code, reason = refusal(
            server, tracks=["inbound", "outbound"], webhook=f"{receiver.url}/calls"
        )
        assert code == 1013
        assert "no more are allowed" in reason
        assert server.sessions_end()
    assert [event["event"] for event in receiver.events] == ["stopped"]


def test_idle_call_is_closed(backend: Backend, receiver: Receiver) -> None:
    with running(backend, idle_timeout_s=1, webhook_allow=allowed(receiver)) as server:
        assert refusal(server, webhook=f"{receiver.url}/calls")[0] == 4408


def test_drain_tells_the_rest_of_a_call(backend: Backend, receiver: Receiver) -> None:
    async def play(server: Running) -> tuple[int | None, str | None]:
        call = await dial(server)
        await call.start(["inbound"], webhook=f"{receiver.url}/calls")
        await call.say(inbound=WORDS)
        await asyncio.to_thread(receiver.until, "started")
        server.drain()
        return await call.close()

    with running(backend, webhook_allow=allowed(receiver)) as server:
        assert asyncio.run(play(server))[0] == 1012
        receiver.until("stopped")
    assert words(receiver.of("final")) == normal_words(SAID)


def test_events_that_cannot_be_delivered_are_logged(
    server: Running,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(twilio, "DELIVERY_TIMEOUT_S", 0.1)
    receiver.answers = [503] * 50

    async def play() -> None:
        call = await dial(server)
        await call.start(["inbound"], webhook=f"{receiver.url}/calls")
        await call.stop()
        await call.close()

    asyncio.run(play())
    assert server.sessions_end()
    ends_s = time.monotonic() + PATIENCE_S
    while "left undelivered" not in caplog.text and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert "left undelivered" in caplog.text


def test_calls_side_by_side_do_not_mix(server: Running, receiver: Receiver) -> None:
    async def play(number: int) -> None:
        call = await dial(server)
        hook = f"{receiver.url}/{number}"
        await call.start(["inbound"], webhook=hook, inbound=f"caller {number}")
        await call.say(inbound=np.concatenate((WORDS, PAUSE)))
        await (call.stop() if number % 2 else call.socket.send("no JSON"))
        await call.close()

    async def play_all() -> None:
        await asyncio.gather(*(play(number) for number in range(4)))

    asyncio.run(play_all())
    receiver.until("stopped", 4)
    speakers = sorted(event["speaker"] for event in receiver.of("final"))
    assert speakers == [f"caller {number}" for number in range(4)]
    assert all(words([event]) == normal_words(SAID) for event in receiver.of("final"))
