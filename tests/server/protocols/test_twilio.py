from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import ClientError, InvalidMessage, OutOfOrder, UnsupportedAudio
from moss_stream.server.protocols.call_report import CallReport
from moss_stream.server.protocols.twilio import (
    MAX_GAP_MS,
    MAX_LAG_MS,
    SILENCE,
    Audio,
    MediaStream,
    Start,
    Stop,
)

PACKET = bytes(range(160))
FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}


def start(**changes: Any) -> dict[str, Any]:
    given = {
        "accountSid": "AC1",
        "streamSid": "MZ1",
        "callSid": "CA1",
        "tracks": ["inbound", "outbound"],
        "mediaFormat": FORMAT,
        "customParameters": {"inbound": "Ana", "token": "secret"},
    }
    return {"event": "start", "streamSid": "MZ1", "sequenceNumber": "1", "start": given | changes}


def media(track: str, timestamp_ms: int, data: bytes = PACKET, **changes: Any) -> dict[str, Any]:
    given = {
        "track": track,
        "chunk": "1",
        "timestamp": str(timestamp_ms),
        "payload": base64.b64encode(data).decode(),
    }
    return {"event": "media", "streamSid": "MZ1", "media": given | changes}


def read(stream: MediaStream, message: Any) -> list[Start | Audio | Stop]:
    return list(stream.read(json.dumps(message)))


def streaming(**changes: Any) -> MediaStream:
    stream = MediaStream()
    read(stream, start(**changes))
    return stream


def test_start_says_what_the_call_is() -> None:
    (begun,) = read(MediaStream(), start())

    assert begun == Start(
        "MZ1", "CA1", ("inbound", "outbound"), {"inbound": "Ana", "token": "secret"}
    )


def test_call_without_parameters_starts() -> None:
    message = start()
    del message["start"]["customParameters"]

    assert read(MediaStream(), message)[0].parameters == {}


@pytest.mark.parametrize("event", ["connected", "mark", "dtmf", "something new"])
def test_events_without_meaning_here_are_passed_over(event: str) -> None:
    assert read(MediaStream(), {"event": event}) == []
    assert read(streaming(), {"event": event}) == []


def test_packets_in_time_are_taken_as_they_are() -> None:
    stream = streaming(tracks=["inbound"])
    heard = [audio for k in range(5) for audio in read(stream, media("inbound", 20 * k + 5))]

    assert heard == [Audio("inbound", PACKET)] * 5


def test_lost_packets_become_silence() -> None:
    stream = streaming(tracks=["inbound"])
    read(stream, media("inbound", 0))

    assert read(stream, media("inbound", 100)) == [
        Audio("inbound", SILENCE * 640),
        Audio("inbound", PACKET),
    ]


def test_track_that_is_left_out_is_silent() -> None:
    stream = streaming()
    heard = [audio for k in range(100) for audio in read(stream, media("inbound", 20 * k))]
    silence = b"".join(audio.data for audio in heard if audio.track == "outbound")

    assert silence == SILENCE * 8 * (2000 - MAX_LAG_MS)
    assert read(stream, media("outbound", 2000))[-1] == Audio("outbound", PACKET)


def test_stop_ends_the_call() -> None:
    stream = streaming()

    assert read(stream, {"event": "stop", "streamSid": "MZ1", "stop": {}}) == [Stop()]
    with pytest.raises(OutOfOrder, match="media came after stop"):
        read(stream, media("inbound", 0))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ([], None),
        ({}, "event"),
        ({"event": 5}, "event"),
        ({"event": "start"}, "start"),
        (start(tracks=[]), "start.tracks"),
        (start(tracks=["inbound", "inbound"]), "start.tracks"),
        (start(tracks=["sideways"]), "start.tracks"),
        (start(tracks=[["inbound"]]), "start.tracks"),
        (start(tracks="inbound"), "start.tracks"),
        (start(streamSid=None), "start.streamSid"),
        (start(callSid="x" * 65), "start.callSid"),
        (start(customParameters=[]), "start.customParameters"),
        (start(customParameters={"a": 1}), "start.customParameters"),
        (start(customParameters={"a": "x" * 3000}), "start.customParameters"),
        (start(mediaFormat=None), "start.mediaFormat"),
    ],
)
def test_wrong_message_names_its_field(message: Any, field: str | None) -> None:
    with pytest.raises(InvalidMessage) as caught:
        read(MediaStream(), message)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"event": "media"}, "media"),
        (media("sideways", 0), "media.track"),
        ({"event": "media", "media": {"track": ["inbound"]}}, "media.track"),
        (media("inbound", 0, payload=None), "media.payload"),
        (media("inbound", 0, payload="*"), "media.payload"),
        (media("inbound", 0, timestamp="-1"), "media.timestamp"),
        (media("inbound", 0, timestamp=True), "media.timestamp"),
        (media("inbound", 0, timestamp="1" * 30), "media.timestamp"),
        (media("inbound", MAX_GAP_MS + 1), "media.timestamp"),
        (media("inbound", 0) | {"streamSid": "MZ2"}, "streamSid"),
    ],
)
def test_wrong_media_names_its_field(message: Any, field: str) -> None:
    with pytest.raises(InvalidMessage) as caught:
        read(streaming(), message)
    assert caught.value.field == field


@pytest.mark.parametrize("name", FORMAT)
def test_other_audio_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedAudio, match=f"mediaFormat.{name} is 'other', expected"):
        read(MediaStream(), start(mediaFormat=FORMAT | {name: "other"}))


def test_parameters_are_not_quoted() -> None:
    with pytest.raises(InvalidMessage) as caught:
        read(MediaStream(), start(customParameters={"token": "secret" * 1000}))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (MediaStream(), media("inbound", 0)),
        (streaming(), start()),
        (MediaStream(), {"event": "stop"}),
    ],
    ids=["media before start", "second start", "stop before start"],
)
def test_messages_out_of_order_are_refused(stream: MediaStream, message: Any) -> None:
    with pytest.raises(OutOfOrder):
        read(stream, message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(event=st.sampled_from(["start", "media", "stop", "mark"]), given=JSON, text=st.text())
def test_any_text_is_read_or_refused_by_name(event: str, given: Any, text: str) -> None:
    for stream in (MediaStream(), streaming()):
        for message in (text, json.dumps({"event": event, event: given})):
            try:
                list(stream.read(message))
            except ClientError as error:
                assert error.message


@given(st.lists(st.tuples(st.sampled_from(["inbound", "outbound"]), st.integers(0, 5000))))
def test_no_packet_is_lost_and_tracks_keep_together(packets: list[tuple[str, int]]) -> None:
    stream = streaming()
    heard = {"inbound": b"", "outbound": b""}
    for track, timestamp_ms in packets:
        before = len(heard[track])
        for audio in read(stream, media(track, timestamp_ms, b"\0")):
            heard[audio.track] += audio.data
        assert b"\0" in heard[track][before:]
        lengths = [len(data) for data in heard.values()]
        assert max(lengths) - min(lengths) <= MAX_LAG_MS * 8
    assert sum(data.count(b"\0") for data in heard.values()) == len(packets)


def report(**parameters: str) -> CallReport:
    return CallReport(Start("MZ1", "CA1", ("inbound", "outbound"), parameters))


def segment(item_id: str, start_s: float, end_s: float, text: str) -> dict[str, Any]:
    return {
        "type": "conversation.item.input_audio_transcription.segment",
        "item_id": item_id,
        "speaker": "S02",
        "start": start_s,
        "end": end_s,
        "text": text,
    }


def completed(item_id: str, transcript: str) -> dict[str, Any]:
    return {
        "type": "conversation.item.input_audio_transcription.completed",
        "item_id": item_id,
        "transcript": transcript,
    }


def test_report_names_speakers_by_track() -> None:
    told = report(inbound="Ana")
    assert told.told("inbound", segment("a", 1.0, 2.0, "Good")) is None
    told.told("outbound", segment("b", 1.5, 2.5, "Hello."))
    told.told("inbound", segment("a", 2.0, 3.0, "morning."))
    ana = told.told("inbound", completed("a", "Good morning."))
    other = told.told("outbound", completed("b", "Hello."))

    assert ana is not None and other is not None
    assert (ana["speaker"], ana["start"], ana["end"]) == ("Ana", 1.0, 3.0)
    assert [part["text"] for part in ana["segments"]] == ["Good", "morning."]
    assert (other["speaker"], other["text"]) == ("outbound", "Hello.")


def test_report_numbers_events_without_holes() -> None:
    told = report()
    told.told("inbound", segment("a", 0, 1, "Yes."))
    gap = {"type": "moss.gap", "start_samples": 8000, "end_samples": 12000, "reason": "x"}
    events = [
        told.started(),
        told.told("inbound", completed("a", "Yes.")),
        told.told("outbound", gap),
        told.told("outbound", {"type": "moss.warning", "code": "clipping", "message": "loud"}),
        told.stopped(""),
    ]

    assert [event["sequence"] for event in events if event] == [1, 2, 3, 4, 5]
    assert [event["event"] for event in events if event] == [
        "started", "final", "gap", "warning", "stopped",
    ]  # fmt: skip
    assert (events[2]["start"], events[2]["end"]) == (1.0, 1.5)


@pytest.mark.parametrize(
    "message",
    [
        completed("a", ""),
        {"type": "moss.warning", "code": "text_revised", "message": ""},
        {"type": "session.created"},
        {"type": "conversation.item.input_audio_transcription.delta", "delta": "a"},
    ],
)
def test_report_leaves_out_what_has_no_meaning(message: dict[str, Any]) -> None:
    assert report().told("inbound", message) is None


def test_report_keeps_keys_to_itself() -> None:
    begun = report(token="secret", webhook="https://user", inbound="Ana", order="17").started()

    assert begun["parameters"] == {"order": "17"}
    assert begun["speakers"] == {"inbound": "Ana", "outbound": "outbound"}
    assert "secret" not in json.dumps(begun)
