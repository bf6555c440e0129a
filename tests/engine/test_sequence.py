from __future__ import annotations

from support.scheduling import BLOCK, make_request

from moss_stream.engine.prefix import block_keys
from moss_stream.engine.request import Request
from moss_stream.engine.sequence import Sequence


def make_sequence(*contents: int, **fields: object) -> Sequence:
    """Two text tokens, seven positions of each window (one of them text), one text token."""
    return Sequence(0, make_request(contents, **fields))


def test_sequence_knows_prompt_and_forced_tokens() -> None:
    sequence = make_sequence(forced=(6, 7))
    assert sequence.known == [3, 4, 5, 6, 7]
    assert sequence.output == [6, 7]
    assert sequence.max_positions == 3 + 8


def test_sequence_is_prefilling_until_all_given_positions_are_computed() -> None:
    sequence = make_sequence(forced=(6,))
    sequence.num_computed = 3
    assert sequence.is_prefilling
    sequence.num_computed = 4
    assert not sequence.is_prefilling


def test_ready_until_is_the_first_slot_of_a_window_that_is_not_ready() -> None:
    sequence = make_sequence(1, 2)
    assert sequence.ready_until == 2
    sequence.window_ready[0] = True
    assert sequence.ready_until == 9
    sequence.window_ready[1] = True
    assert sequence.ready_until == len(sequence.known)


def test_ready_until_waits_for_an_earlier_window_though_a_later_one_is_ready() -> None:
    sequence = make_sequence(1, 2)
    sequence.window_ready[1] = True
    assert sequence.ready_until == 2


def test_windows_covered_by_computed_positions_are_not_needed() -> None:
    sequence = make_sequence(1, 2, 3)
    sequence.num_computed = 8
    assert list(sequence.missing_windows()) == [0, 1, 2]
    assert sequence.ready_until == 8
    sequence.num_computed = 9
    assert list(sequence.missing_windows()) == [1, 2]
    assert sequence.ready_until == 9
    sequence.num_computed = 23
    assert list(sequence.missing_windows()) == []
    assert sequence.ready_until == len(sequence.known)


def test_windows_without_tokens_are_not_needed() -> None:
    sequence = make_sequence(1, 2, window_tokens=0)
    assert list(sequence.missing_windows()) == []


def test_keys_follow_the_output() -> None:
    sequence = make_sequence(1)
    request: Request = sequence.request
    assert len(sequence.keys(1, BLOCK)) == 1
    sequence.known += [6, 7, 8]
    whole = block_keys(request.prompt, request.windows, (6, 7, 8), BLOCK)
    assert sequence.keys(3, BLOCK) == whole
    assert sequence.keys(2, BLOCK) == whole[:2]
