"""Which part of a growing hypothesis will not change any more.

A token is committed when two consecutive hypotheses agree on everything up to it and it ends a
margin before the end of the audio. The committed part only grows and never ends inside a tag, a
character or a word.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import takewhile

from moss_stream.live.text import MarkupClock, is_cut, plain_text


class CommitPolicy:
    """The committed text of one utterance.

    Args:
        decode: Token ids to text.
        margin_s: How long before the end of the audio a token must end, seconds.
        start_s: Model time at which the utterance starts, seconds.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], margin_s: float, start_s: float = 0.0
    ) -> None:
        self._decode = decode
        self._margin_s = margin_s
        self._start_s = start_s
        self._last: tuple[int, ...] = ()
        self._committed: tuple[int, ...] = ()

    @property
    def committed(self) -> tuple[int, ...]:
        """Token ids that will not change."""
        return self._committed

    @property
    def committed_text(self) -> str:
        """Their words."""
        return plain_text(self._decode(self._committed))

    def observe(self, token_ids: Sequence[int], edge_s: float) -> bool:
        """Take the next hypothesis and commit what is certain now.

        Args:
            token_ids: The utterance's output so far, the committed part included.
            edge_s: Model time at which its audio ends, seconds.

        Returns:
            Whether it agrees with the committed part; one that does not commits nothing.
        """
        ids = tuple(token_ids)
        previous, self._last = self._last, ids
        if ids[: len(self._committed)] != self._committed:
            return False
        pairs = zip(previous, ids, strict=False)
        agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        text = self._decode(ids)
        clock = MarkupClock(text, self._start_s, edge_s)
        # Times never decrease along the tokens, so the last one early enough is found by halves.
        count = bisect_right(
            range(agreed + 1),
            edge_s - self._margin_s,
            lo=min(len(self._committed), agreed),
            key=lambda length: clock.time_s(len(self._decode(ids[:length]))),
        )
        count -= 1  # bisect gives the first that is too late
        while count > len(self._committed):
            known = self._decode(ids[:count])
            if not is_cut(known, text[len(known) :]):
                self._committed = ids[:count]
                break
            count -= 1
        return True
