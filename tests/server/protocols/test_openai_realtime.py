import base64
import json

import pytest

from moss_stream.errors import InvalidMessage, RequestFailed
from moss_stream.live.events import (
    CommitDone,
    Failed,
    Final,
    Finished,
    Gap,
    Hypothesis,
    Relabel,
    SessionWarning,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.server.protocols.commands import (
    Append,
    Clear,
    Commit,
    Configure,
    Finish,
    Identity,
    Merge,
    Progress,
)
from moss_stream.server.protocols.openai_realtime import OpenAIRealtime
from moss_stream.server.protocols.settings import Settings
from moss_stream.types import Segment, TranscriptWarning, Usage

RATE = 16_000
IDENTITY = Identity("sess_x", "token", 30.0, "mini", 1_000, {"max_session_s": 60.0})
TRANSCRIPTION = "conversation.item.input_audio_transcription"


class World:
    """A protocol, and everything it sent."""

    def __init__(self, **settings) -> None:
        self.progress = Progress()
        self.protocol = OpenAIRealtime(
            IDENTITY, Settings("agent", **settings), lambda: self.progress, lambda at: at * 3 // 2
        )
        self.sent = [self.protocol.created()]

    def say(self, kind: str, **fields):
        answer = self.protocol.read(json.dumps({"type": kind, **fields}))
        if isinstance(answer, dict):
            self.sent.append(answer)
        if isinstance(answer, Configure):
            self.sent.extend(self.protocol.configured(answer))
        return answer

    def hear(self, seconds: float) -> None:
        at = round(seconds * RATE)
        self.progress = Progress(at * 3 // 2, at, at, 0)

    def tell(self, *events) -> list[dict]:
        new = [message for event in events for message in self.protocol.tell(event)]
        self.sent.extend(new)
        return new

    def kinds(self) -> list[str]:
        return [message["type"] for message in self.sent]


def manual() -> World:
    world = World()
    world.say("session.update", session={"audio": {"input": {"turn_detection": None}}})
    return world


def started(utterance: int = 1, at: int = 8_000) -> SpeechStarted:
    return SpeechStarted(utterance, at, at + 8_000)


def stopped(utterance: int = 1, start: int = 8_000, *, is_split: bool = False) -> SpeechStopped:
    return SpeechStopped(utterance, start, 24_000, 27_200, 33_600, is_split)


def hypothesis(committed: str, partial: str = "", utterance: int = 1) -> Hypothesis:
    sure = (Segment(0.5, 1.0, "S01", committed),) if committed else ()
    open_ = (Segment(1.0, 1.5, "S01", partial.strip()),) if partial else ()
    return Hypothesis(utterance, 1, committed, sure, partial, open_, 20_000, 0.25)


def final(text: str, utterance: int = 1, **more) -> Final:
    segments = (Segment(0.5, 1.5, "S01", text),) if text else ()
    usage = Usage(audio_tokens=10, prompt_tokens=30, output_tokens=5)
    fields = {"is_revised": False, "warnings": (), "usage": usage} | more
    return Final(utterance, segments, text, 8_000, 27_200, **fields)


def test_messages_are_numbered_without_holes() -> None:
    w = World()
    w.hear(3)
    w.say("session.update", session={})
    w.say("nonsense")
    w.tell(started(), hypothesis("hi"), stopped(), final("hi there."))
    assert [m["moss"]["seq"] for m in w.sent] == list(range(1, len(w.sent) + 1))
    assert len({m["event_id"] for m in w.sent}) == len(w.sent)


def test_created_says_what_is_in_force() -> None:
    session = World().sent[0]["session"]
    assert session["type"] == "transcription"
    assert session["object"] == "realtime.transcription_session"
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert session["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    assert session["moss"]["resume_token"] == "token"


def test_a_turn_has_one_item_id_and_its_messages_in_order() -> None:
    w = World()
    w.tell(started(), hypothesis("hello", " there"), stopped(), final("hello there."))
    assert w.kinds()[1:] == [
        "input_audio_buffer.speech_started",
        f"{TRANSCRIPTION}.delta",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        f"{TRANSCRIPTION}.segment",
        f"{TRANSCRIPTION}.delta",
        f"{TRANSCRIPTION}.completed",
    ]
    ids = {m.get("item_id") or m["item"]["id"] for m in w.sent[1:]}
    assert len(ids) == 1
    assert w.sent[1]["audio_start_ms"] == 500
    assert w.sent[3]["audio_end_ms"] == 2_100
    assert w.sent[-1]["transcript"] == "hello there."
    assert w.sent[-1]["usage"]["total_tokens"] == 35


def test_items_are_chained() -> None:
    w = World()
    w.tell(started(1), stopped(1), started(2, 40_000), stopped(2, 40_000))
    first, second = (m for m in w.sent if m["type"] == "input_audio_buffer.committed")
    assert first["previous_item_id"] is None
    assert second["previous_item_id"] == first["item_id"]


def test_deltas_only_append_and_make_the_transcript() -> None:
    w = World()
    w.tell(started(), hypothesis("one"), hypothesis("one"), hypothesis("one two", " x"))
    w.tell(stopped(), final("one two three."))
    deltas = [m["delta"] for m in w.sent if m["type"] == f"{TRANSCRIPTION}.delta"]
    assert "".join(deltas) == w.sent[-1]["transcript"] == "one two three."
    assert all(deltas)


def test_a_final_that_contradicts_the_deltas_says_so() -> None:
    w = World()
    w.tell(started(), hypothesis("won"), stopped(), final("one.", is_revised=True))
    assert w.kinds()[-2:] == ["moss.warning", f"{TRANSCRIPTION}.completed"]
    assert w.sent[-2]["code"] == "text_revised"


def test_failed_turn_is_told_as_failed_with_its_gap() -> None:
    w = World()
    w.tell(
        started(), stopped(), Failed(1, RequestFailed("no")), Gap(8_000, 27_200, "decode_failed")
    )
    failed, gap = w.sent[-2:]
    assert failed["type"] == f"{TRANSCRIPTION}.failed"
    assert failed["error"]["code"] == "request_failed"
    assert (gap["start_samples"], gap["end_samples"]) == (12_000, 40_800)


def test_manual_turn_waits_for_the_commit_whatever_it_is_made_of() -> None:
    w = manual()
    w.hear(30)
    w.tell(started(1), stopped(1, is_split=True), started(2, 27_200), hypothesis("c", utterance=2))
    w.tell(final("a b"), hypothesis("c d", utterance=2))
    assert "input_audio_buffer.speech_started" not in w.kinds()
    assert "input_audio_buffer.committed" not in w.kinds()
    assert isinstance(w.say("input_audio_buffer.commit"), Commit)
    w.tell(stopped(2, 27_200), CommitDone(2, 30 * RATE))
    assert w.kinds()[-1] == "conversation.item.done"
    w.tell(final("c d e", 2))
    assert w.sent[-1]["transcript"] == "a b c d e"
    deltas = [m["delta"] for m in w.sent if m["type"] == f"{TRANSCRIPTION}.delta"]
    assert "".join(deltas) == "a b c d e"


def test_manual_commit_of_silence_is_an_empty_item() -> None:
    w = manual()
    w.hear(2)
    w.say("input_audio_buffer.commit")
    w.tell(CommitDone(None, 2 * RATE))
    assert w.kinds()[-1] == f"{TRANSCRIPTION}.completed"
    assert w.sent[-1]["transcript"] == ""


def test_commit_of_less_than_100_ms_is_refused_and_echoes_the_event_id() -> None:
    w = manual()
    w.hear(0.05)
    w.say("input_audio_buffer.commit", event_id="mine")
    error = w.sent[-1]["error"]
    assert error["code"] == "input_audio_buffer_commit_empty"
    assert error["event_id"] == "mine"
    w.hear(1)
    assert isinstance(w.say("input_audio_buffer.commit"), Commit)
    w.say("input_audio_buffer.commit")
    assert w.kinds()[-1] == "error"


def test_commit_after_a_turn_that_silence_ended_is_tolerated() -> None:
    w = World()
    w.hear(3)
    w.tell(started(), stopped(), final("hi."))
    count = len(w.sent)
    for _ in range(2):
        assert isinstance(w.say("input_audio_buffer.commit"), Commit)
    w.tell(CommitDone(None, 3 * RATE))
    assert len(w.sent) == count


def test_commit_in_the_middle_of_speech_keeps_the_item() -> None:
    w = World()
    w.hear(2)
    w.tell(started())
    w.say("input_audio_buffer.commit")
    w.tell(stopped(), CommitDone(1, 2 * RATE))
    assert w.kinds().count("input_audio_buffer.committed") == 1
    assert w.kinds().count("conversation.item.added") == 1


def test_cleared_speech_leaves_no_item() -> None:
    w = manual()
    w.hear(2)
    w.tell(started(1), stopped(1, is_split=True), started(2, 27_200))
    assert isinstance(w.say("input_audio_buffer.clear"), Clear)
    w.tell(Gap(27_200, 2 * RATE, "cleared"), final("gone"))
    assert w.sent[-1]["type"] == "moss.gap"
    assert w.sent[-1]["start_samples"] == 12_000
    w.say("input_audio_buffer.commit")
    assert w.sent[-1]["error"]["code"] == "input_audio_buffer_commit_empty"


def test_snapshots_and_acks_come_only_when_asked_for() -> None:
    for wanted in (False, True):
        w = World()
        w.say("session.update", session={"moss": {"snapshots": wanted, "acks": wanted}})
        w.hear(2)
        w.tell(started(), hypothesis("hello", " there"))
        acks = [m for t in (0.0, 0.1, 0.6, 1.2) for m in w.protocol.advance(t)]
        assert ("moss.hypothesis" in w.kinds()) is wanted
        assert len(acks) == wanted
        if wanted:
            snapshot = w.sent[-1]
            assert snapshot["committed_text"] + snapshot["partial_text"] == "hello there"
            assert [s["committed"] for s in snapshot["segments"]] == [True, False]
            assert acks[0]["received_samples"] == 48_000
            assert acks[0]["decoded_samples"] == 12_000
            assert acks[0]["lag_ms"] == 1_500


def test_ack_counts_silence_as_done() -> None:
    w = World(acks=True)
    w.hear(2)
    (ack,) = w.protocol.advance(0.0)
    assert ack["lag_ms"] == 0


def test_idle_timeout_commits_an_empty_item_once_for_each_silence() -> None:
    w = World()
    knobs = {"type": "server_vad", "idle_timeout_ms": 5000}
    w.say("session.update", session={"audio": {"input": {"turn_detection": knobs}}})
    seen = []
    for second in range(20):
        w.hear(second)
        seen += [m["type"] for m in w.protocol.advance(second)]
    assert seen.count("input_audio_buffer.timeout_triggered") == 1
    assert seen[-1] == f"{TRANSCRIPTION}.completed"


def test_finish_commits_what_is_open_and_ends() -> None:
    w = manual()
    w.hear(2)
    assert isinstance(w.say("moss.finish"), Finish)
    w.tell(started(), stopped(), final("bye."), Finished(2 * RATE))
    assert w.sent[-1]["type"] == "moss.finished"
    assert w.sent[-1]["received_samples"] == 48_000
    assert w.sent[-2]["transcript"] == "bye."


def test_warnings_and_relabels_have_their_own_messages() -> None:
    w = World()
    w.tell(started(), SessionWarning("refresh_failed", "m", 1), Relabel("S02", "S01"))
    w.tell(stopped(), final("x", warnings=(TranscriptWarning("loop_cut", "m"),)))
    warnings = [m for m in w.sent if m["type"] == "moss.warning"]
    assert [m["code"] for m in warnings] == ["refresh_failed", "loop_cut"]
    assert all("item_id" in m for m in warnings)
    assert next(m for m in w.sent if m["type"] == "moss.relabel")["replaced_by"] == "S01"


def test_option_without_effect_is_told_once() -> None:
    w = World()
    for _ in range(3):
        given = {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}}
        w.say("session.update", session=given)
    assert w.kinds().count("moss.warning") == 1
    assert w.kinds().count("session.updated") == 3


def test_append_gives_the_bytes() -> None:
    answer = World().say("input_audio_buffer.append", audio=base64.b64encode(b"ab").decode())
    assert answer == Append(b"ab")


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"type": "input_audio_buffer.append"}, "audio"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "audio"),
        ({"type": "session.update"}, "session"),
        ({"type": "response.create"}, "type"),
        ({"type": 7}, "type"),
        ({}, "type"),
    ],
)
def test_wrong_message_is_an_error_that_names_the_field(message: dict, param: str) -> None:
    w = World()
    answer = w.protocol.read(json.dumps(message | {"event_id": "e"}))
    assert answer["type"] == "error"
    assert answer["error"]["param"] == param
    assert answer["error"]["event_id"] == "e"
    assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "null"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage):
        World().protocol.read(text)


def test_two_names_become_one() -> None:
    world = World()
    assert world.say("moss.merge_speakers", speaker="S02", into="S01") == Merge("S02", "S01")
    for fields, param in (({"into": "S01"}, "speaker"), ({"speaker": "S02", "into": 1}, "into")):
        world.say("moss.merge_speakers", **fields)
        assert world.sent[-1]["error"]["param"] == param
