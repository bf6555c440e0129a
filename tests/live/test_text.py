import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.live import CODEC

from moss_stream.live.text import MarkupClock, is_cut, plain_text, split_segments
from moss_stream.types import Segment

MARKUP = "[0.48][S01]Hello wörld, [laughs] 你好。[1.98][1:02.25][S02]I'm fine [5] times.[73.02]"


def test_plain_text_has_the_words_alone() -> None:
    assert plain_text(MARKUP) == "Hello wörld, [laughs] 你好。 I'm fine times."


def test_plain_text_of_growing_output_only_grows_and_shows_no_half_tag() -> None:
    ids = CODEC.encode(MARKUP)
    shown = ""
    for length in range(len(ids) + 1):
        text = plain_text(CODEC.decode(ids[:length]))
        assert text.startswith(shown)
        assert "\ufffd" not in text
        assert "[" not in text.replace("[l", "")
        shown = text


@given(st.text("[]S0123.: aé你", max_size=30))
def test_plain_text_only_grows_whatever_comes(markup: str) -> None:
    shown = ""
    for length in range(len(markup) + 1):
        assert (text := plain_text(markup[:length])).startswith(shown)
        shown = text


@pytest.mark.parametrize(
    ("markup", "rest", "cut"),
    [
        ("[1.0][S0", "1]", True),
        ("[1.", "0]", True),
        ("wor", "ld", True),
        ("wor\ufffd", "", True),
        ("word", " next", False),
        ("word", "[2.0]", False),
        ("你", "好", False),
        ("", "word", False),
        ("word.", "", False),
    ],
)
def test_is_cut_finds_halves(markup: str, rest: str, cut: bool) -> None:
    assert is_cut(markup, rest) is cut


def test_clock_places_words_between_their_tags() -> None:
    markup = "[1.00][S01]abcd[3.00][10.00]ef"
    clock = MarkupClock(markup, 0.0, 12.0)
    assert clock.time_s(len("[1.00][S01]")) == 1.0
    assert clock.time_s(len("[1.00][S01]ab")) == 2.0
    assert clock.time_s(len("[1.00][S01]abcd")) == 3.0
    assert clock.time_s(len("[1.00][S01]abcd[3.00][10.00]e")) == 11.0
    assert clock.time_s(len(markup)) == 12.0


@given(st.text("[]S0123.: a", max_size=40), st.floats(0, 10), st.floats(0, 20))
def test_clock_never_goes_back_nor_past_the_audio(text: str, start_s: float, edge_s: float) -> None:
    clock = MarkupClock(text, start_s, edge_s)
    times = [clock.time_s(position) for position in range(len(text) + 1)]
    assert times == sorted(times)
    assert times[-1] <= edge_s


def test_split_segments_cuts_the_one_in_the_middle() -> None:
    first, second = Segment(0, 1, "S01", "one two"), Segment(1, 3, "S02", "three four")
    before, after = split_segments([first, second], len("one two three"))
    assert before == (first, Segment(1, 2, "S02", "three"))
    assert after == (Segment(2, 3, "S02", "four"),)
