"""Whose turn a step is: who may begin, and whose windows are encoded after it.

Everybody who decodes goes on at every step, so what makes texts late is what a step does besides:
on a CPU a window takes as long as ten steps, and so may a long prefill. Two rules share that out:

- While there are finals, others neither begin nor go on with their prompts. After some steps one is
  for all, and the window after it for those held up, so that finals without end starve nobody.
- Windows of live sequences are encoded one at a time, as who comes meanwhile may be more urgent;
  and while live sequences decode only after some steps, as to finish those that are nearly done
  takes less time than to begin with the next.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from moss_stream.engine.request import Priority
from moss_stream.engine.sequence import Sequence

MAX_HELD_STEPS = 64
"""Steps in a row for which finals hold up all others."""
STEPS_A_WINDOW = 6
"""Steps from one window to the next while live sequences decode."""


class Turns:
    """The turns of one scheduler; it is told of every step."""

    def __init__(self) -> None:
        self._finals_alone = False
        """Whether finals hold up others in this step."""
        self._others_first = False
        """Whether others have been held up for long enough."""
        self._held_steps = 0
        """For how many steps finals have held up others."""
        self._steps_since_window = 0

    def begin_step(self, active: Seq[Sequence], waiting: Seq[Sequence]) -> None:
        """Decide whose turn the step is.

        Args:
            active: Admitted sequences.
            waiting: Those waiting for admission.
        """
        everybody = (*active, *waiting)
        num_finals = sum(map(_is_final, everybody))
        is_mixed = 0 < num_finals < len(everybody)
        self._finals_alone = is_mixed and self._held_steps < MAX_HELD_STEPS
        self._others_first = is_mixed and not self._finals_alone
        self._held_steps = self._held_steps + 1 if self._finals_alone else 0
        self._steps_since_window += 1

    def includes(self, sequence: Sequence) -> bool:
        """Whether it may be admitted, encoded and prefilled in this step."""
        return not self._finals_alone or _is_final(sequence)

    def plan_windows(
        self, active: Seq[Sequence], limit: int, is_cached: Callable[[bytes], bool]
    ) -> list[tuple[Sequence, int]]:
        """Decide which windows become ready after this step.

        Args:
            active: Admitted sequences in order of service.
            limit: Most windows to encode; those that are cached come besides.
            is_cached: Whether the window of a digest need not be encoded.

        Returns:
            Sequences and their windows, in order of service and position.
        """
        served = [sequence for sequence in active if self.includes(sequence)]
        allowed = self._num_allowed(served, limit)
        if self._others_first:
            served.sort(key=_is_final)
        planned: list[tuple[Sequence, int]] = []
        encoded: set[bytes] = set()
        for sequence in served:
            for window in sequence.missing_windows():
                digest = sequence.request.windows[window].digest
                if digest not in encoded and not is_cached(digest):
                    if len(encoded) == allowed:
                        break
                    encoded.add(digest)
                planned.append((sequence, window))
        if encoded:
            self._steps_since_window = 0
        return planned

    def _num_allowed(self, served: Seq[Sequence], limit: int) -> int:
        live = [s for s in served if s.request.priority is not Priority.FILE]
        if not live:
            return limit
        is_due = self._others_first or self._steps_since_window >= STEPS_A_WINDOW
        return min(limit, 1) if is_due or all(s.is_prefilling for s in live) else 0


def _is_final(sequence: Sequence) -> bool:
    return sequence.request.priority is Priority.FINAL
