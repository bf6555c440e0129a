"""How a model spells text in tokens, for whoever foresees what it will write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

CACHED = 4096
"""Spellings that are remembered."""


class Spelling:
    """Tokens of a text and text of a token.

    Args:
        encode: Text to tokens.
        decode: Tokens to text.
        time_step_s: Times in the model's output are multiples of it, if they are of anything: what
            one audio token stands for.
    """

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        time_step_s: float,
    ) -> None:
        self.time_step_s = time_step_s
        self._tokens = lru_cache(CACHED)(lambda text: tuple(encode(text)))
        self._text = lru_cache(CACHED)(lambda token: decode((token,)))

    def text(self, token: int) -> str:
        """What a token stands for."""
        return self._text(token)

    def continued(self, text: str, following: str) -> tuple[int, ...]:
        """Tokens of `following`, written after `text`.

        As the model spells both in one go, where that has a token's end between the two.
        """
        tokens = self._tokens(text + following)
        ends = accumulate((len(self.text(token)) for token in tokens), initial=0)
        first = next((index for index, end in enumerate(ends) if end == len(text)), None)
        return self._tokens(following) if first is None else tokens[first:]
