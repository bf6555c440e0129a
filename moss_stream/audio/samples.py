"""Checks on audio that is already in memory.

Both ways in, arrays and files, end here, so what reaches the model is finite float32 mono at the
model's rate and not shorter than `MIN_DURATION_S`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from moss_stream.audio.resample import MODEL_RATE_HZ, check_rate, resample
from moss_stream.errors import AudioTooLong, UnsupportedAudio

MIN_DURATION_S = 0.1
"""Shortest audio accepted, seconds: about one audio token (80 ms); no word is shorter."""
MAX_AMPLITUDE = 1e6
"""Largest magnitude accepted. Full scale is 1 and a forgotten division by 32768 stays below; what
lies above is not audio and would overflow the squares of the mel spectrum."""


def check_values(samples: npt.NDArray[np.float32], *, first_at: int = 0) -> None:
    """Refuse samples that are not numbers a sound can have.

    Args:
        samples: [n] float32.
        first_at: Position of `samples[0]` in the stream, for the message.

    Raises:
        UnsupportedAudio: A sample is NaN, infinite or beyond `MAX_AMPLITUDE`; names its position.
    """
    # NaN fails every comparison, so this one finds all three kinds.
    usable = np.abs(samples) <= MAX_AMPLITUDE
    if usable.all():
        return
    index = int(np.argmin(usable))
    raise UnsupportedAudio(
        f"sample {first_at + index} is {samples[index]:g}, "
        f"samples must be finite and within ±{MAX_AMPLITUDE:g}",
        field="samples",
    )


def check_duration(num_samples: int, rate_hz: int) -> None:
    """Refuse audio too short to hold a word.

    Raises:
        UnsupportedAudio: There are no samples, or they last less than `MIN_DURATION_S`.
    """
    if num_samples == 0:
        raise UnsupportedAudio("the audio is empty: it has no samples", field="samples")
    duration_s = num_samples / rate_hz
    if duration_s < MIN_DURATION_S:
        raise UnsupportedAudio(
            f"the audio lasts {duration_s:.4g} s, the shortest allowed is {MIN_DURATION_S:g} s",
            field="samples",
        )


def check_samples(
    samples: npt.NDArray[Any], rate_hz: int, *, max_duration_s: float | None = None
) -> npt.NDArray[np.float32]:
    """Validate an array of samples and bring it to the model's rate.

    Args:
        samples: [n] mono; float32 or float64 with full scale 1, or int16 with full scale 32768.
        rate_hz: Its rate, samples per second.
        max_duration_s: Longest audio accepted, seconds; None accepts any.

    Returns:
        [m] float32 at 16 kHz; the input itself where nothing had to change.

    Raises:
        AudioTooLong: It lasts longer than `max_duration_s`; found before anything is computed.
        UnsupportedAudio: Wrong shape, type, rate or value, or shorter than `MIN_DURATION_S`.
    """
    if not isinstance(samples, np.ndarray):
        raise UnsupportedAudio(
            f"samples is a {type(samples).__name__}, it must be a NumPy array", field="samples"
        )
    if samples.ndim != 1:
        raise UnsupportedAudio(
            f"samples has shape {samples.shape}, it must be mono: one dimension", field="samples"
        )
    check_rate(rate_hz)
    if max_duration_s is not None and len(samples) > max_duration_s * rate_hz:
        raise AudioTooLong(
            f"the audio lasts {len(samples) / rate_hz:.1f} s, "
            f"the longest allowed is {max_duration_s:g} s",
            field="samples",
        )
    if samples.dtype == np.int16:
        mono = samples.astype(np.float32) / np.float32(32768)
    elif samples.dtype in (np.float32, np.float64):
        # A float64 beyond float32 becomes infinite here and is refused below by its position.
        with np.errstate(over="ignore"):
            mono = samples.astype(np.float32, copy=False)
    else:
        raise UnsupportedAudio(
            f"samples has type {samples.dtype}, allowed are float32, float64 and int16",
            field="samples",
        )
    check_values(mono)
    check_duration(len(mono), rate_hz)
    return resample(mono, rate_hz, MODEL_RATE_HZ)
