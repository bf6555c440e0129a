from __future__ import annotations

import json

import pytest
from support.captions import said

from moss_stream.captions.export import MEDIA_TYPES, check_format, prepare_export
from moss_stream.captions.room import Room
from moss_stream.errors import InvalidMessage


@pytest.fixture
def room() -> Room:
    room = Room()
    room.settle(said("b-1", ("S02", "Second <b>."), at_s=2))
    room.settle(said("a-1", ("Ana", "First."), at_s=0.5, shared=False))
    room.hear(said("a-2", ("Ana", "Not sure"), at_s=4, shared=False))
    room.rename("S02", "Bea & Co")
    return room


def test_text_has_names_and_is_sorted(room: Room) -> None:
    assert prepare_export(room, {}, "txt")() == (
        "Ana [0.50-1.50] First.\nBea & Co [2.00-3.00] Second <b>.\n"
    )


def test_subtitles_have_names(room: Room) -> None:
    assert (
        "00:00:02,000 --> 00:00:03,000\nBea & Co: Second <b>.\n"
        in prepare_export(room, {}, "srt")()
    )
    assert "<v Bea &amp; Co>Second &lt;b&gt;." in prepare_export(room, {}, "vtt")()


def test_json_has_everything(room: Room) -> None:
    whole = json.loads(prepare_export(room, {"room": "r"}, "json")())
    assert whole["room"] == "r"
    assert whole["revision"] == 3
    assert whole["names"] == {"S02": "Bea & Co"}
    assert [(line["speaker"], line["name"]) for line in whole["segments"]] == [
        ("Ana", "Ana"),
        ("S02", "Bea & Co"),
    ]


def test_what_is_said_while_it_is_written_is_not_in_it(room: Room) -> None:
    write = prepare_export(room, {}, "json")
    before = room.revision
    room.settle(said("a-2", ("Ana", "Later."), at_s=4, shared=False))
    room.relabel("S02", "Ana")
    whole = json.loads(write())
    assert (whole["revision"], whole["names"]) == (before, {"S02": "Bea & Co"})
    assert [line["speaker"] for line in whole["segments"]] == ["Ana", "S02"]


@pytest.mark.parametrize("format", MEDIA_TYPES)
def test_empty_room_is_an_empty_file(format: str) -> None:
    assert isinstance(prepare_export(Room(), {}, check_format(format))(), str)


def test_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="txt, srt, vtt, json"):
        check_format("pdf")
