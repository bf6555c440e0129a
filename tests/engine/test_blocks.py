from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moss_stream.engine.blocks import BlockPool
from moss_stream.engine.prefix import BlockKey
from moss_stream.errors import StateError


def make_key(name: int) -> BlockKey:
    return BlockKey(name.to_bytes(16), (name,), ())


def hold(pool: BlockPool, num_new: int) -> list[int]:
    blocks = pool.acquire((), num_new)
    assert blocks is not None
    return blocks


def let_go(pool: BlockPool, *blocks: int) -> None:
    pool.release(blocks)
    pool.end_step()


def cache(pool: BlockPool, names: range) -> list[int]:
    """Leave blocks cached under the keys of these names."""
    blocks = hold(pool, len(names))
    for block, name in zip(blocks, names, strict=True):
        pool.publish(block, make_key(name))
    let_go(pool, *blocks)
    return blocks


def test_pool_gives_one_ascending_run() -> None:
    pool = BlockPool(10, 16)
    first, second = hold(pool, 3), hold(pool, 4)
    assert first == [0, 1, 2]
    assert second == [3, 4, 5, 6]


def test_pool_takes_the_tightest_gap() -> None:
    pool = BlockPool(12, 16)
    hold(pool, 12)
    let_go(pool, 0, 1, 2, 3, 6, 7, 9, 10, 11)
    assert hold(pool, 2) == [6, 7]
    assert hold(pool, 3) == [9, 10, 11]


def test_pool_joins_neighbours_that_are_freed() -> None:
    pool = BlockPool(6, 16)
    hold(pool, 6)
    for block in (1, 3, 2):
        let_go(pool, block)
    assert hold(pool, 3) == [1, 2, 3]


def test_pool_evicts_the_oldest_that_make_a_run() -> None:
    pool = BlockPool(6, 16)
    hold(pool, 6)
    for block in (4, 0, 5, 1):
        pool.publish(block, make_key(block))
        let_go(pool, block)
    assert hold(pool, 2) == [4, 5]
    assert pool.match([make_key(0)]) == [0]


def test_pool_spares_cached_blocks_while_a_free_run_fits() -> None:
    pool = BlockPool(6, 16)
    cached = cache(pool, range(2))
    assert set(hold(pool, 4)).isdisjoint(cached)
    assert pool.num_cached == 2


def test_pool_scatters_when_there_is_no_run() -> None:
    pool = BlockPool(6, 16)
    hold(pool, 6)
    let_go(pool, 0, 2, 4)
    assert hold(pool, 3) == [0, 2, 4]


def test_pool_scatters_over_the_oldest_cached_blocks() -> None:
    pool = BlockPool(7, 16)
    hold(pool, 7)
    for block in (4, 0, 2):
        pool.publish(block, make_key(block))
        let_go(pool, block)
    let_go(pool, 6)
    assert hold(pool, 3) == [0, 4, 6]
    assert pool.match([make_key(2)]) == [2]


def test_pool_refuses_without_a_change_when_there_are_too_few() -> None:
    pool = BlockPool(4, 16)
    shared = cache(pool, range(2))
    # Three are left, of which two are to be shared.
    hold(pool, 1)
    assert pool.acquire(shared, 2) is None
    assert (pool.num_free, pool.num_cached, pool.num_used) == (1, 2, 1)
    assert pool.acquire(shared, 1) is not None


def test_pool_keeps_a_shared_block_until_the_last_holder_leaves() -> None:
    pool = BlockPool(4, 16)
    shared = cache(pool, range(1))
    assert pool.acquire(shared, 0) == []
    assert pool.acquire(shared, 0) == []
    let_go(pool, *shared)
    assert pool.num_used == 1
    let_go(pool, *shared)
    assert (pool.num_used, pool.num_cached) == (0, 1)


def test_released_block_is_not_used_again_in_the_same_step() -> None:
    # A forward that was planned before may still read it.
    pool = BlockPool(2, 16)
    blocks = hold(pool, 2)
    pool.release(blocks)
    assert pool.acquire((), 1) is None
    pool.end_step()
    assert pool.acquire((), 2) == blocks


def test_released_block_can_be_shared_in_the_same_step() -> None:
    pool = BlockPool(1, 16)
    blocks = hold(pool, 1)
    pool.publish(blocks[0], make_key(7))
    pool.release(blocks)
    assert pool.acquire(pool.match([make_key(7)]), 0) == []
    pool.end_step()
    assert pool.num_used == 1


def test_match_takes_the_longest_leading_run() -> None:
    pool = BlockPool(4, 16)
    blocks = cache(pool, range(3))
    keys = [make_key(0), make_key(1), make_key(9), make_key(2)]
    assert pool.match(keys) == blocks[:2]


def test_match_compares_ids_and_not_only_the_hash() -> None:
    pool = BlockPool(2, 16)
    cache(pool, range(1))
    key = make_key(0)
    assert pool.match([BlockKey(key.hash, (1,), ())]) == []
    assert pool.match([BlockKey(key.hash, key.ids, (b"other audio",))]) == []


def test_publish_leaves_a_duplicate_with_its_holder() -> None:
    # The page table of its holder still points at it.
    pool = BlockPool(4, 16)
    first, second = hold(pool, 2)
    pool.publish(first, make_key(1))
    pool.publish(second, make_key(1))
    assert pool.match([make_key(1)]) == [first]
    assert pool.num_used == 2
    let_go(pool, second)
    assert (pool.num_free, pool.num_used) == (3, 1)


def test_evicted_block_is_not_found() -> None:
    pool = BlockPool(2, 16)
    cache(pool, range(2))
    hold(pool, 1)
    assert pool.match([make_key(0)]) == [0]
    assert pool.match([make_key(1)]) == []


def test_sharing_a_block_makes_it_recent() -> None:
    pool = BlockPool(3, 16)
    hold(pool, 3)
    for block in (0, 2):
        pool.publish(block, make_key(block))
        let_go(pool, block)
    pool.acquire([0], 0)
    let_go(pool, 0)
    assert hold(pool, 1) == [2]


@pytest.mark.parametrize("misuse", ["release", "publish", "share", "twice"])
def test_pool_refuses_misuse(misuse: str) -> None:
    pool = BlockPool(2, 16)
    held = hold(pool, 1)
    with pytest.raises(StateError):
        if misuse == "release":
            pool.release([1])
        elif misuse == "publish":
            pool.publish(1, make_key(1))
        elif misuse == "share":
            pool.acquire([1], 0)
        else:
            pool.release([*held, *held])


def test_pool_refuses_to_publish_under_two_keys() -> None:
    pool = BlockPool(2, 16)
    held = hold(pool, 1)
    pool.publish(held[0], make_key(1))
    pool.publish(held[0], make_key(1))
    with pytest.raises(StateError):
        pool.publish(held[0], make_key(2))


def test_check_idle_finds_a_leak() -> None:
    pool = BlockPool(4, 16)
    held = hold(pool, 2)
    with pytest.raises(StateError, match="2 of 4"):
        pool.check_idle()
    pool.release(held)
    pool.check_idle()
    pool.end_step()
    pool.check_idle()


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a model of it: who holds what."""

    @initialize(num_blocks=st.integers(0, 12))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, 16)
        self.holders: list[list[int]] = []
        self.leaving: list[list[int]] = []

    def counts(self) -> Counter[int]:
        return Counter(b for blocks in self.holders + self.leaving for b in blocks)

    @rule(num_new=st.integers(0, 6), names=st.lists(st.integers(0, 5), max_size=3, unique=True))
    def acquire(self, num_new: int, names: list[int]) -> None:
        shared = self.pool.match([make_key(name) for name in names])
        before = self.counts()
        room = self.pool.num_blocks - len(before.keys() | set(shared))
        new = self.pool.acquire(shared, num_new)
        assert (new is None) == (num_new > room)
        if new is None:
            return
        assert len(new) == num_new
        assert new == sorted(new)
        assert before.keys().isdisjoint(new), "a block somebody holds is given away"
        assert set(shared).isdisjoint(new)
        free = sorted(set(range(self.pool.num_blocks)) - before.keys() - set(shared))
        if _has_run(free, num_new):
            assert all(b == a + 1 for a, b in pairwise(new)), "a run was possible"
        self.holders.append([*shared, *new])

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), name=st.integers(0, 5))
    def publish(self, data: st.DataObject, name: int) -> None:
        blocks = data.draw(st.sampled_from(self.holders))
        key = make_key(name)
        found = self.pool.match([key])
        if not blocks or any(self.pool.match([make_key(n)]) == blocks[-1:] for n in range(6)):
            return
        self.pool.publish(blocks[-1], key)
        assert self.pool.match([key]) == (found or blocks[-1:])

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.holders) - 1))
        blocks = self.holders.pop(index)
        self.pool.release(blocks)
        self.leaving.append(blocks)

    @rule()
    def end_step(self) -> None:
        self.pool.end_step()
        self.leaving.clear()

    @invariant()
    def adds_up(self) -> None:
        assert self.pool.num_used == len(self.counts())
        assert (
            self.pool.num_free + self.pool.num_cached + self.pool.num_used == self.pool.num_blocks
        )

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for blocks in self.holders:
            self.pool.release(blocks)
        self.pool.check_idle()
        self.pool.end_step()
        self.pool.check_idle()
        assert self.pool.num_used == 0
        # Every block is still good for something.
        assert self.pool.acquire((), self.pool.num_blocks) == list(range(self.pool.num_blocks))


def _has_run(blocks: list[int], length: int) -> bool:
    return any(set(range(block, block + length)) <= set(blocks) for block in blocks)


TestPool = PoolMachine.TestCase
