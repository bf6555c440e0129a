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


SCORED_TOKENS = 64
"""Queries of one row that attend at one time on CPU."""


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

    Plain products and softmax, a few queries at a time so that their scores stay in cache: torch's
    fused kernel takes 1.1 to 1.7 times as long in float32, and for a single query in bfloat16 six
    to eight times (two Zen 5 cores, torch 2.13).

    With several streams, decoding waits for memory, so bfloat16 is fetched and widened in cache. A
    head's keys and values lie together for that: copying and multiplying then give a head to the
    same core. At eight streams of 1000 positions that takes 0.54 of the time of float32 KV read in
    place, and 0.34 of the time of keys and values that lie apart. KV that is float32 and in one run
    is read where it lies.

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
        shape = (spec.num_layers, spec.num_kv_heads, 2, num_slots, spec.head_dim)
        self._kv = torch.empty(shape, dtype=dtype)
        self._wide = torch.empty((spec.num_kv_heads, 2, 0, spec.head_dim))
        """Keys and values of one row in float32."""
        self._scale = spec.head_dim**-0.5
        self._rows: list[tuple[RowView, list[tuple[int, int]]]] = []
        self._slots = torch.empty(0, dtype=torch.int64)
        self._future = torch.full((SCORED_TOKENS, SCORED_TOKENS), -torch.inf).triu(1)
        """What is added to scores of tokens with each other: -inf where a key comes later."""

    def begin(self, rows: Sequence[RowView]) -> None:
        """See `Attention.begin`."""
        self._slots = torch.tensor(row_slots(rows, self.block_tokens), dtype=torch.int64)
        self._rows = []
        for row in rows:
            length = row.start + row.num_tokens
            self._rows.append((row, slot_runs(row.block_table, length, self.block_tokens)))
            heads, _, room, width = self._wide.shape
            if length > room:
                self._wide = self._wide.new_empty((heads, 2, 2 * length, width))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention.attend`."""
        stored = self._kv[layer]
        new = torch.stack((keys, values), dim=2).transpose(0, 1)
        stored.index_copy_(2, self._slots, new.transpose(1, 2))
        scaled = (queries.float() * self._scale).transpose(0, 1)
        output = torch.empty_like(scaled)
        for row, runs in self._rows:
            known_keys, known_values = self._read(stored, runs).unbind(1)
            for first in range(0, row.num_tokens, SCORED_TOKENS):
                last = min(first + SCORED_TOKENS, row.num_tokens)
                span = slice(row.offset + first, row.offset + last)
                known = slice(row.start + last)
                output[:, span] = self._mix(
                    scaled[:, span], known_keys[:, known], known_values[:, known]
                )
        return output.transpose(0, 1).to(queries.dtype)

    def _read(self, stored: torch.Tensor, runs: Sequence[tuple[int, int]]) -> torch.Tensor:
        """Read `runs` of one layer [K, 2, slots, D] as float32 keys and values [K, 2, L, D]."""
        if len(runs) == 1 and stored.dtype == torch.float32:
            at, length = runs[0]
            return stored[:, :, at : at + length]
        end = 0
        for at, length in runs:
            self._wide[:, :, end : end + length].copy_(stored[:, :, at : at + length])
            end += length
        return self._wide[:, :, :end]

    def _mix(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend with scaled queries [H, T, D] that are the last T positions of keys [K, L, D]."""
        heads, tokens, width = queries.shape
        groups, length, _ = keys.shape
        # Heads that share keys become more queries of one head: cheaper than repeating the keys.
        scores = torch.bmm(queries.reshape(groups, -1, width), keys.transpose(1, 2))
        if tokens > 1:
            own = scores.view(groups, -1, tokens, length)[..., length - tokens :]
            own += self._future[:tokens, :tokens]
        return torch.bmm(torch.softmax(scores, dim=-1), values).view(heads, tokens, width)
