from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moss_stream.engine.encoder_cache import EncoderCache


def make_cache(*names: bytes, max_entries: int = 3, max_bytes: int = 100) -> EncoderCache[str]:
    cache: EncoderCache[str] = EncoderCache(max_entries, max_bytes)
    for name in names:
        cache.put(name, name.decode(), 10)
    return cache


def test_cache_gives_back_what_was_put() -> None:
    cache = make_cache(b"a", b"b")
    assert cache.get(b"a") == "a"
    assert cache.get(b"x") is None
    assert (cache.hits, cache.misses) == (1, 1)


def test_cache_drops_the_least_recently_used() -> None:
    cache = make_cache(b"a", b"b", b"c")
    cache.get(b"a")
    cache.put(b"d", "d", 10)
    assert cache.get(b"b") is None
    assert cache.get(b"a") == "a"


def test_cache_is_bounded_in_bytes() -> None:
    cache = make_cache(b"a", b"b", max_entries=9, max_bytes=25)
    cache.put(b"c", "c", 15)
    assert cache.get(b"a") is None
    assert cache.get(b"b") == "b"
    assert cache.num_bytes == 25


def test_cache_does_not_keep_what_is_too_large() -> None:
    cache = make_cache(b"a")
    cache.put(b"b", "b", 101)
    assert cache.get(b"b") is None
    assert cache.get(b"a") == "a"


def test_cache_of_no_entries_keeps_nothing() -> None:
    cache = make_cache(b"a", max_entries=0)
    assert cache.get(b"a") is None


def test_put_replaces_a_value_and_its_size() -> None:
    cache = make_cache(b"a")
    cache.put(b"a", "new", 20)
    assert cache.get(b"a") == "new"
    assert cache.num_bytes == 20


@given(
    st.integers(0, 4),
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), st.booleans())),
)
def test_cache_stays_within_its_bounds(
    max_entries: int, max_bytes: int, actions: list[tuple[int, int, bool]]
) -> None:
    cache: EncoderCache[int] = EncoderCache(max_entries, max_bytes)
    sizes: dict[bytes, int] = {}
    for name, num_bytes, is_put in actions:
        digest = bytes([name])
        if is_put:
            cache.put(digest, name, num_bytes)
            sizes[digest] = num_bytes
        else:
            assert cache.get(digest) in (None, name)
        assert len(cache) <= max_entries
        kept = [digest for digest in sizes if digest in cache]
        assert cache.num_bytes == sum(sizes[digest] for digest in kept) <= max_bytes
