from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.captions import Board, said

from moss_stream.captions.room import MAX_REPLAY, Change, Room, check_participant
from moss_stream.errors import InvalidMessage, NotFound


def shown(room: Room) -> Board:
    """What a viewer that comes now sees."""
    board = Board()
    snapshot = {
        "type": "room.snapshot",
        "revision": room.revision,
        "names": room.names,
        "entries": room.entries(),
        "partials": room.partials(),
    }
    board.take(json.loads(json.dumps(snapshot)))
    return board


def test_partial_gives_way_to_its_entry() -> None:
    room = Room()
    heard = room.hear(said("a-1", ("S01", "Hel")))
    settled = room.settle(said("a-1", ("S01", "Hello.")))
    assert heard.revision is None
    assert settled.revision == room.revision == 1
    assert room.partials() == []
    assert [entry["segments"][0]["text"] for entry in room.entries()] == ["Hello."]


def test_partial_says_which_words_stay() -> None:
    entry = replace(said("a-1", ("S01", "Hello"), ("S01", "wor")), num_committed=1)
    body = Room().hear(entry).body
    assert [segment["committed"] for segment in body["segments"]] == [True, False]


def test_empty_partial_is_taken_away() -> None:
    room = Room()
    room.hear(said("a-1", ("S01", "Hel")))
    assert room.hear(said("a-1")).body["segments"] == []
    assert room.partials() == []


def test_entries_are_told_by_time_and_not_by_arrival() -> None:
    room = Room()
    room.settle(said("b-1", ("S01", "second"), at_s=5))
    room.settle(said("a-1", ("S01", "first"), at_s=1))
    assert [entry["entry"] for entry in room.entries()] == ["a-1", "b-1"]


def test_relabel_reaches_everything_said_and_being_said() -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one"), ("S02", "two")))
    room.hear(said("a-2", ("S02", "three")))
    (change,) = room.relabel("S02", "S01")
    assert change.body == {"speaker": "S02", "replaced_by": "S01"}
    speakers = [s["speaker"] for body in room.entries() + room.partials() for s in body["segments"]]
    assert speakers == ["S01", "S01", "S01"]
    assert room.relabel("S02", "S01") == []


def test_somebody_knows_that_two_speakers_are_one() -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one"), ("S02", "two")))
    assert [change.body for change in room.merge("S02", "S01")] == [
        {"speaker": "S02", "replaced_by": "S01"}
    ]
    for speaker, same_as, error, field in (
        ("S02", "S01", InvalidMessage, "same_as"),
        ("S01", "S09", NotFound, "same_as"),
        ("S09", "S01", NotFound, "speaker"),
    ):
        with pytest.raises(error) as caught:
            room.merge(speaker, same_as)
        assert caught.value.field == field
    assert room.revision == 2


def test_name_outlives_a_relabel() -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one"), ("S02", "two")))
    room.rename("S02", "Ana")
    room.relabel("S02", "S01")
    assert room.names == {"S01": "Ana"}
    assert room.rename("S02", "Bea").body == {"speaker": "S01", "name": "Bea"}


def test_name_can_be_taken_away() -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one")))
    room.rename("S01", " Ana ")
    assert room.names == {"S01": "Ana"}
    room.rename("S01", None)
    assert room.names == {}


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\u202eevil", "x" * 65, "\x00"])
def test_name_that_cannot_be_shown_is_refused(name: str) -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one")))
    with pytest.raises(InvalidMessage):
        room.rename("S01", name)
    with pytest.raises(InvalidMessage):
        check_participant(name)
    assert room.revision == 1


def test_unknown_speaker_gets_no_name() -> None:
    with pytest.raises(NotFound):
        Room().rename("S01", "Ana")


def test_participant_cannot_pass_for_an_unknown_voice() -> None:
    with pytest.raises(InvalidMessage):
        check_participant("S01")
    assert check_participant(" Ana María ") == "Ana María"


def test_labels_are_not_given_out_twice_even_after_a_restart() -> None:
    room = Room()
    labels = [room.new_label(), room.new_label()]
    change = room.settle(said("a-1", (labels[1], "hello")))
    assert labels == ["S01", "S02"]
    assert room.next_label(0) == "S03"
    assert Room([change]).new_label() == "S03"


def test_changes_that_are_not_kept_are_not_told() -> None:
    room = Room()
    room.settle(said("a-1", ("S01", "one")))
    for number in range(MAX_REPLAY):
        room.rename("S01", f"Ana {number}")
    assert room.since(0) is None
    assert room.since(room.revision + 1) is None
    assert room.since(room.revision) == []
    assert [change.revision for change in room.since(room.revision - 1)] == [room.revision]


STEP = st.tuples(
    st.sampled_from(["hear", "settle", "relabel", "rename", "join", "away"]),
    st.integers(0, 5),
    st.integers(0, 5),
)


@given(st.lists(STEP, max_size=40))
def test_everybody_sees_the_same_room(steps: list[tuple[str, int, int]]) -> None:
    room = Room()
    changes: list[Change] = []
    boards = [shown(room)]
    away: list[Board] = []
    num_said = 0
    for kind, first, second in steps:
        new: list[Change] = []
        speakers = [f"S{first:02}", f"S{second:02}"]
        match kind:
            case "hear":
                new = [room.hear(said(f"a-{num_said}", (speakers[0], "wor"), at_s=second))]
            case "settle":
                new = [room.settle(said(f"a-{num_said}", (speakers[0], "word"), at_s=second))]
                num_said += 1
            case "relabel":
                new = room.relabel(*speakers)
            case "rename":
                try:
                    new = [room.rename(speakers[0], None if second == 0 else f"Name {second}")]
                except NotFound:
                    assert all(
                        segment["speaker"] != speakers[0]
                        for entry in room.entries()
                        for segment in entry["segments"]
                    )
            case "join":
                boards.append(shown(room))
            case "away" if len(boards) > 1:
                away.append(boards.pop())
        changes += [change for change in new if change.revision is not None]
        for board in boards:
            for change in new:
                board.take(json.loads(json.dumps(change.message())))
    for board in away:
        board.take({"type": "room.resumed", "partials": room.partials()})
        for change in room.since(board.revision):
            board.take(json.loads(json.dumps(change.message())))
    now = shown(room)
    again = shown(Room(changes))
    for board in (*boards, *away):
        assert (board.entries, board.partials, board.names, board.revision) == (
            now.entries,
            now.partials,
            now.names,
            now.revision,
        )
    assert (again.entries, again.names, again.revision) == (now.entries, now.names, now.revision)
