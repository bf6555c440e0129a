"""KV memory and attention behind one interface, and its CPU backend.

The engine hands every backend the same description of a step: which rows there are, which slots
they write, and where each row's earlier positions lie. A backend owns the KV memory and decides
how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
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
WIDE_POSITIONS = 1024
"""Positions that a few queries read at one time on CPU: so many stay in cache when widened."""


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
            queries: [T, H, D].
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


_BOTH, _KEYS, _VALUES = slice(0, 2), slice(0, 1), slice(1, 2)


class CpuAttention:
    """Attention in float32 over KV kept in the weights' dtype.

    Plain products and softmax, a few queries at a time so that their scores stay in cache: torch's
    fused kernel takes 1.1 to 1.7 times as long in float32, and for a single query in bfloat16 six
    to eight times (two Zen 5 cores, torch 2.13).

    With several streams, decoding waits for memory, so bfloat16 is fetched and widened in cache,
    some positions at a time. A head's keys and values lie together for that: copying and
    multiplying then give a head to the same core. At eight streams of 1000 positions that takes
    0.54 of the time of float32 KV read in place, and 0.34 of the time of keys and values that lie
    apart; at 15000 positions, parts that stay in cache take 0.4 of the time of all at once. KV that
    is float32 and in one run is read where it lies.

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
        """Keys and values of one row, or of a part of it, in float32."""
        self._scale = spec.head_dim**-0.5
        self._rows: list[tuple[RowView, list[Runs]]] = []
        self._slots = torch.empty(0, dtype=torch.int64)
        self._future = torch.full((SCORED_TOKENS, SCORED_TOKENS), -torch.inf).triu(1)
        """What is added to scores of tokens with each other: -inf where a key comes later."""

    def begin(self, rows: Sequence[RowView]) -> None:
        """See `Attention.begin`."""
        self._slots = torch.tensor(row_slots(rows, self.block_tokens), dtype=torch.int64)
        self._rows = []
        for row in rows:
            length = row.start + row.num_tokens
            runs = slot_runs(row.block_table, length, self.block_tokens)
            # The many queries of a prefill are worth it to widen everything once.
            size = WIDE_POSITIONS if row.num_tokens <= SCORED_TOKENS else length
            self._rows.append((row, _parts(runs, size)))
            heads, _, room, width = self._wide.shape
            if min(size, length) > room:
                self._wide = self._wide.new_empty((heads, 2, 2 * min(size, length), width))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention.attend`."""
        stored = self._kv[layer]
        new = torch.stack((keys, values), dim=2).transpose(0, 1)
        stored.index_copy_(2, self._slots, new.transpose(1, 2))
        scaled = (queries.float() * self._scale).transpose(0, 1)
        output = torch.empty_like(scaled)
        for row, parts in self._rows:
            span = slice(row.offset, row.offset + row.num_tokens)
            if row.num_tokens > SCORED_TOKENS:
                output[:, span] = self._mix_many(scaled[:, span], stored, parts[0])
            elif len(parts) > 1:
                output[:, span] = self._mix_parts(scaled[:, span], stored, parts)
            else:
                known_keys, known_values = self._read(stored, parts[0], _BOTH).unbind(1)
                output[:, span] = self._mix(scaled[:, span], known_keys, known_values)
        return output.transpose(0, 1).to(queries.dtype)

    def _read(self, stored: torch.Tensor, runs: Runs, which: slice) -> torch.Tensor:
        """Read `which` of keys and values of one layer [K, 2, slots, D] as float32 [K, n, L, D]."""
        if len(runs) == 1 and stored.dtype == torch.float32:
            at, length = runs[0]
            return stored[:, which, at : at + length]
        end = 0
        for at, length in runs:
            wide = self._wide[:, which, end : end + length]
            wide.copy_(stored[:, which, at : at + length])
            end += length
        return self._wide[:, which, :end]

    def _mix_many(self, queries: torch.Tensor, stored: torch.Tensor, runs: Runs) -> torch.Tensor:
        """Attend with scaled queries [H, T, D], a few at a time, that end `runs` of one layer.

        Scores are products in float32; values are weighed in the dtype they have, as fused kernels
        do, which takes a third off in bfloat16.
        """
        keys = self._read(stored, runs, _KEYS)[:, 0]
        pieces = [stored[:, 1, at : at + length] for at, length in runs]
        values = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        mixed = torch.empty_like(queries)
        start = keys.shape[1] - queries.shape[1]
        for first in range(0, queries.shape[1], SCORED_TOKENS):
            some = queries[:, first : first + SCORED_TOKENS]
            known = slice(start + first + some.shape[1])
            mixed[:, first : first + SCORED_TOKENS] = self._mix(
                some, keys[:, known], values[:, known]
            )
        return mixed

    def _mix_parts(
        self, queries: torch.Tensor, stored: torch.Tensor, parts: Sequence[Runs]
    ) -> torch.Tensor:
        """Attend with scaled queries [H, T, D] that are the last T positions of `parts`."""
        by_key = self._by_key_head(queries)
        keys = (self._read(stored, runs, _KEYS)[:, 0] for runs in parts)
        scores = [torch.bmm(by_key, some.transpose(1, 2)) for some in keys]
        weights = self._weigh(torch.cat(scores, dim=-1), queries.shape[1])
        values = (self._read(stored, runs, _VALUES)[:, 0] for runs in parts)
        shares = torch.split(weights, [some.shape[-1] for some in scores], dim=-1)
        return reduce(torch.add, map(torch.bmm, shares, values)).view(queries.shape)

    def _mix(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend with scaled queries [H, T, D] that are the last T positions of keys [K, L, D]."""
        scores = torch.bmm(self._by_key_head(queries), keys.transpose(1, 2))
        weights = self._weigh(scores, queries.shape[1]).to(values.dtype)
        return torch.bmm(weights, values).view(queries.shape)

    def _by_key_head(self, queries: torch.Tensor) -> torch.Tensor:
        """Make heads that share keys more queries of one head: cheaper than repeating the keys."""
        return queries.reshape(self._kv.shape[1], -1, queries.shape[-1])

    def _weigh(self, scores: torch.Tensor, tokens: int) -> torch.Tensor:
        """Softmax of scores [K, H/K * T, L] without what lies in a query's future."""
        if tokens > 1:
            own = scores.view(len(scores), -1, tokens, scores.shape[-1])[..., -tokens:]
            own += self._future[:tokens, :tokens]
        return torch.softmax(scores, dim=-1)


def _parts(runs: Runs, size: int) -> list[Runs]:
    """Divide runs into parts of `size` positions; the last may have fewer."""
    parts: list[Runs] = []
    room = 0
    for at, length in runs:
        end = at + length
        while at < end:
            if not room:
                parts.append([])
                room = size
            count = min(end - at, room)
            parts[-1].append((at, count))
            at, room = at + count, room - count
    return parts
