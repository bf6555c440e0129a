"""Decides what every step of the engine feeds, and applies what came of it.

A step is `plan`, a forward over its rows, `complete` for every row whose sequence was not cancelled
meanwhile, and `end_step`. Memory for prompt and output is reserved at admission, so what runs never
has to stop for want of it. Who is served next is decided by rank alone: priority, then deadline,
then arrival.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from moss_stream.config import EngineConfig
from moss_stream.engine.blocks import BlockPool
from moss_stream.engine.request import Priority, StopReason
from moss_stream.engine.sequence import Sequence, State
from moss_stream.engine.turns import Turns
from moss_stream.engine.verify import accept
from moss_stream.errors import CapacityError, QueueFull, StateError
from moss_stream.transcript.guards import loop_length


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence's share of a step."""

    sequence: Sequence
    start: int
    """Position of the first token fed."""
    ids: tuple[int, ...]
    """Tokens fed: known ones, then proposed ones."""
    num_draft: int
    """How many of the last ids are proposed."""
    num_logits: int
    """After how many of the last ids the model's choice is wanted: none while the prefill goes on
    after this row, else one for the last known token and one for each proposed."""


class Scheduler:
    """Queue, admission and steps of one engine.

    Args:
        config: Sizes and limits.
        num_blocks: KV blocks there are.
    """

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, config.block_tokens)
        self._config = config
        self._waiting: list[Sequence] = []
        self._active: list[Sequence] = []
        self._planned: set[Row] = set()
        """Rows of this step that are not completed."""
        self._in_step = False
        self._turns = Turns()
        self._held_since_s: float | None = None
        """When admission began to wait for company."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is not finished."""
        return bool(self._waiting or self._active)

    @property
    def num_waiting(self) -> int:
        """Sequences waiting for admission."""
        return len(self._waiting)

    @property
    def num_active(self) -> int:
        """Sequences that hold blocks."""
        return len(self._active)

    @property
    def num_finals(self) -> int:
        """Finals among them."""
        return sum(s.request.priority is Priority.FINAL for s in self._active)

    def submit(self, sequence: Sequence) -> Sequence | None:
        """Queue a sequence.

        Returns:
            The waiting partial of the same stream whose place in the queue this partial takes; it
            is finished without a result. None when there was none.

        Raises:
            CapacityError: It could never fit.
            QueueFull: Too many wait already.
            StateError: It was submitted before.
        """
        if sequence.state is not State.WAITING or sequence in self._waiting:
            raise StateError("the sequence was submitted before")
        allowed = self.pool.num_blocks * self.pool.block_tokens
        if sequence.max_positions > allowed:
            raise CapacityError(
                f"prompt and output take {sequence.max_positions} tokens, "
                f"the KV memory holds {allowed}",
                field="max_new_tokens",
            )
        replaced = self._find_replaced(sequence)
        if replaced is not None:
            self.cancel(replaced)
            # Else a stream that refreshes faster than it is served would never be.
            sequence.rank = min(sequence.rank, replaced.rank)
        elif len(self._waiting) >= self._config.max_waiting:
            raise QueueFull(
                f"{len(self._waiting)} requests wait already, the limit is "
                f"{self._config.max_waiting}",
                field="max_waiting",
            )
        insort(self._waiting, sequence, key=_rank)
        return replaced

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence without a result, whatever its state."""
        if sequence.state is State.WAITING and sequence in self._waiting:
            self._waiting.remove(sequence)
            sequence.state = State.FINISHED
        elif sequence.state is State.RUNNING:
            self._finish(sequence)
            if not self._in_step:
                self.pool.end_step()

    def plan(self, now_s: float) -> list[Row]:
        """Begin a step: admit who fits and decide what is fed.

        Args:
            now_s: Monotonic time.

        Returns:
            Rows with `config.step_tokens` ids at most; decode and verify rows first.

        Raises:
            StateError: Rows of the previous step are not completed.
        """
        self._planned = {row for row in self._planned if row.sequence.state is State.RUNNING}
        if self._planned:
            raise StateError(f"{len(self._planned)} rows of the previous step are not completed")
        self._in_step = True
        self._turns.begin_step(self._active, self._waiting)
        if not self._holds_back(now_s):
            while self._waiting and len(self._active) < self._config.max_rows:
                first = self._waiting[0]
                if not self._turns.includes(first) or not self._admit(first):
                    break
        rows = self._decode_rows(self._config.step_tokens)
        rows += self._prefill_rows(self._config.step_tokens - sum(len(row.ids) for row in rows))
        self._planned = set(rows)
        return rows

    def complete(self, row: Row, chosen: Seq[int]) -> tuple[int, ...]:
        """Apply what came of a row; nothing happens when its sequence was cancelled meanwhile.

        Args:
            row: A row of this step's plan, its forward finished.
            chosen: The model's choice after each of its last `num_logits` ids.

        Returns:
            Tokens this adds to the output.

        Raises:
            StateError: The row is not in this step's plan or completed already, or the number of
                choices is wrong.
        """
        sequence = row.sequence
        if sequence.state is State.FINISHED:
            return ()
        if row not in self._planned:
            raise StateError("the row is not planned, or completed already")
        if len(chosen) != row.num_logits:
            raise StateError(f"{len(chosen)} choices for {row.num_logits} positions")
        self._planned.remove(row)
        if not row.num_logits:
            sequence.num_computed += len(row.ids)
            self._publish(sequence)
            return ()
        proposed = row.ids[len(row.ids) - row.num_draft :]
        num_accepted = accept(proposed, chosen)
        sequence.draft_tokens += row.num_draft
        sequence.decode_steps += row.start >= sequence.num_given
        before = len(sequence.known)
        reason = _extend(sequence, (*proposed[:num_accepted], chosen[num_accepted]))
        added = tuple(sequence.known[before:])
        sequence.draft_accepted += min(num_accepted, len(added))
        # KV of proposals after the end is valid, but what it belongs to is not known any more.
        computed = row.start + len(row.ids) - row.num_draft + num_accepted
        sequence.num_computed = min(computed, len(sequence.known))
        self._publish(sequence)
        if reason is not None:
            self._finish(sequence, reason)
        return added

    def end_step(self) -> None:
        """End a step: blocks released in it may be used again."""
        self._in_step = False
        self.pool.end_step()

    def plan_windows(
        self, limit: int, is_cached: Callable[[bytes], bool]
    ) -> list[tuple[Sequence, int]]:
        """Decide which windows become ready after this step; see `Turns`."""
        return self._turns.plan_windows(self._active, limit, is_cached)

    def _find_replaced(self, sequence: Sequence) -> Sequence | None:
        request = sequence.request
        if request.priority is not Priority.PARTIAL or request.stream_id is None:
            return None
        for other in self._waiting:
            if (
                other.request.priority is Priority.PARTIAL
                and other.request.stream_id == request.stream_id
            ):
                return other
        return None

    def _holds_back(self, now_s: float) -> bool:
        """Whether admission waits for company, so that several prefills share a step."""
        if self._active or not self._waiting:
            self._held_since_s = None
            return False
        if self._held_since_s is None:
            self._held_since_s = now_s
        lonely = len(self._waiting) < self._config.coalesce_target
        if lonely and now_s - self._held_since_s < self._config.coalesce_wait_s:
            return True
        self._held_since_s = None
        return False

    def _admit(self, sequence: Sequence) -> bool:
        """Reserve blocks for the first in the queue; False when there are too few."""
        block_tokens = self.pool.block_tokens
        # At least one position is computed, for the choice after it.
        keys = sequence.keys((len(sequence.known) - 1) // block_tokens, block_tokens)
        hits = self.pool.match(keys)
        new = self.pool.acquire(hits, -(-sequence.max_positions // block_tokens) - len(hits))
        if new is None:
            return False
        self._waiting.remove(sequence)
        sequence.state = State.RUNNING
        sequence.block_table = [*hits, *new]
        sequence.num_published = len(hits)
        sequence.num_computed = sequence.prefix_hit_tokens = len(hits) * block_tokens
        insort(self._active, sequence, key=_rank)
        return True

    def _decode_rows(self, budget: int) -> list[Row]:
        """Feed every decoding sequence its last token, then proposals as the budget allows."""
        decoding = [s for s in self._active if not s.is_prefilling][:budget]
        spare = budget - len(decoding)
        rows = []
        for sequence in decoding:
            row = _last_row(sequence, spare)
            spare -= row.num_draft
            rows.append(row)
        return rows

    def _prefill_rows(self, budget: int) -> list[Row]:
        """Feed prompts, first come first served; a prompt's last chunk carries proposals too.

        Less than a block in front of a window that is still being encoded waits for the window:
        a step of its own would cost more than it saves.
        """
        rows: list[Row] = []
        for sequence in self._active:
            if not budget:
                break
            if not sequence.is_prefilling or not self._turns.includes(sequence):
                continue
            start = sequence.num_computed
            end = min(sequence.ready_until, start + budget)
            if end == len(sequence.known):
                row = _last_row(sequence, budget - (end - start))
            elif end - start >= min(budget, self.pool.block_tokens):
                row = Row(sequence, start, tuple(sequence.known[start:end]), 0, 0)
            else:
                continue
            budget -= len(row.ids)
            rows.append(row)
        return rows

    def _publish(self, sequence: Sequence) -> None:
        """Let others find the blocks that became full of computed positions."""
        full = sequence.num_computed // self.pool.block_tokens
        if full == sequence.num_published:
            return
        keys = sequence.keys(full, self.pool.block_tokens)
        for index in range(sequence.num_published, full):
            self.pool.publish(sequence.block_table[index], keys[index])
        sequence.num_published = full

    def _finish(self, sequence: Sequence, reason: StopReason | None = None) -> None:
        """End a running sequence; without a reason it is cancelled."""
        sequence.state = State.FINISHED
        sequence.stop_reason = reason
        self._active.remove(sequence)
        self.pool.release(sequence.block_table)


def _rank(sequence: Sequence) -> tuple[int, float, int]:
    return sequence.rank


def _last_row(sequence: Sequence, draft_limit: int) -> Row:
    """Feed all known tokens that are left, and proposals that leave room for one more token."""
    room = sequence.max_positions - len(sequence.known) - 1
    proposed = sequence.propose(min(draft_limit, room))
    ids = (*sequence.known[sequence.num_computed :], *proposed)
    return Row(sequence, sequence.num_computed, ids, len(proposed), 1 + len(proposed))


def _extend(sequence: Sequence, emitted: Seq[int]) -> StopReason | None:
    """Add emitted tokens to the output one by one until one of them ends it.

    One by one, so that the output ends where it would have without a draft.
    """
    request = sequence.request
    for token in emitted:
        if token in request.stop_ids:
            return StopReason.END
        is_word = sequence.append(token)
        if request.stop_loops and is_word and (repeated := loop_length(sequence.words)):
            first_repeated = sequence.word_positions[-repeated]
            del sequence.known[max(first_repeated, sequence.num_given) :]
            sequence.draft.truncate(len(sequence.known) - sequence.num_given)
            return StopReason.LOOP
        if len(sequence.known) == sequence.max_positions:
            return StopReason.LENGTH
    return None
