import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.audio.buffer import SampleBuffer
from moss_stream.errors import QueueFull, StateError


def ramp(start, end):
    return np.arange(start, end, dtype=np.float32)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=60))
def test_buffer_reads_back_any_stretch_it_holds(steps):
    buffer = SampleBuffer(100)
    end = start = 0
    for added, dropped in steps:
        if end + added - start > 100:
            with pytest.raises(QueueFull):
                buffer.append(ramp(end, end + added))
        else:
            buffer.append(ramp(end, end + added))
            end += added
        start = min(end, start + dropped)
        buffer.drop_before(start)

        assert (buffer.start_at, buffer.end_at, len(buffer)) == (start, end, end - start)
        assert np.array_equal(buffer.read(start, end), ramp(start, end))
        middle = (start + end) // 2
        assert np.array_equal(buffer.read(middle, end), ramp(middle, end))


def test_buffer_copies_what_goes_in_and_out():
    buffer = SampleBuffer(10)
    block = ramp(0, 4)
    buffer.append(block)
    block[:] = 9
    buffer.read(0, 4)[:] = 9

    assert buffer.read(0, 4).tolist() == [0, 1, 2, 3]


def test_buffer_refuses_what_does_not_fit_naming_limit_and_keeps_the_rest():
    buffer = SampleBuffer(10)
    buffer.append(ramp(0, 8))

    with pytest.raises(QueueFull, match="10 allowed"):
        buffer.append(ramp(8, 11))

    assert buffer.end_at == 8


@pytest.mark.parametrize(("start", "end"), [(1, 5), (3, 9), (6, 5), (-1, 2)])
def test_buffer_refuses_stretch_it_does_not_hold(start, end):
    buffer = SampleBuffer(10)
    buffer.append(ramp(0, 8))
    buffer.drop_before(2)

    with pytest.raises(StateError):
        buffer.read(start, end)


def test_buffer_ignores_drop_of_what_is_gone_and_refuses_future():
    buffer = SampleBuffer(10)
    buffer.append(ramp(0, 8))
    buffer.drop_before(5)
    buffer.drop_before(2)

    assert buffer.start_at == 5
    with pytest.raises(StateError):
        buffer.drop_before(9)


def test_buffer_memory_stays_bounded_over_a_long_stream():
    buffer = SampleBuffer(2000)
    for at in range(0, 1_000_000, 500):
        buffer.append(ramp(at, at + 500))
        buffer.drop_before(max(0, at - 200))

    assert buffer._store.nbytes <= 2 * 4 * 2000
