from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.engine.verify import FIRST_PROPOSAL_TOKENS, LEAST_PROPOSAL_TOKENS, Draft, accept

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@pytest.mark.parametrize(
    ("proposed", "chosen", "accepted"),
    [
        ((), (4,), 0),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2), (1, 9, 3), 1),
        ((1, 2), (9, 2, 3), 0),
    ],
)
def test_accept_counts_leading_agreement(
    proposed: tuple[int, ...], chosen: tuple[int, ...], accepted: int
) -> None:
    assert accept(proposed, chosen) == accepted


def test_draft_proposes_what_is_left_while_it_is_followed() -> None:
    draft = Draft([1, 2, 3, 4])
    assert draft.propose(99) == (1, 2, 3, 4)
    assert draft.propose(2) == (1, 2)
    draft.observe([1, 2])
    assert draft.propose(99) == (3, 4)
    assert draft.accepted_length == 2


@pytest.mark.parametrize("limit", [0, -1])
def test_draft_proposes_nothing_without_room(limit: int) -> None:
    assert Draft([1, 2]).propose(limit) == ()


def test_draft_takes_a_mismatch_for_a_replaced_token() -> None:
    draft = Draft([1, 2, 3, 4])
    draft.observe([1, 9])
    assert draft.propose(99) == (3, 4)
    assert draft.accepted_length == 1


def test_draft_proposes_nothing_behind_its_end() -> None:
    draft = Draft([1, 2])
    draft.observe([1, 2, 7, 8])
    assert draft.propose(99) == ()


@pytest.mark.parametrize(
    ("emitted", "change"),
    [
        ([10, 11, 99, 13, 14], "replaced"),
        ([10, 11, 99, 12, 13], "inserted"),
        ([10, 11, 13, 14], "left out"),
        ([10, 11, 11, 12], "said again"),
    ],
)
def test_draft_is_taken_up_again_after_a_change(emitted: list[int], change: str) -> None:
    draft = Draft(range(10, 30))
    draft.observe(emitted)
    assert draft.propose(3) == tuple(range(emitted[-1] + 1, emitted[-1] + 4)), change
    assert draft.accepted_length == 2


def test_draft_proposes_few_after_a_change_and_more_as_they_are_agreed_with() -> None:
    draft = Draft(range(100))
    draft.observe([99])
    assert len(draft.propose(99)) == FIRST_PROPOSAL_TOKENS
    draft.observe(range(1, 11))
    assert len(draft.propose(99)) > FIRST_PROPOSAL_TOKENS


def test_draft_proposes_fewer_the_longer_it_is_wrong() -> None:
    draft = Draft(range(1000))
    sizes = []
    for _ in range(4):
        draft.observe([5000])
        sizes.append(len(draft.propose(99)))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == LEAST_PROPOSAL_TOKENS


def test_draft_takes_the_nearest_place() -> None:
    draft = Draft([1, 5, 6, 7, 5, 6, 8])
    draft.observe([9, 5, 6])
    assert draft.propose(1) == (7,)


def test_draft_is_not_taken_up_where_it_was_left_behind() -> None:
    draft = Draft([5, 6, 7, 1, 2, 3, 4, 8, 9, 5, 6, 11])
    draft.observe([5, 6, 7, 1, 2, 3, 4, 8, 9, 99, 5, 6])
    assert draft.propose(1) == (11,)


def test_draft_returns_from_a_wrong_place() -> None:
    # 5 6 is found far ahead by accident; what follows shows where the output really is.
    draft = Draft([1, 2, 3, 4, 11, 12, 13, 14, 5, 6, 7])
    draft.observe([9, 5, 6])
    assert draft.propose(1) == (7,)
    draft.observe([2, 3])
    assert draft.propose(2) == (4, 11)


def test_draft_knows_accepted_length_without_having_proposed() -> None:
    draft = Draft([1, 2, 3])
    draft.observe([1])
    draft.observe([2, 9])
    assert draft.accepted_length == 2


def test_draft_takes_back_agreement_on_what_is_cut() -> None:
    draft = Draft([1, 2, 3])
    draft.observe([1, 2, 3])
    draft.truncate(1)
    assert draft.accepted_length == 1


@given(TOKENS, TOKENS, st.integers(1, 20))
def test_draft_never_changes_the_output(
    hypothesis: list[int], truth: list[int], limit: int
) -> None:
    draft = Draft(hypothesis)
    output: list[int] = []
    while len(output) < len(truth):
        proposed = draft.propose(min(limit, len(truth) - len(output) - 1))
        assert len(proposed) <= limit
        chosen = truth[len(output) : len(output) + len(proposed) + 1]
        num_accepted = accept(proposed, chosen)
        emitted = [*proposed[:num_accepted], chosen[num_accepted]]
        draft.observe(emitted)
        output += emitted
    assert output == truth
    agreed = draft.accepted_length
    assert hypothesis[:agreed] == truth[:agreed]
    assert hypothesis[agreed : agreed + 1] != truth[agreed : agreed + 1] or agreed == len(truth)


@given(TOKENS, TOKENS)
def test_draft_is_the_same_token_by_token(hypothesis: list[int], truth: list[int]) -> None:
    at_once, one_by_one = Draft(hypothesis), Draft(hypothesis)
    at_once.observe(truth)
    for token in truth:
        one_by_one.observe([token])
    assert at_once.propose(99) == one_by_one.propose(99)
    assert at_once.accepted_length == one_by_one.accepted_length
