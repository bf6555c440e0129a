from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import InvalidMessage, RequestFailed
from moss_stream.live.events import (
    CommitDone,
    Failed,
    Final,
    Finished,
    Hypothesis,
    Relabel,
    SessionWarning,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.server.protocols.deepgram import (
    CloseStream,
    Configure,
    Deepgram,
    Finalize,
    KeepAlive,
)
from moss_stream.server.protocols.deepgram_query import ListenOptions
from moss_stream.server.protocols.deepgram_results import RequestInfo
from moss_stream.types import Segment, TranscriptWarning, Usage

RATE = 16_000
INFO = RequestInfo("7d0c", "2026-01-01T00:00:00.000Z", "mini", "0.1.0")
ALL = {"interim_results": True, "vad_events": True, "diarize": True, "utterance_end_ms": 1000}


class World:
    """A protocol, and everything it sent."""

    def __init__(self, **options: Any) -> None:
        self.protocol = Deepgram(INFO, ListenOptions(**options))
        self.sent: list[dict[str, Any]] = []

    def tell(self, *events: Any, channel: int = 0) -> list[dict[str, Any]]:
        new = [message for event in events for message in self.protocol.tell(channel, event)]
        self.sent += new
        return new

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        return list(self.protocol.advance(0, round(seconds * RATE)))


def started(utterance: int = 1, at_s: float = 1.0) -> SpeechStarted:
    return SpeechStarted(utterance, round(at_s * RATE), round((at_s + 0.5) * RATE))


def stopped(
    utterance: int = 1, at_s: float = 1.0, end_s: float = 2.5, *, is_split: bool = False
) -> SpeechStopped:
    end_at = round(end_s * RATE)
    return SpeechStopped(
        utterance, round(at_s * RATE), end_at - 3200, end_at, end_at + 6400, is_split
    )


def hypothesis(
    utterance: int = 1, text: str = "hi there", end_s: float = 2.0, covered_s: float = 2.0
) -> Hypothesis:
    segments = (Segment(1.2, end_s, "S02", text),) if text else ()
    return Hypothesis(utterance, 1, "", (), text, segments, round(covered_s * RATE), 0.1)


def final(utterance: int = 1, *segments: Segment, at_s: float = 1.0, end_s: float = 2.5) -> Final:
    segments = segments or (Segment(1.2, 2.2, "S02", "Hi there."),)
    text = " ".join(segment.text for segment in segments)
    return Final(
        utterance, segments, text, round(at_s * RATE), round(end_s * RATE), False, (), Usage()
    )


def transcript(result: dict[str, Any]) -> str:
    return result["channel"]["alternatives"][0]["transcript"]


def test_final_is_a_result_with_words_speakers_and_times() -> None:
    world = World(**ALL)
    (result,) = world.tell(started(), stopped(), final())[1:]

    assert result["type"] == "Results"
    assert (result["is_final"], result["speech_final"], result["from_finalize"]) == (
        True,
        True,
        False,
    )
    assert (result["start"], result["duration"]) == (1.0, 1.5)
    assert result["channel_index"] == [0, 1]
    (alternative,) = result["channel"]["alternatives"]
    assert alternative["transcript"] == "Hi there."
    assert alternative["words"][1] == {
        "word": "there",
        "punctuated_word": "there.",
        "start": 1.45,
        "end": 2.2,
        "confidence": 1.0,
        "speaker": 1,
    }
    assert result["metadata"]["request_id"] == "7d0c"
    assert result["metadata"]["model_info"]["name"] == "mini"
    assert "words.start" in result["moss"]["estimated"]
    assert result["moss"]["segments"] == [
        {"speaker": "S02", "start": 1.2, "end": 2.2, "text": "Hi there."}
    ]


def test_speakers_are_named_only_when_asked_for() -> None:
    result = World().tell(started(), stopped(), final())[-1]

    assert "speaker" not in result["channel"]["alternatives"][0]["words"][0]


def test_text_that_may_change_is_told_only_when_asked_for() -> None:
    assert World().tell(started(), hypothesis()) == []
    (result,) = World(interim_results=True).tell(started(), hypothesis())
    assert not result["is_final"]
    assert not result["speech_final"]
    assert transcript(result) == "hi there"
    assert (result["start"], result["duration"]) == (1.0, 1.0)


def test_speech_started_is_told_once_for_speech_that_is_split() -> None:
    world = World(vad_events=True)
    world.tell(started(1), stopped(1, is_split=True), started(2, 2.5), final(1), final(2))

    assert [m["type"] for m in world.sent] == ["SpeechStarted", "Results", "Results"]
    assert world.sent[0] == {"type": "SpeechStarted", "channel": [0, 1], "timestamp": 1.0}
    assert not world.sent[1]["speech_final"]


def test_endpoints_that_are_turned_off_are_not_told() -> None:
    (result,) = World(tells_endpoints=False).tell(started(), stopped(), final())

    assert result["is_final"]
    assert not result["speech_final"]


def test_finals_come_in_the_order_of_speech() -> None:
    world = World(interim_results=True)
    world.tell(started(1), stopped(1), started(2, 3.0))
    assert world.tell(hypothesis(2), stopped(2, 3.0, 4.0), final(2, at_s=3.0, end_s=4.0)) == []
    results = world.tell(final(1))

    assert [result["start"] for result in results] == [1.0, 3.0]


def test_failed_utterance_is_a_final_without_text_that_says_why() -> None:
    error = RequestFailed("the decode failed: X")
    (result,) = World().tell(started(), stopped(), Failed(1, error))

    assert result["is_final"]
    assert transcript(result) == ""
    assert (result["start"], result["duration"]) == (1.0, 1.5)
    assert result["moss"]["warnings"] == [
        {"code": "request_failed", "message": "no text: the decode failed: X"}
    ]


def test_finalize_is_answered_by_the_last_utterance_without_text() -> None:
    world = World()
    world.protocol.committing(0, is_finalize=True)
    world.tell(started(1), stopped(1), started(2, 3.0), stopped(2, 3.0), CommitDone(2, 40_000))
    results = world.tell(final(1), final(2, at_s=3.0))

    assert [result["from_finalize"] for result in results] == [False, True]


def test_finalize_of_silence_is_answered_at_once() -> None:
    world = World()
    world.protocol.committing(0, is_finalize=True)
    (result,) = world.tell(CommitDone(None, 32_000))

    assert result["from_finalize"]
    assert result["is_final"]
    assert (result["start"], result["duration"], transcript(result)) == (2.0, 0.0, "")


def test_utterance_end_is_told_once_after_a_gap_behind_the_last_word() -> None:
    world = World(utterance_end_ms=1000)
    world.tell(started(), stopped(), final())

    assert world.hear(3.1) == []
    assert world.hear(3.2) == [{"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": 2.2}]
    assert world.hear(9.0) == []


def test_utterance_end_waits_while_words_come() -> None:
    world = World(utterance_end_ms=1000)
    world.tell(started(1), stopped(1), final(1), started(2, 2.8))
    assert world.hear(9.0) == []
    world.tell(hypothesis(2, "more", 3.5, 4.0))
    assert world.hear(9.0) == []
    world.tell(stopped(2, 2.8, 4.0), final(2, Segment(3.0, 3.6, "S01", "More.")))

    assert [end["last_word_end"] for end in world.hear(9.0)] == [3.6]


def test_utterance_ends_by_its_words_where_the_noise_does_not() -> None:
    world = World(utterance_end_ms=1000)
    world.tell(started(1), hypothesis(1, "hi", 2.0, 2.9))
    assert not world.protocol.is_overdue(0)
    world.tell(hypothesis(1, "hi", 2.0, 3.0))
    assert world.protocol.is_overdue(0)
    world.protocol.committing(0, is_finalize=False)
    assert not world.protocol.is_overdue(0)
    results = world.tell(
        stopped(1, end_s=3.0),
        CommitDone(1, 48_000),
        started(2, 3.0),
        final(1, Segment(1.2, 2.0, "S01", "Hi.")),
        hypothesis(2, "", covered_s=3.5),
    )

    assert [result["from_finalize"] for result in results] == [False]
    assert [end["last_word_end"] for end in world.hear(9.0)] == [2.0]


def test_channels_are_told_apart() -> None:
    world = World(channels=2, is_multichannel=True, vad_events=True)
    world.tell(started(), channel=1)
    world.tell(started(), stopped(), final(), channel=0)
    (result,) = world.tell(stopped(), final(), channel=1)

    assert world.sent[0]["channel"] == [1, 2]
    assert result["channel_index"] == [1, 2]


def test_warnings_and_renamed_speakers_travel_with_the_next_result() -> None:
    world = World(ignored=("redact",))
    world.tell(started(), SessionWarning("refresh_failed", "x"), Relabel("S03", "S01"), stopped())
    warned = Final(
        1, (), "", RATE, 2 * RATE, False, (TranscriptWarning("no_text", "no words"),), Usage()
    )
    (result,) = world.tell(warned)

    assert [w["code"] for w in result["moss"]["warnings"]] == [
        "option_ignored",
        "refresh_failed",
        "no_text",
    ]
    assert result["moss"]["relabels"] == [{"speaker": 2, "replaced_by": 0}]
    assert "warnings" not in world.protocol.metadata("", 0)["moss"]


def test_metadata_ends_a_stream() -> None:
    world = World(channels=2)
    assert world.tell(Finished(32_000)) == []

    message = world.protocol.metadata("abc", 2.0)
    assert message["type"] == "Metadata"
    assert (message["duration"], message["channels"], message["sha256"]) == (2.0, 2, "abc")
    assert set(message["model_info"]) == set(message["models"])


@pytest.mark.parametrize(
    ("message", "command"),
    [
        ({"type": "KeepAlive"}, KeepAlive()),
        ({"type": "Finalize"}, Finalize(None)),
        ({"type": "Finalize", "channel": 1}, Finalize(1)),
        ({"type": "CloseStream"}, CloseStream()),
        ({"type": "Configure", "keyterms": [" moss "]}, Configure(("moss",))),
        ({"type": "Configure", "features": {"numerals": True}}, Configure(None)),
    ],
)
def test_message_is_a_command(message: dict[str, Any], command: object) -> None:
    world = World(channels=2, is_multichannel=True)

    assert world.protocol.read(json.dumps(message)) == command


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"KeepAlive"',
        "{}",
        '{"type": 7}',
        '{"type": "keepalive"}',
        '{"type": "Finalize", "channel": 1}',
        '{"type": "Finalize", "channel": -1}',
        '{"type": "Finalize", "channel": true}',
        '{"type": "Finalize", "channel": "0"}',
        '{"type": "Configure", "keyterms": "moss"}',
        '{"type": "Configure", "keyterms": [1]}',
    ],
)
def test_message_that_makes_no_sense_is_refused_as_deepgram_does(text: str) -> None:
    world = World()
    with pytest.raises(InvalidMessage) as caught:
        world.protocol.read(text)

    answer = world.protocol.refuse(text, caught.value)
    assert (answer["type"], answer["variant"], answer["message"]) == ("Error", "SchemaError", text)
    assert answer["description"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.text(max_size=40)
    | JSON.map(json.dumps)
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["Finalize", "Configure"]), "channel": JSON, "keyterms": JSON}
    ).map(json.dumps)
)
def test_any_text_is_a_command_or_refused(text: str) -> None:
    protocol = World().protocol
    try:
        protocol.read(text)
    except InvalidMessage as error:
        json.dumps(protocol.refuse(text, error))
