from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.captions.clock import StreamClock

FRAME_S = 0.1


def speak(clock: StreamClock, first_s: float, last_s: float, delay_s: float) -> None:
    """Audio of that stretch of the stream comes in real time, so much later."""
    for number in range(round(first_s / FRAME_S), round(last_s / FRAME_S)):
        received_s = (number + 1) * FRAME_S
        clock.note(received_s, received_s + delay_s)


def test_stream_begins_where_its_first_audio_was_heard() -> None:
    clock = StreamClock()
    speak(clock, 0, 5, 20.0)
    assert clock.room_s(0) == pytest.approx(20.0)
    assert clock.room_s(3) == pytest.approx(23.0)


def test_microphone_that_was_off_comes_back_at_the_right_time() -> None:
    clock = StreamClock()
    speak(clock, 0, 5, 20.0)
    speak(clock, 5, 9, 50.0)
    assert clock.room_s(4) == pytest.approx(24.0)
    assert clock.room_s(6) == pytest.approx(56.0)


def test_audio_held_back_by_the_network_keeps_its_time() -> None:
    clock = StreamClock()
    speak(clock, 0, 5, 20.0)
    for number in range(50, 150):  # ten seconds that come at once, ten seconds late
        clock.note((number + 1) * FRAME_S, 35.0 + number / 1000)
    speak(clock, 15, 20, 20.0)
    assert clock.room_s(6) == pytest.approx(26.0)
    assert clock.room_s(16) == pytest.approx(36.0)


def test_recording_sent_faster_than_it_was_spoken_runs_at_its_own_speed() -> None:
    clock = StreamClock()
    for number in range(100):
        clock.note((number + 1) * FRAME_S, 7.0 + number / 1000)
    assert clock.room_s(0) == pytest.approx(6.9)
    assert clock.room_s(9) == pytest.approx(15.9)


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 30)), min_size=1, max_size=100),
    st.lists(st.floats(0, 300), min_size=2, max_size=10),
)
def test_time_never_runs_backwards(notes, positions: list[float]) -> None:
    clock = StreamClock()
    received_s = now_s = 0.0
    for audio_s, waited_s in notes:
        received_s, now_s = received_s + audio_s, now_s + waited_s
        clock.note(received_s, now_s)
    times = [clock.room_s(position) for position in sorted(positions)]
    assert times == sorted(times)
    assert times[0] >= 0
