import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.transcript.guards import (
    MAX_LOOP_PERIOD,
    check_pace,
    check_times,
    coverage,
    loop_length,
    repeated_segments,
)
from moss_stream.types import Segment


@given(st.integers(1, MAX_LOOP_PERIOD), st.integers(0, 63), st.integers(0, 100))
def test_loop_is_cut_to_one_copy(period, part, before):
    start = list(range(1000, 1000 + before))
    unit = list(range(period))
    looping = start + unit * max(4, -(-24 // period)) + unit[: part % period]

    kept = looping[: len(looping) - loop_length(looping)]

    assert kept == start + unit


@given(st.integers(1, MAX_LOOP_PERIOD), st.integers(1, 3))
def test_fewer_than_four_repetitions_are_no_loop(period, repeats):
    assert loop_length([999, *list(range(period)) * repeats]) == 0


@pytest.mark.parametrize("words", [[7] * 4, [7, 8] * 4, [7, 8, 9] * 7, [1, 2, 3, 4, 5] * 4, []])
def test_what_people_say_repeatedly_is_no_loop(words):
    assert loop_length([5, 6, *words]) == 0


def test_repetition_that_ended_is_no_loop():
    assert loop_length([*[1, 2] * 40, 3]) == 0


def test_loop_is_found_in_tuples_and_at_the_start():
    assert loop_length((4,) * 24) == 23


def test_loop_longer_than_longest_period_is_not_looked_for():
    assert loop_length(list(range(MAX_LOOP_PERIOD + 1)) * 5) == 0


def test_times_within_the_audio_stay():
    segments = (Segment(0, 1, "S01", "a"), Segment(0.5, 5, "S02", "b"))

    assert check_times(segments, 5.0) == (segments, ())


def test_end_beyond_audio_is_moved_and_reported():
    segments, warnings = check_times([Segment(3, 9, "S01", "a")], 5.0)

    assert segments == (Segment(3, 5, "S01", "a"),)
    assert [(warning.code, warning.at_s) for warning in warnings] == [("time_beyond_audio", 3)]
    assert "9.00 s" in warnings[0].message
    assert "5.00 s" in warnings[0].message


def test_start_beyond_audio_keeps_words_at_the_end():
    segments, warnings = check_times([Segment(7, 9, "S01", "a")], 5.0)

    assert segments == (Segment(5, 5, "S01", "a"),)
    assert [(warning.code, warning.at_s) for warning in warnings] == [("time_beyond_audio", 5)]


def test_end_beyond_audio_by_rounding_is_moved_without_a_report():
    assert check_times([Segment(3, 5.05, "S01", "a")], 5.0) == ((Segment(3, 5, "S01", "a"),), ())


def test_four_segments_with_the_same_words_are_cut_to_one():
    loop = [
        Segment(at, at + 1, f"S0{at % 2}", text) for at, text in enumerate(["Go on.", "go on"] * 2)
    ]
    first, last = Segment(0, 0, "S01", "well"), Segment(8, 9, "S01", "end")

    segments, warnings = repeated_segments([first, *loop, last])

    assert segments == (first, loop[0], last)
    assert [(warning.code, warning.at_s) for warning in warnings] == [("loop_cut", 1)]


def test_three_segments_with_the_same_words_stay():
    segments = [Segment(at, at + 1, "S01", "yes") for at in range(3)]

    assert repeated_segments(segments) == (tuple(segments), ())


def test_segments_without_letters_are_compared_as_they_are():
    segments = [Segment(0, 1, "S01", text) for text in "…?!."]

    assert repeated_segments(segments) == (tuple(segments), ())


def test_coverage_reaches_the_end_when_silence_follows():
    found = coverage([Segment(0, 5, "S01", "a")], [(0, 5.5), (9, 10)], 60.0)

    assert (found.end_s, found.truncated, found.missing_s) == (60.0, False, 1.5)


def test_coverage_stops_at_last_segment_when_speech_follows():
    segments = [Segment(0, 5, "S01", "a"), Segment(2, 3, "S02", "b")]

    found = coverage(segments, [(0, 6), (20, 22), (59, 70)], 60.0)

    assert (found.end_s, found.truncated, found.missing_s) == (5.0, True, 4.0)


def test_coverage_of_nothing():
    assert not coverage([], [], 10.0).truncated
    assert coverage([], [(1, 9)], 10.0).end_s == 0.0


FAST = "thirty letters are in this line of it"
"""30 letters, which nobody says in less than a second."""


def paced(*segments: tuple[float, float, str, str]) -> list[float | None]:
    """Where each warning is."""
    return [warning.at_s for warning in check_pace(Segment(*segment) for segment in segments)]


def test_speech_is_not_too_fast():
    assert paced((0, 1, "S01", FAST), (1, 2, "S01", FAST), (2, 2.5, "S02", FAST)) == []


def test_speakers_may_talk_at_the_same_time():
    said = FAST * 10
    assert paced((0, 10, "S01", said), (0, 10, "S02", said), (0, 10, "S03", said)) == []


def test_words_that_stand_still_are_too_fast():
    still = [(4.0, 4.0, "S01", FAST)] * 20
    assert paced((0, 4, "S01", FAST), *still, (4, 9, "S01", FAST)) == [4.0]


def test_words_that_stand_still_are_too_fast_though_speakers_take_turns():
    still = [(4.0, 4.0, f"S0{1 + turn % 2}", "no, no") for turn in range(60)]
    assert paced(*still) == [4.0, 4.0]


def test_too_fast_is_said_again_after_a_rest():
    burst = [(2.0, 2.0, "S01", FAST)] * 4
    later = [(60.0, 60.0, "S01", FAST)] * 4
    assert paced(*burst, *later) == [2.0, 60.0]


def test_short_words_with_a_wrong_end_are_not_too_fast():
    assert paced((1, 1, "S01", "yes"), (1, 1, "S02", "no, I do not think so")) == []
