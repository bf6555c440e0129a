from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.audio.speech import speech_regions
from moss_stream.errors import ConfigError

FRAME_S = 0.032

probability_lists = st.lists(st.sampled_from([0.0, 0.3, 0.36, 0.45, 0.5, 0.9]), max_size=80)


def _array(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def _frames(regions: list[tuple[float, float]]) -> list[tuple[int, int]]:
    return [(round(start / FRAME_S), round(end / FRAME_S)) for start, end in regions]


def test_regions_are_empty_without_frames() -> None:
    assert speech_regions(_array([])) == []


def test_region_starts_at_threshold_and_ends_below_exit() -> None:
    probabilities = _array([0.4] * 3 + [0.5] + [0.4] * 6 + [0.3] * 10)

    assert _frames(speech_regions(probabilities)) == [(3, 10)]


def test_region_spans_a_short_pause_only() -> None:
    short = _array([0.9] * 5 + [0.0] * 3 + [0.9] * 5)
    long = _array([0.9] * 5 + [0.0] * 4 + [0.9] * 5)

    assert _frames(speech_regions(short)) == [(0, 13)]
    assert _frames(speech_regions(long)) == [(0, 5), (9, 14)]


def test_region_drops_a_click() -> None:
    probabilities = _array([0.0] * 5 + [1.0] * 3 + [0.0] * 5)

    assert speech_regions(probabilities) == []
    assert _frames(speech_regions(probabilities, min_speech_s=0.09)) == [(5, 8)]


def test_padding_joins_regions_that_meet() -> None:
    probabilities = _array([0.0] + [0.9] * 5 + [0.0] * 6 + [0.9] * 5 + [0.0])

    assert _frames(speech_regions(probabilities, pad_s=2 * FRAME_S)) == [(0, 8), (10, 18)]
    assert _frames(speech_regions(probabilities, pad_s=3 * FRAME_S)) == [(0, 18)]


@given(probability_lists, st.sampled_from([0.0, 0.05, 0.3]))
def test_regions_are_ordered_disjoint_and_inside(values: list[float], pad_s: float) -> None:
    regions = speech_regions(_array(values), pad_s=pad_s)

    edges = [edge for region in regions for edge in region]
    assert edges == sorted(edges)
    assert len(set(edges)) == len(edges)
    assert all(0.0 <= edge <= len(values) * FRAME_S for edge in edges)


@given(probability_lists, st.integers(1, 8), st.integers(1, 8))
def test_regions_keep_their_least_lengths(
    values: list[float], speech_frames: int, silence_frames: int
) -> None:
    regions = _frames(
        speech_regions(
            _array(values),
            min_speech_s=speech_frames * FRAME_S,
            min_silence_s=silence_frames * FRAME_S,
        )
    )

    assert all(end - start >= speech_frames for start, end in regions)
    assert all(b[0] - a[1] >= silence_frames for a, b in zip(regions, regions[1:], strict=False))


@given(probability_lists)
def test_regions_hold_every_frame_at_threshold(values: list[float]) -> None:
    regions = _frames(speech_regions(_array(values), min_speech_s=0))

    for index, value in enumerate(values):
        inside = any(start <= index < end for start, end in regions)
        assert inside or value < 0.5
    assert all(values[start] >= 0.5 for start, _ in regions)
    assert all(values[end - 1] >= 0.35 for _, end in regions)


@given(probability_lists, st.floats(0, 0.5))
def test_padding_never_loses_speech(values: list[float], pad_s: float) -> None:
    bare = speech_regions(_array(values))
    padded = speech_regions(_array(values), pad_s=pad_s)

    for start, end in bare:
        assert any(low <= start and end <= high for low, high in padded)


@pytest.mark.parametrize(
    ("option", "value"),
    [("threshold", 1.5), ("exit_threshold", 0.6), ("pad_s", -1.0), ("frame_s", 0.0)],
)
def test_regions_refuse_bad_options(option: str, value: float) -> None:
    with pytest.raises(ConfigError) as error:
        speech_regions(_array([0.1]), **{option: value})

    assert error.value.field == option
