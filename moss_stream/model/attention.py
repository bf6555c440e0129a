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
            queries: [T, H, D].
            keys: [T, K, D], rotated.
            values: [T, K, D].

        Returns:
            [T, H, D] in the dtype of `queries`.
        """
        ...


def slot_runs(
    block_table: Sequence[int], num_positions: int, block_tokens: int
) -> list[tuple[int, int]]:
    """Slots of the first `num_positions` positions, as (first slot, length) of contiguous runs."""
    runs: list[tuple[int, int]] = []
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


class CpuAttention:
    """Attention in float32 over KV kept in the weights' dtype.

    The bfloat16 kernels have no fast path for a single row: one query over 400 positions of the
    small decoder takes 160 to 220 microseconds in bfloat16 and 26 in float32 (Zen 4, torch 2.13).
    So what a row reads is widened to float32 on the way, into memory small enough to stay in
    cache; kept in float32 it would be twice as much to fetch, and with eight streams fetching is
    what decoding waits for. KV that is float32 and in one run is read where it lies.

    A row's own tokens are attended to apart from its past and the two are joined by their
    log-sum-exp, so no mask is ever built.

    Args:
        spec: Decoder sizes.
        num_blocks: Blocks of memory.
        block_tokens: Positions in a block.
        dtype: dtype of the KV memory.
    """

    def __init__(
        self, spec: DecoderSpec, num_blocks: int, block_tokens: int, *, dtype: torch.dtype
    ) -> None:
        self.block_tokens = block_tokens
        num_slots = num_blocks * block_tokens
        shape = (spec.num_layers, 2, spec.num_kv_heads, num_slots, spec.head_dim)
        self._kv = torch.empty(shape, dtype=dtype)
        self._wide = torch.empty((2, spec.num_kv_heads, 0, spec.head_dim))
        """Keys and values of one row's past in float32."""
        self._group = spec.num_heads // spec.num_kv_heads
        self._rows: list[tuple[RowView, list[tuple[int, int]]]] = []
        self._slots = torch.empty(0, dtype=torch.int64)

    def begin(self, rows: Sequence[RowView]) -> None:
        """See `Attention.begin`."""
        self._slots = torch.tensor(row_slots(rows, self.block_tokens), dtype=torch.int64)
        self._rows = []
        for row in rows:
            # A single token may look at everything up to itself: no causal part is needed.
            past = row.start + 1 if row.num_tokens == 1 else row.start
            self._rows.append((row, slot_runs(row.block_table, past, self.block_tokens)))
            if past > self._wide.shape[2]:
                self._wide = self._wide.new_empty(
                    (2, self._wide.shape[1], 2 * past, self._wide.shape[3])
                )

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention.attend`."""
        dtype = queries.dtype
        stored = self._kv[layer]
        stored[0].index_copy_(1, self._slots, keys.transpose(0, 1))
        stored[1].index_copy_(1, self._slots, values.transpose(0, 1))
        queries, keys, values = (x.float().transpose(0, 1) for x in (queries, keys, values))
        output = torch.empty_like(queries)
        for row, runs in self._rows:
            span = slice(row.offset, row.offset + row.num_tokens)
            query = queries[:, span]
            pieces = [self._past(query, *self._read(stored, runs))] if runs else []
            if row.num_tokens > 1:
                pieces.append(self._self(query, keys[:, span], values[:, span]))
            output[:, span] = join_pieces(pieces)
        return output.transpose(0, 1).to(dtype)

    def _read(self, stored: torch.Tensor, runs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Read `runs` of one layer [2, K, slots, D] as float32 keys and values [2, K, L, D]."""
        if len(runs) == 1 and stored.dtype == torch.float32:
            at, length = runs[0]
            return stored[:, :, at : at + length]
        end = 0
        for at, length in runs:
            self._wide[:, :, end : end + length].copy_(stored[:, :, at : at + length])
            end += length
        return self._wide[:, :, :end]

    def _past(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend to positions that all lie before the row: query [H, T, D], keys [K, L, D]."""
        heads, tokens, _ = query.shape
        # Heads that share keys become more queries of one head: cheaper than repeating the keys.
        folded = query.reshape(heads // self._group, self._group * tokens, -1)
        out, lse = _flash(folded, keys, values, causal=False)
        return out.reshape(query.shape), lse.reshape(heads, tokens)

    def _self(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend to the row's own tokens, causally: query [H, T, D], keys [K, T, D]."""
        keys, values = (x.repeat_interleave(self._group, dim=0) for x in (keys, values))
        return _flash(query, keys, values, causal=True)


def _flash(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention [H, T, D] and its log-sum-exp [H, T], which the public function keeps back."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query[None], keys[None], values[None], 0.0, causal
    )
    return out[0], lse[0]


def join_pieces(pieces: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Combine attention over disjoint sets of keys into attention over all of them.

    Args:
        pieces: Pairs of output [H, T, D] and log-sum-exp [H, T].

    Returns:
        [H, T, D].
    """
    if len(pieces) == 1:
        return pieces[0][0]
    weights = torch.softmax(torch.stack([lse for _, lse in pieces]), dim=0)
    outputs = torch.stack([out for out, _ in pieces])
    return (outputs * weights[..., None]).sum(0)
