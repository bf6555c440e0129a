"""Where speech is, from the speech probabilities of equal frames. Pure numbers, whole recordings.

A frame at or above the entry threshold starts a region; frames at or above the lower exit threshold
continue it; a long enough run below that ends it, at the end of the last frame that continued it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from moss_stream.config import check_range
from moss_stream.errors import ConfigError


def speech_regions(
    probabilities: npt.NDArray[np.float32],
    *,
    frame_s: float = 0.032,
    threshold: float = 0.5,
    exit_threshold: float | None = None,
    min_speech_s: float = 0.1,
    min_silence_s: float = 0.1,
    pad_s: float = 0.0,
) -> list[tuple[float, float]]:
    """Find the regions of speech.

    Args:
        probabilities: [n] speech probability of each frame, in order.
        frame_s: Length of a frame, seconds.
        threshold: A region starts at this probability.
        exit_threshold: A region goes on down to this one; by default 0.15 lower.
        min_speech_s: Shorter regions are dropped, seconds. A short "no" is about 0.15.
        min_silence_s: Shorter pauses do not end a region, seconds.
        pad_s: Added on both sides of every region, seconds; regions that then meet become one.

    Returns:
        (start, end) of each region in seconds, ascending, disjoint, inside 0..n * frame_s. Where
        the last frame was filled up, the last end may lie past the end of the audio by that much.

    Raises:
        ConfigError: A value is outside its bounds, or the exit threshold is above the other.
    """
    if exit_threshold is None:
        exit_threshold = max(threshold - 0.15, 0.01)
    check_range("frame_s", frame_s, 1e-3, 1)
    check_range("threshold", threshold, 0.01, 1)
    check_range("exit_threshold", exit_threshold, 0.01, 1)
    check_range("min_speech_s", min_speech_s, 0, 60)
    check_range("min_silence_s", min_silence_s, 0, 60)
    check_range("pad_s", pad_s, 0, 60)
    if exit_threshold > threshold:
        raise ConfigError(
            f"exit_threshold is {exit_threshold}, it must not be above threshold {threshold}",
            field="exit_threshold",
        )
    runs = _runs(
        probabilities.tolist(), threshold, exit_threshold, _frames_in(min_silence_s, frame_s)
    )
    min_frames = _frames_in(min_speech_s, frame_s)
    end_s = len(probabilities) * frame_s
    regions: list[tuple[float, float]] = []
    for first, last in runs:
        if last - first < min_frames:
            continue
        start = max(first * frame_s - pad_s, 0.0)
        end = min(last * frame_s + pad_s, end_s)
        if regions and start <= regions[-1][1]:
            start = regions.pop()[0]
        regions.append((start, end))
    return regions


def _frames_in(seconds: float, frame_s: float) -> int:
    """Frames that last at least `seconds`; never none."""
    return max(1, math.ceil(seconds / frame_s - 1e-9))


def _runs(
    probabilities: list[float], threshold: float, exit_threshold: float, min_silence_frames: int
) -> list[tuple[int, int]]:
    """Regions as (first frame, frame after the last), before any is dropped or padded."""
    runs: list[tuple[int, int]] = []
    first: int | None = None
    after = 0
    for index, probability in enumerate(probabilities):
        if first is None:
            if probability >= threshold:
                first, after = index, index + 1
        elif probability >= exit_threshold:
            after = index + 1
        elif index + 1 - after >= min_silence_frames:
            runs.append((first, after))
            first = None
    if first is not None:
        runs.append((first, after))
    return runs
