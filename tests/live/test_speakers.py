import numpy as np
import pytest

from moss_stream.errors import InvalidMessage, NotFound
from moss_stream.live.speakers import SpeakerBook
from moss_stream.types import Segment


def read(start: int, end: int) -> np.ndarray:
    return np.arange(start, end, dtype=np.float32)


def test_labels_are_names_at_first() -> None:
    book = SpeakerBook(4.0, 4)
    assert [book.name(label) for label in ("S01", "S02", "S01", "")] == ["S01", "S02", "S01", ""]


def test_peek_learns_no_speaker() -> None:
    book = SpeakerBook(4.0, 4)
    assert book.peeker()("S02") == "S02"
    assert book.known() == frozenset()


def test_peek_gives_two_new_voices_two_names() -> None:
    book = SpeakerBook(4.0, 4)
    for label in ("S01", "S02", "S03"):
        book.name(label)
    book.restart()
    peek = book.peeker()
    assert [peek(label) for label in ("S01", "S02", "S01", "")] == ["S04", "S05", "S04", ""]
    assert [book.name(label) for label in ("S01", "S02")] == ["S04", "S05"]


def test_names_hold_behind_snippets_when_labels_change() -> None:
    book = SpeakerBook(4.0, 4)
    for label in ("S01", "S02", "S03"):
        book.name(label)
    book.learn([Segment(0, 2, "S01", "a"), Segment(5, 8, "S03", "c")], read)
    carried = book.restart()
    assert [(label, snippet.text) for label, snippet in carried] == [("S01", "a"), ("S02", "c")]
    assert book.name("S02") == "S03"
    assert book.name("S03") == "S04"  # S02 is forgotten and its name not given again


def test_snippet_is_the_longest_clean_segment() -> None:
    book = SpeakerBook(4.0, 4)
    segments = [
        Segment(0, 0.5, "S01", "short"),
        Segment(1, 3, "S01", "good"),
        Segment(10, 20, "S01", "long"),
        Segment(30, 33, "S01", "mixed"),
        Segment(32, 33.5, "S02", "too"),
        Segment(40, 44, "S02", ""),
    ]
    book.learn(segments, read)
    ((label, snippet),) = book.restart()
    assert (label, snippet.text) == ("S01", "good")
    assert snippet.samples[0] == 16000
    assert len(snippet.samples) == len(snippet.span) == 32000


def heard(book: SpeakerBook, *speakers: str) -> list[str]:
    """Let speakers be heard one after the other; who is learned to know."""
    return [
        name
        for start, speaker in enumerate(speakers)
        for name in book.learn([Segment(start * 10, start * 10 + 2, speaker, "x")], read)
    ]


def test_speakers_silent_for_longest_are_not_carried_over() -> None:
    book = SpeakerBook(4.0, 2)
    heard(book, "S01", "S02", "S01", "S03")
    assert [snippet.span.start_at for _, snippet in book.restart()] == [0, 480000]
    assert "S02" in book.snippets  # to be known when it comes back


def test_snippets_have_a_limit_and_speakers_are_new_once() -> None:
    book = SpeakerBook(4.0, 2)
    speakers = ["S01", "S02", "S03", "S04", "S05"]
    assert heard(book, *speakers) == speakers
    assert heard(book, *speakers) == []
    assert list(book.snippets)[-4:] == speakers[1:]
    assert len(book.snippets) <= 5


def test_speaker_that_was_heard_under_another_name_was_heard() -> None:
    book = SpeakerBook(4.0, 2)
    for label in ("S01", "S02", "S03"):
        book.name(label)
    heard(book, "S01", "S02", "S03")
    book.merge("S03", "S01")
    assert list(book.snippets) == ["S02", "S01"]
    book.merge("S02", "S01")
    assert list(book.snippets) == ["S01"]


def test_merged_speakers_are_one_from_then_on() -> None:
    book = SpeakerBook(4.0, 4)
    book.name("S01"), book.name("S02")
    book.learn([Segment(0, 2, "S02", "b")], read)
    book.merge("S02", "S01")
    assert book.name("S02") == "S01"
    assert [label for label, _ in book.restart()] == ["S01"]
    assert book.name("S02") == "S03"


def test_only_two_known_speakers_can_be_merged() -> None:
    book = SpeakerBook(4.0, 4)
    book.name("S01"), book.name("S02")
    with pytest.raises(InvalidMessage, match="itself"):
        book.merge("S01", "S01")
    for pair, field in ((("S03", "S01"), "speaker"), (("S01", "S03"), "into")):
        with pytest.raises(NotFound, match="S03") as caught:
            book.merge(*pair)
        assert caught.value.field == field
    book.merge("S02", "S01")
    with pytest.raises(NotFound):
        book.merge("S02", "S01")
