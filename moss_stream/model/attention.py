"""KV memory and attention behind one interface, and its CPU backend.

The engine hands every backend the same description of a step: which rows there are, which slots
they write, and where each row's earlier positions lie. A backend owns the KV memory and decides
how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from moss_stream.errors import UnsupportedModelError
from moss_stream.model.kernels import pair_attention
from moss_stream.model.kernels.attention import TILE_QUERIES, Plan
from moss_stream.model.kernels.compiled import LOWEST
from moss_stream.model.kernels.softmax import softmax_
from moss_stream.model.linear import Linear, multiplier
from moss_stream.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class RowView:
    """One sequence's share of a step, as attention sees it."""

    offset: int
    """Index of the row's first token among the packed tokens of the step."""
    num_tokens: int
    start: int
    """Position of the row's first token in its sequence."""
    block_table: Sequence[int]
    """Blocks of the sequence, in order of position."""


Runs = list[tuple[int, int]]
"""First slot and length of contiguous slots."""


class Attention(Protocol):
    """KV memory of one engine and attention over it."""

    def begin(self, rows: Sequence[RowView]) -> None:
        """Prepare a step: called once before the layers, in the order of the packed tokens."""
        ...

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Store the step's keys and values, then attend causally within each row's sequence.

        Args:
            layer: Layer index.
            queries: [T, H, D], in the dtype of the KV memory; of this, keys and values each token's
                heads lie together.
            keys: [T, K, D], rotated.
            values: [T, K, D].

        Returns:
            [T, H, D] in the dtype of `queries`.
        """
        ...


def slot_runs(block_table: Sequence[int], num_positions: int, block_tokens: int) -> Runs:
    """Slots of the first `num_positions` positions."""
    runs: Runs = []
    for index in range(-(-num_positions // block_tokens)):
        first = block_table[index] * block_tokens
        length = min(block_tokens, num_positions - index * block_tokens)
        if runs and runs[-1][0] + runs[-1][1] == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + length)
        else:
            runs.append((first, length))
    return runs


def row_slots(rows: Sequence[RowView], block_tokens: int) -> list[int]:
    """Slot of every packed token of a step."""
    return [
        row.block_table[position // block_tokens] * block_tokens + position % block_tokens
        for row in rows
        for position in range(row.start, row.start + row.num_tokens)
    ]


PAIR_TOKENS = 32
"""From so many tokens on, it is worth while to lay out keys and values as pairs."""
LONG_TOKENS = 128
LONG_POSITIONS = 1024
"""From so many tokens that end at such a position, a row of a step is a long prefill."""
LONG_QUERIES = 256
"""Queries of a long prefill that attend at one time."""


class CpuAttention:
    """Attention in float32 over KV kept in the weights' dtype, by `kernels.attention`.

    A prefill computes more than it reads. In bfloat16, where the machine multiplies pairs, it is
    done by `kernels.pair_attention`: as fast at 64 tokens, twice as fast at 128 after
    2000 positions. Elsewhere a long one is done by matrix products: in bfloat16 as fast at 1024
    positions and twice as fast from 4000 on, in float32 1.6 times.

    Args:
        spec: Decoder sizes.
        num_blocks: Blocks of memory.
        block_tokens: Positions in a block.
        dtype: dtype of the KV memory.

    Raises:
        UnsupportedModelError: More heads share a KV head than a tile has queries.
    """

    def __init__(
        self, spec: DecoderSpec, num_blocks: int, block_tokens: int, *, dtype: torch.dtype
    ) -> None:
        group = spec.num_heads // spec.num_kv_heads
        if group > TILE_QUERIES:
            raise UnsupportedModelError(
                f"{group} heads share one KV head, on CPU the limit is {TILE_QUERIES}",
                field="num_key_value_heads",
            )
        self.block_tokens = block_tokens
        num_slots = num_blocks * block_tokens
        shape = (spec.num_layers, spec.num_kv_heads, 2, num_slots, spec.head_dim)
        self._kv = torch.empty(shape, dtype=dtype)
        self._scale = torch.tensor([spec.head_dim**-0.5])
        self._tile_tokens = TILE_QUERIES // group
        self._plan: Plan | None = None
        self._multiplies_pairs = pair_attention.attends(dtype, spec.head_dim)
        self._prefills: list[tuple[RowView, torch.Tensor]] = []
        """Rows that are too large for tiles and the slots they read."""

    def begin(self, rows: Sequence[RowView]) -> None:
        """See `Attention.begin`."""
        runs: Runs = []
        tiles = []
        self._prefills = []
        for row in rows:
            end = row.start + row.num_tokens
            if self._is_large(row):
                whole = RowView(0, end, 0, row.block_table)
                self._prefills.append((row, torch.tensor(row_slots([whole], self.block_tokens))))
                continue
            first_run = len(runs)
            runs += slot_runs(row.block_table, end, self.block_tokens)
            for first in range(0, row.num_tokens, self._tile_tokens):
                last = min(first + self._tile_tokens, row.num_tokens)
                tokens = (row.offset + first, row.offset + last)
                tiles.append((*tokens, row.start + first, first_run, len(runs)))
        slots = row_slots(rows, self.block_tokens)
        self._plan = Plan(*(torch.tensor(x, dtype=torch.int64) for x in (slots, tiles, runs)))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention.attend`."""
        assert self._plan is not None, "a step begins before its layers attend"
        stored = self._kv[layer]
        scaled = self._plan.store(queries, keys, values, self._scale, stored)
        output = self._plan.attend(scaled, stored).to(queries.dtype)
        for row, slots in self._prefills:
            span = slice(row.offset, row.offset + row.num_tokens)
            if self._multiplies_pairs:
                # [slots, K, D]
                stored_keys, stored_values = stored.permute(1, 2, 0, 3)
                pair_attention.attend(
                    queries[span], stored_keys, stored_values, slots, row.start + 1, output[span]
                )
            else:
                _attend_long(scaled[span], stored, slots, output[span])
        return output

    def _is_large(self, row: RowView) -> bool:
        if self._multiplies_pairs:
            return row.num_tokens >= PAIR_TOKENS
        return row.num_tokens >= LONG_TOKENS and row.start + row.num_tokens >= LONG_POSITIONS


def _attend_long(
    queries: torch.Tensor, stored: torch.Tensor, slots: torch.Tensor, output: torch.Tensor
) -> None:
    """Let scaled queries [T, H, D] attend to `slots` of one layer, of which they are the last.

    Scores are products in float32; values are weighed in the dtype they have, as fused kernels do.
    """
    tokens, heads, width = queries.shape
    start = len(slots) - tokens
    later = torch.ones(LONG_QUERIES, LONG_QUERIES, dtype=torch.bool).triu(1)
    # Heads that share keys become more queries of one head.
    shape = (tokens, len(stored), heads // len(stored), width)
    queries, output = queries.view(shape), output.view(shape)
    for head, (keys, values) in enumerate(stored):
        score, values = Linear(keys[slots].float()), values[slots]
        for first in range(0, tokens, LONG_QUERIES):
            some = queries[first : first + LONG_QUERIES, head]
            own, end = start + first, start + first + len(some)
            scores = score(some.reshape(-1, width))[:, :end].contiguous()
            hidden = later[: len(some), None, : len(some)]
            scores.view(*some.shape[:2], end)[..., own:].masked_fill_(hidden, float(LOWEST))
            mixed = multiplier(values[:end])(softmax_(scores).to(values.dtype))
            output[first : first + len(some), head] = mixed.view(some.shape)
