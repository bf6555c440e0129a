"""Changing the sample rate of a mono stream, block by block.

The output does not depend on how the input is cut into blocks, and its length is exact: after
`flush` it is `output_length(n)` for n input samples. Sample k of the output lies at time k / rate,
so positions in the output are positions in time. The filter delay of soxr shows only as samples
that arrive one block later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import soxr

from moss_stream.errors import StateError, UnsupportedAudio

MODEL_RATE_HZ = 16_000
"""The rate of everything inside the package, samples per second."""
MIN_RATE_HZ = 1_000
"""Lowest rate accepted: below it no speech is left."""
MAX_RATE_HZ = 384_000
"""Highest rate accepted: the highest that audio hardware records."""

_EMPTY = np.zeros(0, np.float32)


def check_rate(rate_hz: int, *, field: str = "rate_hz") -> None:
    """Refuse a sample rate no speech is recorded at.

    Raises:
        UnsupportedAudio: The rate is outside `MIN_RATE_HZ`..`MAX_RATE_HZ` or not a whole number.
    """
    is_whole = isinstance(rate_hz, (int, np.integer)) and not isinstance(rate_hz, bool)
    if not is_whole or not MIN_RATE_HZ <= rate_hz <= MAX_RATE_HZ:
        raise UnsupportedAudio(
            f"{field} is {rate_hz!r}, allowed are whole numbers from {MIN_RATE_HZ} to "
            f"{MAX_RATE_HZ} Hz",
            field=field,
        )


class Resampler:
    """Converts one mono stream to another rate; equal rates pass through untouched.

    Args:
        source_hz: Rate of the input, samples per second.
        target_hz: Rate of the output, samples per second.

    Raises:
        UnsupportedAudio: A rate is outside the accepted range.
    """

    def __init__(self, source_hz: int, target_hz: int = MODEL_RATE_HZ) -> None:
        check_rate(source_hz, field="source_hz")
        check_rate(target_hz, field="target_hz")
        self.source_hz = int(source_hz)
        self.target_hz = int(target_hz)
        self._num_in = 0
        self._num_out = 0
        self._flushed = False
        self._stream = (
            None
            if source_hz == target_hz
            else soxr.ResampleStream(source_hz, target_hz, 1, dtype="float32", quality="HQ")
        )

    def output_length(self, num_samples: int) -> int:
        """Samples that come out for `num_samples` in: n * target / source, halves rounded up."""
        return (2 * num_samples * self.target_hz + self.source_hz) // (2 * self.source_hz)

    def process(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Feed a block and take what is ready.

        Args:
            samples: [n] float32, the next samples of the stream.

        Returns:
            [m] float32, the next samples of the output; the input itself when the rates are equal.

        Raises:
            StateError: The stream was flushed.
        """
        if self._flushed:
            raise StateError("a flushed resampler takes no further samples")
        self._num_in += len(samples)
        if self._stream is None:
            return samples
        return self._count(self._stream.resample_chunk(np.ascontiguousarray(samples)))

    def flush(self) -> npt.NDArray[np.float32]:
        """End the stream and take what the filter still holds.

        Returns:
            [m] float32, the last samples of the output.

        Raises:
            StateError: The stream was flushed before.
        """
        if self._flushed:
            raise StateError("the resampler is flushed already")
        self._flushed = True
        if self._stream is None:
            return _EMPTY
        tail = self._stream.resample_chunk(_EMPTY, last=True)
        # soxr derives its count from a binary fraction of the rates, which can be one sample off
        # after hours; the contract is the exact one.
        due = self.output_length(self._num_in) - self._num_out
        if len(tail) < due:
            tail = np.pad(tail, (0, due - len(tail)))
        return self._count(tail[:due])

    def _count(self, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self._num_out += len(out)
        return out


def resample(
    samples: npt.NDArray[np.float32], source_hz: int, target_hz: int = MODEL_RATE_HZ
) -> npt.NDArray[np.float32]:
    """Convert a whole signal; the same samples a `Resampler` gives block by block.

    Args:
        samples: [n] float32 mono.
        source_hz: Rate of `samples`.
        target_hz: Rate wanted.

    Returns:
        [m] float32; the input itself when the rates are equal.

    Raises:
        UnsupportedAudio: A rate is outside the accepted range.
    """
    resampler = Resampler(source_hz, target_hz)
    head = resampler.process(samples)
    tail = resampler.flush()
    return np.concatenate((head, tail)) if len(tail) else head
