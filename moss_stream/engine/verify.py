"""Agreeing on a draft: what to propose next, and how far the model agreed.

The draft is a guess, never a decision: whatever is proposed, the output is what the model would
have chosen alone. A wrong proposal costs a little computation, a missing one a step.
"""

from __future__ import annotations

from collections.abc import Sequence

ALIGN_TOKENS = 2
"""Emitted tokens that must occur in the draft, in a row, to find the place in it again."""
BACK_TOKENS = 4
"""How far before the place where the draft failed it may be taken up again: the model may have
written once more what the draft has once."""
FIRST_PROPOSAL_TOKENS = 16
"""Most tokens proposed right after the place was found again, since it may be the wrong one.
Source: on CPU verifying 16 tokens costs 1.3 times as much as decoding one."""


class Draft:
    """The previous hypothesis as a proposal for the next one.

    While the output follows the draft, all that is left of it is proposed. After a mismatch nothing
    is, until the last two emitted tokens are found in a row further on; the tokens after them are
    proposed then, few at first and more as they are agreed with.

    Args:
        tokens: The guess at the output.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tuple(tokens)
        self._at: int | None = 0
        """Index of the token expected next; None while the place is lost."""
        self._agreed_to = 0
        """Index after the last token that was agreed with when it was expected."""
        self._allowance = len(self._tokens)
        """Most tokens proposed at once."""
        self._recent: tuple[int, ...] = ()
        """The last emitted tokens."""
        self._diverged = False
        self._accepted_length = 0

    @property
    def accepted_length(self) -> int:
        """Leading tokens of the draft that were emitted, up to the first mismatch."""
        return self._accepted_length

    def propose(self, limit: int) -> tuple[int, ...]:
        """Return at most `limit` tokens that may come next."""
        if self._at is None:
            return ()
        return self._tokens[self._at : self._at + max(min(limit, self._allowance), 0)]

    def observe(self, emitted: Sequence[int]) -> None:
        """Take note of tokens that were emitted."""
        for token in emitted:
            self._recent = (*self._recent, token)[-ALIGN_TOKENS:]
            if self._expects(token):
                self._agree()
            else:
                self._diverged = True
                self._at = self._find_place()

    def truncate(self, num_tokens: int) -> None:
        """Take back agreement beyond the first `num_tokens`: the output was cut there."""
        self._accepted_length = min(self._accepted_length, num_tokens)

    def _expects(self, token: int) -> bool:
        return self._at is not None and self._tokens[self._at : self._at + 1] == (token,)

    def _agree(self) -> None:
        assert self._at is not None
        self._at += 1
        self._agreed_to = self._at
        if self._diverged:
            self._allowance += 1
        else:
            self._accepted_length += 1

    def _find_place(self) -> int | None:
        """Find where the draft goes on after the recent tokens."""
        if len(self._recent) < ALIGN_TOKENS:
            return None
        first = max(self._agreed_to - BACK_TOKENS, 0)
        for at in range(first, len(self._tokens) - ALIGN_TOKENS + 1):
            if self._tokens[at : at + ALIGN_TOKENS] == self._recent:
                self._allowance = FIRST_PROPOSAL_TOKENS
                return at + ALIGN_TOKENS
        return None


def accept(proposed: Sequence[int], chosen: Sequence[int]) -> int:
    """Count the leading proposals that the model agrees with.

    Args:
        proposed: Tokens that were fed as a draft.
        chosen: The model's own choice before each of them and after the last: one more.

    Returns:
        n, such that `proposed[:n]` and then `chosen[n]` are emitted.
    """
    for index, token in enumerate(proposed):
        if chosen[index] != token:
            return index
    return len(proposed)
