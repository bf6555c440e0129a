from __future__ import annotations

from moss_stream.captions.publisher import Publisher
from moss_stream.captions.room import Change, Room
from moss_stream.errors import RequestFailed
from moss_stream.live.events import Failed, Final, Gap, Hypothesis, Relabel, SpeechStarted
from moss_stream.types import Segment, Usage

Words = tuple[str, str]


def segments(*lines: Words) -> tuple[Segment, ...]:
    return tuple(Segment(i, i + 1, speaker, text) for i, (speaker, text) in enumerate(lines))


def hypothesis(utterance_id: int, sure: list[Words], open_: list[Words]) -> Hypothesis:
    return Hypothesis(utterance_id, 1, "", segments(*sure), "", segments(*open_), 0, 0.0)


def final(utterance_id: int, *lines: Words) -> Final:
    return Final(utterance_id, segments(*lines), "", 0, 16_000, False, (), Usage())


def speakers(change: Change) -> list[str]:
    return [segment["speaker"] for segment in change.body["segments"]]


def microphone(room: Room, *, shared: bool = False, prefix: str = "a") -> Publisher:
    publisher = Publisher(room, "Ana", shared, prefix)
    publisher.clock.note(1.0, 11.0)
    return publisher


def test_own_microphone_is_its_participant_whatever_the_labels() -> None:
    room = Room()
    publisher = microphone(room)
    publisher.tell(SpeechStarted(1, 0, 0))
    (partial,) = publisher.tell(hypothesis(1, [("S01", "Hel")], [("S02", "lo")]))
    (entry,) = publisher.tell(final(1, ("S01", "Hello"), ("S02", "there.")))
    assert speakers(partial) == speakers(entry) == ["Ana", "Ana"]
    assert publisher.tell(Relabel("S02", "S01")) == []
    assert entry.body["start"] == 10.0
    assert entry.body["complete"]


def test_voices_of_two_shared_microphones_are_never_the_same_label() -> None:
    room = Room()
    first, second = (microphone(room, shared=True, prefix=prefix) for prefix in "ab")
    (one,) = first.tell(final(1, ("S01", "one"), ("S02", "two")))
    (other,) = second.tell(final(1, ("S01", "three")))
    (again,) = first.tell(final(2, ("S02", "four")))
    assert speakers(one) == ["S01", "S02"]
    assert speakers(other) == ["S03"]
    assert speakers(again) == ["S02"]


def test_partial_gives_out_no_labels() -> None:
    room = Room()
    publisher = microphone(room, shared=True)
    (partial,) = publisher.tell(hypothesis(1, [], [("S01", "a"), ("S02", "b"), ("S03", "c")]))
    assert speakers(partial) == ["S01", "S02", "S03"]
    (entry,) = publisher.tell(final(1, ("S01", "a b c")))
    assert speakers(entry) == ["S01"]
    assert room.next_label(0) == "S02"


def test_relabel_of_the_session_is_one_of_the_room() -> None:
    room = Room()
    microphone(room, shared=True, prefix="z").tell(final(1, ("S01", "other room corner")))
    publisher = microphone(room, shared=True)
    publisher.tell(final(1, ("S01", "one"), ("S02", "two")))
    (change,) = publisher.tell(Relabel("S02", "S01"))
    assert change.body == {"speaker": "S03", "replaced_by": "S02"}
    assert publisher.tell(Relabel("S07", "S01")) == []


def test_relabel_to_a_label_nobody_had_keeps_the_voice() -> None:
    room = Room()
    publisher = microphone(room, shared=True)
    publisher.tell(final(1, ("S02", "one")))
    assert publisher.tell(Relabel("S02", "S01")) == []
    (entry,) = publisher.tell(final(2, ("S01", "two")))
    assert speakers(entry) == ["S01"]


def test_utterance_without_words_disappears() -> None:
    room = Room()
    publisher = microphone(room)
    publisher.tell(SpeechStarted(1, 0, 0))
    publisher.tell(hypothesis(1, [], [("S01", "Uh")]))
    (change,) = publisher.tell(final(1))
    assert change.revision is None
    assert room.partials() == room.entries() == []
    assert publisher.tell(hypothesis(2, [], [])) == publisher.tell(final(2)) == []


def test_decode_that_failed_leaves_what_was_shown_and_says_so() -> None:
    room = Room()
    publisher = microphone(room)
    publisher.tell(SpeechStarted(1, 0, 0))
    publisher.tell(hypothesis(1, [("S01", "Hello")], [("S01", "wor")]))
    (entry,) = publisher.tell(Failed(1, RequestFailed("no")))
    assert not entry.body["complete"]
    assert [segment["text"] for segment in entry.body["segments"]] == ["Hello", "wor"]
    assert publisher.leave() == []


def test_client_that_is_gone_leaves_what_was_shown() -> None:
    room = Room()
    publisher = microphone(room)
    for utterance_id, text in ((1, "first"), (2, "second"), (3, "third")):
        publisher.tell(SpeechStarted(utterance_id, 0, 0))
        publisher.tell(hypothesis(utterance_id, [], [("S01", text)]))
    publisher.tell(final(1, ("S01", "first.")))
    changes = publisher.leave()
    assert [change.body["complete"] for change in changes] == [False, False]
    assert room.partials() == []
    assert len(room.entries()) == 3


def test_audio_taken_back_takes_its_text_back() -> None:
    room = Room()
    publisher = microphone(room)
    publisher.tell(SpeechStarted(1, 0, 0))
    publisher.tell(hypothesis(1, [], [("S01", "ended")]))
    publisher.tell(SpeechStarted(2, 32_000, 32_000))
    publisher.tell(hypothesis(2, [], [("S01", "growing")]))
    publisher.tell(Gap(32_000, 40_000, "cleared"))
    assert [partial["entry"] for partial in room.partials()] == ["a-1"]
    publisher.tell(final(1, ("S01", "ended.")))
    assert publisher.leave() == []
