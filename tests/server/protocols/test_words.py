from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.server.protocols.words import estimated_words
from moss_stream.types import Segment


def test_words_share_the_time_of_their_segment_by_length() -> None:
    words = estimated_words([Segment(1.0, 2.0, "S01", "Hi, there")])

    assert [(w.text, w.start_s, w.end_s, w.speaker) for w in words] == [
        ("Hi,", 1.0, 1.375, "S01"),
        ("there", 1.375, 2.0, "S01"),
    ]


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Hello,", ["hello"]),
        ("“Don't” — he", ["don't", "—", "he"]),
        ("16:30 o'clock!", ["16:30", "o'clock"]),
        ("你好，世界。", ["你", "好", "世", "界"]),
        ("iPhone 很好", ["iphone", "很", "好"]),
        ("", []),
    ],
)
def test_words_are_bare_without_the_punctuation_around_them(text: str, bare: list[str]) -> None:
    words = estimated_words([Segment(0.0, 1.0, "S01", text)])

    assert [word.bare for word in words] == bare
    assert "".join(word.text for word in words) == text.replace(" ", "")


def test_words_of_a_segment_without_duration_are_all_at_its_start() -> None:
    words = estimated_words([Segment(3.0, 3.0, "S01", "two words")])

    assert {(word.start_s, word.end_s) for word in words} == {(3.0, 3.0)}


@given(
    st.text(),
    st.floats(min_value=0, max_value=1e5),
    st.floats(min_value=0, max_value=60),
)
def test_words_follow_each_other_within_their_segment(
    text: str, start_s: float, duration_s: float
) -> None:
    words = estimated_words([Segment(start_s, start_s + duration_s, "S01", text)])
    times = [time_s for word in words for time_s in (word.start_s, word.end_s)]

    assert times == sorted(times)
    if words:
        assert times[0] == round(start_s, 3)
        assert times[-1] == pytest.approx(start_s + duration_s, abs=1e-3)
        assert all(word.bare for word in words)
