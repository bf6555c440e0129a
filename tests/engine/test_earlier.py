from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scheduling import make_request

from moss_stream.engine.earlier import CONTEXT_TOKENS, PROPOSED_TOKENS, Earlier
from moss_stream.engine.sequence import Sequence

NEWER = (1, 2, 3, 4, 5, 6)
OLDER = (0, 1, 2, 3, 4, 9, 8)


@pytest.mark.parametrize(
    ("hypotheses", "output", "limit", "proposed"),
    [
        ((), (1, 2, 3, 4), 9, ()),
        ((NEWER,), (1, 2, 3, 4), 9, (5, 6)),
        ((NEWER,), (7, 1, 2, 3, 4), 9, (5, 6)),
        ((NEWER,), (2, 3, 4), 9, ()),
        ((NEWER,), (7, 2, 3, 4), 9, ()),
        ((NEWER, OLDER), (1, 2, 3, 4), 9, (5, 6)),
        ((OLDER, NEWER), (1, 2, 3, 4), 9, (9, 8)),
        ((NEWER, OLDER), (0, 1, 2, 3), 9, (4, 9, 8)),
        ((NEWER,), (3, 4, 5, 6), 9, ()),
        ((NEWER,), (1, 2, 3, 4), 1, (5,)),
        ((NEWER,), (1, 2, 3, 4), 0, ()),
    ],
)
def test_earlier_hypotheses_propose_what_followed_the_same_tokens(
    hypotheses: tuple[tuple[int, ...], ...],
    output: tuple[int, ...],
    limit: int,
    proposed: tuple[int, ...],
) -> None:
    assert Earlier(hypotheses).propose(output, limit) == proposed


TOKENS = st.lists(st.integers(0, 3), max_size=20).map(tuple)


@given(hypotheses=st.lists(TOKENS, max_size=3), output=TOKENS, limit=st.integers(-1, 12))
def test_earlier_hypotheses_propose_only_what_stands_in_one_after_the_context(
    hypotheses: list[tuple[int, ...]], output: tuple[int, ...], limit: int
) -> None:
    proposed = Earlier(hypotheses).propose(output, limit)
    assert len(proposed) <= min(max(limit, 0), PROPOSED_TOKENS)
    if proposed:
        sought = (*output[-CONTEXT_TOKENS:], *proposed)
        assert any(
            tokens[at : at + len(sought)] == sought
            for tokens in hypotheses
            for at in range(len(tokens))
        )


def test_a_wrong_draft_is_followed_by_what_an_earlier_hypothesis_went_on_with() -> None:
    sequence = Sequence(1, make_request(draft=(0, 1, 2, 7, 7, 7), earlier=(NEWER, OLDER)))
    assert sequence.propose(9) == (0, 1, 2, 7, 7, 7)
    for token in (0, 1, 2, 3):
        sequence.append(token)
    assert sequence.propose(9) == (4, 9, 8)
    sequence.append(4)
    assert sequence.propose(9) == (5, 6)  # the newer one went on so after the last four
