from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.scheduling import histories, make_prompt, make_request, make_window

from moss_stream.engine.prefix import block_keys
from moss_stream.engine.request import Request

BLOCK = 4


def keys_of(request: Request, output: tuple[int, ...] = ()) -> list[bytes]:
    keys = block_keys(request.prompt, request.windows, output, BLOCK)
    return [key.hash for key in keys]


def test_block_keys_cover_full_blocks_only() -> None:
    prompt = make_prompt(head=(3, 4, 6, 7, 8), tail=(5, 6))
    assert len(block_keys(prompt, (), (), BLOCK)) == 1
    assert [key.ids for key in block_keys(prompt, (), (9,), BLOCK)] == [(3, 4, 6, 7), (8, 5, 6, 9)]


def test_block_keys_differ_with_the_audio_behind_equal_ids() -> None:
    first, second = make_request([1, 2]), make_request([1, 3])
    assert first.prompt.ids == second.prompt.ids
    # Positions: 2 of text, 7 of the first window, then the second.
    assert keys_of(first)[:2] == keys_of(second)[:2]
    assert all(a != b for a, b in zip(keys_of(first)[2:], keys_of(second)[2:], strict=True))


def test_block_key_names_every_window_it_touches() -> None:
    request = make_request([1, 2])
    keys = block_keys(request.prompt, request.windows, (), BLOCK)
    first, second = (window.digest for window in request.windows)
    assert [key.windows for key in keys] == [(first,), (first,), (first, second), (second,)]


def test_block_keys_depend_on_everything_before() -> None:
    first, second = make_request([1], head=(3, 4)), make_request([1], head=(3, 6))
    assert set(keys_of(first)).isdisjoint(keys_of(second))


def test_block_key_skips_windows_without_tokens() -> None:
    prompt = make_prompt([2, 0, 2], head=(3,))
    windows = [make_window(content) for content in range(3)]
    (key,) = block_keys(prompt, windows, (), BLOCK)
    assert key.windows == (windows[0].digest, windows[2].digest)


CONTENTS = st.lists(st.integers(0, 1), max_size=3)
TOKENS = st.lists(st.integers(0, 1), max_size=9).map(tuple)


@given(CONTENTS, TOKENS, CONTENTS, TOKENS)
def test_block_keys_are_equal_exactly_when_their_kv_is(
    one: list[int], one_output: tuple[int, ...], two: list[int], two_output: tuple[int, ...]
) -> None:
    requests = ((make_request(one), one_output), (make_request(two), two_output))
    found = [keys_of(request, output) for request, output in requests]
    states = [histories(r, (*r.prompt.ids, *output))[BLOCK - 1 :: BLOCK] for r, output in requests]
    for a, b, state_a, state_b in zip(*found, *states, strict=False):
        assert (a == b) == (state_a == state_b)


@given(CONTENTS, TOKENS, st.integers(0, 12))
def test_block_keys_grow_without_starting_over(
    contents: list[int], output: tuple[int, ...], known: int
) -> None:
    request = make_request(contents)
    whole = block_keys(request.prompt, request.windows, output, BLOCK)
    head = whole[:known]
    rest = block_keys(
        request.prompt,
        request.windows,
        output,
        BLOCK,
        first=len(head),
        parent=head[-1] if head else None,
    )
    assert [*head, *rest] == whole
