"""Which KV blocks are free, held, or kept for a later prefix hit. Numbers only, no memory.

A block is in one of three states:

- free: nobody holds it and nothing in it can be found;
- used: at least one sequence holds it, whether or not it can be found by its key;
- cached: nobody holds it, but it can be found by its key until it is evicted.

    free or cached --acquire(new)--> used;  cached or used --acquire(shared)--> used
    used --release, end_step--> cached if it was published, else free

A release takes effect at the end of the step: a forward that was planned before may still read the
block until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from moss_stream.engine.prefix import BlockKey
from moss_stream.errors import StateError


class Runs:
    """A set of blocks kept as maximal runs of neighbours."""

    def __init__(self) -> None:
        self._end: dict[int, int] = {}
        """First block of every run -> the block after its last."""
        self._start: dict[int, int] = {}
        """The block after every run's last -> its first."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def copy(self) -> Runs:
        """Make an independent copy."""
        other = Runs()
        other._end = self._end.copy()
        other._start = self._start.copy()
        other._length = self._length
        return other

    def add(self, first: int, length: int = 1) -> range:
        """Add blocks that are not in the set; return the run they are now part of."""
        self._length += length
        start, end = first, first + length
        if start in self._start:
            start = self._start.pop(start)
        if end in self._end:
            end = self._end.pop(end)
        self._end[start] = end
        self._start[end] = start
        return range(start, end)

    def remove(self, blocks: range) -> None:
        """Remove neighbouring blocks that lie at the beginning of a run."""
        self._length -= len(blocks)
        end = self._end.pop(blocks.start)
        del self._start[end]
        if blocks.stop < end:
            self._end[blocks.stop] = end
            self._start[end] = blocks.stop

    def best_fit(self, length: int) -> range | None:
        """Find the beginning of the shortest run of at least `length` blocks."""
        fitting = [
            (end - start, start) for start, end in self._end.items() if end - start >= length
        ]
        if not fitting:
            return None
        start = min(fitting)[1]
        return range(start, start + length)

    def longest(self) -> range:
        """Find the longest run; there must be one."""
        start, end = max(self._end.items(), key=lambda run: run[1] - run[0])
        return range(start, end)


class BlockPool:
    """All KV blocks of an engine.

    Args:
        num_blocks: How many there are.
        block_tokens: KV positions in each.
    """

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._references = [0] * num_blocks
        self._keys: list[BlockKey | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}
        """Key hash -> the block that can be found by it."""
        self._free = Runs()
        self._cached: dict[int, None] = {}
        """Cached blocks, least recently used first."""
        self._released: dict[int, int] = {}
        """References to drop at the end of the step, by block."""
        if num_blocks:
            self._free.add(0, num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks nobody holds and nobody can find."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks nobody holds that can still be found."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks held by somebody, those released in this step included."""
        return self.num_blocks - len(self._free) - len(self._cached)

    def acquire(self, shared: Sequence[int], num_new: int) -> list[int] | None:
        """Hold blocks: those found by `match`, and new ones.

        New blocks are one ascending run of neighbours if that is possible at all, at the price of
        evicting cached ones: attention reads a run without copying it. Least recently used blocks
        are evicted first.

        Args:
            shared: Blocks to hold besides those who already hold them.
            num_new: Blocks to hold alone.

        Returns:
            The new blocks, ascending; None, with nothing changed, when there are too few.

        Raises:
            StateError: A shared block is free.
        """
        num_evictable = len(self._cached) - sum(block in self._cached for block in set(shared))
        if num_new > self.num_free + num_evictable:
            return None
        for block in shared:
            if not self._references[block] and block not in self._cached:
                raise StateError(f"block {block} is free and cannot be shared")
        for block in shared:
            self._cached.pop(block, None)
            self._references[block] += 1
        new = self._take(num_new) if num_new else []
        for block in new:
            self._references[block] = 1
        return new

    def publish(self, block: int, key: BlockKey) -> None:
        """Let a block be found by its key; its forward must have completed.

        When another block can already be found by this key it stays the one, and `block` remains
        usable by its holder alone.

        Raises:
            StateError: Nobody holds the block, or it holds something else already.
        """
        if not self._references[block]:
            raise StateError(f"block {block} is published but held by nobody")
        if self._keys[block] not in (None, key):
            raise StateError(f"block {block} is published under two keys")
        if key.hash not in self._index:
            self._index[key.hash] = block
            self._keys[block] = key

    def match(self, keys: Sequence[BlockKey]) -> list[int]:
        """Find the blocks of the longest leading run of keys that are all published."""
        found = []
        for key in keys:
            block = self._index.get(key.hash)
            # The contents are compared too: a wrong hit would be a wrong transcript.
            if block is None or self._keys[block] != key:
                break
            found.append(block)
        return found

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of blocks at the end of this step.

        Later blocks of a sequence are evicted before earlier ones, without which they could not be
        found anyway.

        Raises:
            StateError: A block is held by nobody.
        """
        for block in reversed(blocks):
            released = self._released.get(block, 0) + 1
            if released > self._references[block]:
                raise StateError(f"block {block} is released but held by nobody")
            self._released[block] = released

    def end_step(self) -> None:
        """Carry out what was released: no forward reads it any more."""
        for block, count in self._released.items():
            self._references[block] -= count
            if self._references[block]:
                continue
            if self._keys[block] is None:
                self._free.add(block)
            else:
                self._cached[block] = None
        self._released.clear()

    def check_idle(self) -> None:
        """Verify that every block is free, cached, or about to be.

        Raises:
            StateError: Blocks are held, or lost.
        """
        held = [
            block
            for block, references in enumerate(self._references)
            if references > self._released.get(block, 0)
        ]
        if held:
            raise StateError(f"{len(held)} of {self.num_blocks} blocks are still held")
        if self.num_used != len(self._released):
            raise StateError(
                f"{self.num_free} free and {self.num_cached} cached blocks and "
                f"{len(self._released)} just released do not make {self.num_blocks}"
            )

    def _evict(self, block: int) -> None:
        """Turn a cached block into a free one."""
        key = self._keys[block]
        assert key is not None
        del self._cached[block], self._index[key.hash]
        self._keys[block] = None
        self._free.add(block)

    def _take(self, num_new: int) -> list[int]:
        """Take blocks out of the free ones; there are enough, counting the cached."""
        run = self._free.best_fit(num_new) or self._run_with_cached(num_new)
        if run is not None:
            for block in run:
                if block in self._cached:
                    self._evict(block)
            self._free.remove(run)
            return list(run)
        for block in list(islice(self._cached, max(num_new - self.num_free, 0))):
            self._evict(block)
        taken: list[int] = []
        while len(taken) < num_new:
            run = self._free.longest()[: num_new - len(taken)]
            self._free.remove(run)
            taken.extend(run)
        return sorted(taken)

    def _run_with_cached(self, length: int) -> range | None:
        """Find neighbours among free blocks and as few of the longest unused ones as it takes."""
        candidates = self._free.copy()
        grown = (candidates.add(block) for block in self._cached)
        return next((run[:length] for run in grown if len(run) >= length), None)
