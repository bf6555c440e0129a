"""Samples of a stream, addressed by their position since its start.

Invariant: the buffer holds exactly the samples `start_at`..`end_at`; what was dropped never comes
back and what was read is a copy.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moss_stream.errors import QueueFull, StateError


class SampleBuffer:
    """A bounded stretch of a stream.

    Args:
        max_samples: Most samples held at once.
    """

    def __init__(self, max_samples: int) -> None:
        self.max_samples = max_samples
        self._start_at = 0
        self._end_at = 0
        # store[offset] is the sample at start_at; the part before it is dropped, after it free.
        self._store = np.zeros(0, np.float32)
        self._offset = 0

    def __len__(self) -> int:
        return self._end_at - self._start_at

    @property
    def start_at(self) -> int:
        """Position of the oldest sample held."""
        return self._start_at

    @property
    def end_at(self) -> int:
        """Position after the newest sample: how many were appended in all."""
        return self._end_at

    def append(self, samples: npt.NDArray[np.float32]) -> None:
        """Add the next samples of the stream.

        Args:
            samples: [n] float32; copied.

        Raises:
            QueueFull: They do not fit; nothing was added.
        """
        held = len(self) + len(samples)
        if held > self.max_samples:
            raise QueueFull(
                f"audio buffer: {len(self)} samples held and {len(samples)} new are more than "
                f"the {self.max_samples} allowed",
                field="max_samples",
            )
        used = self._offset + len(self)
        if used + len(samples) > len(self._store):
            self._make_room(held)
            used = len(self)
        self._store[used : used + len(samples)] = samples
        self._end_at += len(samples)

    def read(self, start: int, end: int) -> npt.NDArray[np.float32]:
        """Copy the samples at positions `start`..`end`.

        Returns:
            [end - start] float32, owned by the caller.

        Raises:
            StateError: A part of them is dropped or not there yet.
        """
        if not self._start_at <= start <= end <= self._end_at:
            raise StateError(
                f"samples {start} to {end} were asked for, "
                f"held are {self._start_at} to {self._end_at}"
            )
        first = self._offset + start - self._start_at
        return self._store[first : first + end - start].copy()

    def drop_before(self, index: int) -> None:
        """Forget all samples before position `index`; those already forgotten do not matter.

        Raises:
            StateError: `index` lies after the newest sample.
        """
        if index > self._end_at:
            raise StateError(f"cannot drop to {index}, the stream ends at {self._end_at}")
        dropped = max(0, index - self._start_at)
        self._start_at += dropped
        self._offset += dropped

    def _make_room(self, held: int) -> None:
        """Move what is held to the front of a store at least twice as long as `held`.

        Half of the store is free afterwards, so each sample is moved about once on average.
        """
        kept = self._store[self._offset : self._offset + len(self)]
        store = self._store if 2 * held <= len(self._store) else np.empty(2 * held, np.float32)
        store[: len(kept)] = kept.copy() if store is self._store else kept
        self._store, self._offset = store, 0
