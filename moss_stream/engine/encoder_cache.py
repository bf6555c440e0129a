"""Embeddings of windows by content, so that the same audio is encoded once.

Knows nothing of what it keeps but its size. For one thread, or under its owner's lock.
"""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")


class EncoderCache(Generic[V]):
    """Least recently used values by digest, bounded in number and bytes.

    Args:
        max_entries: Most values kept; 0 keeps none.
        max_bytes: Most bytes kept; a value that is larger alone is not kept.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._values: dict[bytes, tuple[V, int]] = {}
        """Digest -> value and its bytes, least recently used first."""
        self._num_bytes = 0
        self._hits = 0
        self._misses = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._values

    @property
    def num_bytes(self) -> int:
        """Bytes kept."""
        return self._num_bytes

    @property
    def hits(self) -> int:
        """Lookups that found a value."""
        return self._hits

    @property
    def misses(self) -> int:
        """Lookups that did not."""
        return self._misses

    def get(self, digest: bytes) -> V | None:
        """Look a value up and make it the most recently used."""
        entry = self._values.pop(digest, None)
        if entry is None:
            self._misses += 1
            return None
        self._values[digest] = entry
        self._hits += 1
        return entry[0]

    def put(self, digest: bytes, value: V, num_bytes: int) -> None:
        """Keep a value of `num_bytes` bytes."""
        self._drop(digest)
        if num_bytes > self._max_bytes or not self._max_entries:
            return
        while len(self._values) >= self._max_entries or (
            self._num_bytes + num_bytes > self._max_bytes
        ):
            self._drop(next(iter(self._values)))
        self._values[digest] = (value, num_bytes)
        self._num_bytes += num_bytes

    def _drop(self, digest: bytes) -> None:
        entry = self._values.pop(digest, None)
        if entry is not None:
            self._num_bytes -= entry[1]
