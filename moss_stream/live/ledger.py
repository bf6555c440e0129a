"""What became of every received sample.

Invariant: the stretches touch, from the first one kept to the end of what was received. Old ones
are folded into totals, so that a session of hours keeps a bounded list.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, replace
from enum import StrEnum

from moss_stream.errors import StateError

_MAX_STRETCHES = 512


class Outcome(StrEnum):
    """What became of a stretch of audio."""

    PENDING = "pending"
    """Not decided or not decoded yet."""
    TRANSCRIPT = "transcript"
    """Covered by a final."""
    SILENCE = "silence"
    """No speech in it."""
    GAP = "gap"
    """Not transcribed, and the caller was told."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Samples that share an outcome."""

    start_at: int
    """First sample."""
    end_at: int
    """After the last sample."""
    outcome: Outcome
    """What became of them."""
    utterance_id: int | None = None
    """The utterance they belong to, if any."""


class Ledger:
    """The account of one session."""

    def __init__(self) -> None:
        self._stretches: deque[Stretch] = deque()
        self._settled_at = 0
        self._folded: Counter[Outcome] = Counter()

    @property
    def settled_at(self) -> int:
        """Everything before belongs to silence, a gap or an ended utterance."""
        return self._settled_at

    def stretches(self, received_at: int) -> tuple[Stretch, ...]:
        """The stretches kept, tiling the samples from the last folded one to `received_at`."""
        if received_at == self._settled_at:
            return tuple(self._stretches)
        return (*self._stretches, Stretch(self._settled_at, received_at, Outcome.PENDING))

    def totals(self, received_at: int) -> dict[Outcome, int]:
        """Samples by outcome since the start; they add up to `received_at`."""
        totals = Counter(self._folded)
        for stretch in self.stretches(received_at):
            totals[stretch.outcome] += stretch.end_at - stretch.start_at
        return {outcome: totals[outcome] for outcome in Outcome}

    def silence_until(self, at: int) -> None:
        """Declare everything not settled before `at` to be silence."""
        self._settle(at, Outcome.SILENCE, None)

    def gap_until(self, at: int) -> None:
        """Declare everything not settled before `at` to be lost."""
        self._settle(at, Outcome.GAP, None)

    def utterance(self, utterance_id: int, end_at: int) -> None:
        """An utterance ended: it has everything not settled before `end_at`."""
        self._settle(end_at, Outcome.PENDING, utterance_id)

    def resolve(self, utterance_id: int, outcome: Outcome) -> None:
        """Record what became of an ended utterance.

        Raises:
            StateError: No such utterance is pending.
        """
        for index, stretch in enumerate(self._stretches):
            if stretch.utterance_id == utterance_id and stretch.outcome is Outcome.PENDING:
                self._stretches[index] = replace(stretch, outcome=outcome)
                self._fold()
                return
        raise StateError(f"utterance {utterance_id} is not pending")

    def _settle(self, at: int, outcome: Outcome, utterance_id: int | None) -> None:
        if at <= self._settled_at:
            return
        start_at = self._settled_at
        last = self._stretches[-1] if self._stretches else None
        if last is not None and utterance_id is None and last.outcome is outcome is Outcome.SILENCE:
            start_at = self._stretches.pop().start_at
        self._stretches.append(Stretch(start_at, at, outcome, utterance_id))
        self._settled_at = at
        self._fold()

    def _fold(self) -> None:
        while (
            len(self._stretches) > _MAX_STRETCHES
            and self._stretches[0].outcome is not Outcome.PENDING
        ):
            oldest = self._stretches.popleft()
            self._folded[oldest.outcome] += oldest.end_at - oldest.start_at
