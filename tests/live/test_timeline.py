import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import StateError
from moss_stream.live.timeline import WINDOW_SAMPLES, Span, Timeline

spans = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(1, 10**6)).map(lambda p: Span(p[0], p[0] + p[1])),
    min_size=1,
    max_size=8,
)


def test_timeline_maps_model_time_to_where_it_was_said() -> None:
    timeline = Timeline.of([Span(16000, 32000), Span(160000, 192000)])
    assert timeline.duration_s == 3.0
    assert timeline.session_s(0.5) == 1.5
    assert timeline.session_s(1.5) == 10.5
    assert timeline.session_s(1.0) == 10.0
    assert timeline.session_s(99) == 12.0
    assert timeline.session_s(-1) == 1.0


def test_timeline_has_no_model_time_between_spans() -> None:
    timeline = Timeline.of([Span(16000, 32000), Span(160000, 192000)])
    assert timeline.model_s(10.5) == 1.5
    assert timeline.model_s(5.0) is None


def test_empty_timeline_has_no_times() -> None:
    with pytest.raises(StateError):
        Timeline().session_s(0)


def test_span_refuses_to_be_empty() -> None:
    with pytest.raises(StateError):
        Span(5, 5)


@given(spans)
def test_windows_tile_the_model_audio_and_only_the_last_is_open(spans: list[Span]) -> None:
    timeline = Timeline.of(spans)
    windows = timeline.windows()
    assert windows[0].start_at == 0
    assert windows[-1].end_at == timeline.num_samples == sum(map(len, spans))
    for window, following in zip(windows, windows[1:], strict=False):
        assert window.is_closed
        assert window.end_at == following.start_at
    assert all(window.start_at % WINDOW_SAMPLES == 0 for window in windows)


@given(spans, spans)
def test_closed_windows_stay_when_the_timeline_grows(first: list[Span], more: list[Span]) -> None:
    closed = [window for window in Timeline.of(first).windows() if window.is_closed]
    assert list(Timeline.of([*first, *more]).windows()[: len(closed)]) == closed


@given(spans, st.floats(0, 1))
def test_times_come_back_from_session_time(spans: list[Span], fraction: float) -> None:
    ordered, at = [], 0
    for span in spans:
        ordered.append(Span(at + span.start_at, at + span.start_at + len(span)))
        at = ordered[-1].end_at + 1
    timeline = Timeline.of(ordered)
    model_s = fraction * timeline.duration_s
    back = timeline.model_s(timeline.session_s(model_s))
    assert back == pytest.approx(model_s, abs=1e-4)
