from moss_stream.live.render import session_segments
from moss_stream.live.timeline import Span, Timeline
from moss_stream.types import Segment

# An anchor said later than another, then the utterance from 100 s to 103 s, at model second 4.
TIMELINE = Timeline.of([Span(800_000, 832_000), Span(160_000, 192_000), Span(1_600_000, 1_648_000)])


def name(label: str) -> str:
    return f"<{label}>"


def test_segments_get_session_times_and_names() -> None:
    segments, repairs = session_segments("[4.50][S02]word[6.00]", TIMELINE, name)
    assert segments == (Segment(100.5, 102.0, "<S02>", "word"),)
    assert repairs == ()


def test_segments_stay_inside_their_utterance() -> None:
    segments, warnings = session_segments("[0.50][S01]word[99.00]", TIMELINE, name)
    assert segments == (Segment(100.0, 103.0, "<S01>", "word"),)
    assert [warning.code for warning in warnings] == ["time_past_audio"]


def test_repairs_are_told_with_session_times() -> None:
    _, repairs = session_segments("[4.50]word[6.00]", TIMELINE, name)
    assert [(repair.code, repair.at_s) for repair in repairs] == [("speaker_missing", 100.5)]
