"""The products of attention on CPU, compiled for the machine at hand.

A query reads its keys and values once, where they lie and in the dtype they are kept in, while a
running maximum keeps the softmax exact (Dao et al., FlashAttention, 2022). torch's own operators
have to widen bfloat16 into memory first and take a dozen calls a sequence for it.

Work is divided into tiles: up to `TILE_QUERIES` queries of one sequence and one KV head. Whoever
is free takes the next, so a tile's outcome depends on no other and on no number of threads.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from moss_stream.model.kernels.compiled import (
    F32,
    LOWEST,
    OPTIONS,
    claim,
    exp,
    highest,
    run,
    wide,
    work,
)

TILE_QUERIES = 64
"""Queries of a tile: so many share what is fetched."""
TILE_POSITIONS = 128
"""Positions that are read at one time: their scores stay in cache."""
SHARED_TOKENS = 16
"""Tokens a thread stores at one time; of fewer, one thread does it all."""
SCRATCH = 4 * TILE_POSITIONS + 2 * TILE_QUERIES
"""float32 numbers a thread needs: scores of four queries, and of each query a maximum and a sum."""


@numba.njit(**OPTIONS)
def _score_one(query, keys, scores):
    """Products of query [D] with keys [P, D], to scores [P]."""
    for j in range(len(scores)):
        key = keys[j]
        a = F32(0)
        for d in range(len(query)):
            a += query[d] * wide(key[d])
        scores[j] = a


@numba.njit(**OPTIONS)
def _score_four(query_a, query_b, query_c, query_d, keys, scores):
    """Products of four queries [D] with keys [P, D], to scores [4, P]: fetches each key once."""
    for j in range(scores.shape[1]):
        key = keys[j]
        a, b, c, d = F32(0), F32(0), F32(0), F32(0)
        for i in range(len(query_a)):
            x = wide(key[i])
            a += query_a[i] * x
            b += query_b[i] * x
            c += query_c[i] * x
            d += query_d[i] * x
        scores[0, j], scores[1, j], scores[2, j], scores[3, j] = a, b, c, d


@numba.njit(**OPTIONS)
def _weigh(scores, readable, top, total, output):
    """Turn scores [P], of which the first `readable` count, into weights relative to a maximum.

    Returns the new maximum and sum of weights; the output [D] so far is put in proportion.
    """
    new_top = highest(scores[:readable], top)
    shrunk = exp(top - new_top)
    total *= shrunk
    for j in range(readable):
        weight = exp(scores[j] - new_top)
        scores[j] = weight
        total += weight
    scores[readable:] = 0
    if shrunk != F32(1):
        for d in range(len(output)):
            output[d] *= shrunk
    return new_top, total


@numba.njit(**OPTIONS)
def _mix_one(weights, values, output):
    """Add values [P, D] by weights [P] to output [D]."""
    count = len(weights)
    j = 0
    while j + 4 <= count:
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        value_a, value_b, value_c, value_d = values[j], values[j + 1], values[j + 2], values[j + 3]
        for i in range(len(output)):
            output[i] += (
                a * wide(value_a[i])
                + b * wide(value_b[i])
                + c * wide(value_c[i])
                + d * wide(value_d[i])
            )
        j += 4
    while j < count:
        a, value_a = weights[j], values[j]
        for i in range(len(output)):
            output[i] += a * wide(value_a[i])
        j += 1


@numba.njit(**OPTIONS)
def _mix_four(weights, values, output_a, output_b, output_c, output_d):
    """Add values [P, D] by weights [4, P] to four outputs [D]: fetches each value once."""
    count = weights.shape[1]
    j = 0
    while j + 2 <= count:
        a, b, c, d = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
        e, f, g, h = weights[0, j + 1], weights[1, j + 1], weights[2, j + 1], weights[3, j + 1]
        first, second = values[j], values[j + 1]
        for i in range(len(output_a)):
            x, y = wide(first[i]), wide(second[i])
            output_a[i] += a * x + e * y
            output_b[i] += b * x + f * y
            output_c[i] += c * x + g * y
            output_d[i] += d * x + h * y
        j += 2
    if j < count:
        a, b, c, d = weights[0, j], weights[1, j], weights[2, j], weights[3, j]
        first = values[j]
        for i in range(len(output_a)):
            x = wide(first[i])
            output_a[i] += a * x
            output_b[i] += b * x
            output_c[i] += c * x
            output_d[i] += d * x


@numba.njit(**OPTIONS)
def _read(queries, head, group, keys, values, readable, scores, top, total, output):
    """Let the queries of a tile read some positions.

    Args:
        queries: [T, H, D], other heads among them.
        head: First head of the tile.
        group: How many heads share the KV head.
        keys: [P, D], P <= TILE_POSITIONS.
        values: [P, D].
        readable: How many of the positions the first token may read, negative if they are later;
            each next token may read one more.
        scores: Scratch [4, TILE_POSITIONS].
        top: [T * group] the maximum so far.
        total: [T * group] the sum of weights so far.
        output: [T, H, D] the weighted sum so far.
    """
    # Whole arrays and indices: of a slice of heads the compiler does not know that rows are dense.
    count = len(queries) * group
    n = 0
    while n < count:
        together = 4 if n + 4 <= count else 1
        reach = min(len(keys), readable + (n + together - 1) // group)
        if reach > 0:
            some = scores[:, :reach]
            a = n // group, head + n % group
            b = (n + 1) // group, head + (n + 1) % group
            c = (n + 2) // group, head + (n + 2) % group
            d = (n + 3) // group, head + (n + 3) % group
            if together == 4:
                _score_four(queries[a], queries[b], queries[c], queries[d], keys, some)
            else:
                _score_one(queries[a], keys, some[0])
            for at in range(n, n + together):
                row = output[at // group, head + at % group]
                seen = max(0, min(len(keys), readable + at // group))
                top[at], total[at] = _weigh(some[at - n], seen, top[at], total[at], row)
            if together == 4:
                _mix_four(some, values, output[a], output[b], output[c], output[d])
            else:
                _mix_one(some[0], values, output[a])
        n += together


@numba.njit(**OPTIONS)
def _attend_tile(queries, head, group, stored, first_position, runs, scratch, output):
    """Let the queries of a tile attend.

    Args:
        queries: See `_read`.
        head: See `_read`.
        group: See `_read`.
        stored: [2, slots, D] keys and values of the tile's KV head.
        first_position: Of the first query's token.
        runs: [R, 2] first slot and length of the sequence's contiguous slots.
        scratch: [SCRATCH].
        output: See `_read`.
    """
    tokens = len(queries)
    scores = scratch[: 4 * TILE_POSITIONS].reshape(4, TILE_POSITIONS)
    top = scratch[4 * TILE_POSITIONS : 4 * TILE_POSITIONS + TILE_QUERIES]
    total = scratch[4 * TILE_POSITIONS + TILE_QUERIES :]
    top[:] = LOWEST
    total[:] = 0
    output[:, head : head + group] = 0
    position, end_position = 0, first_position + tokens
    for r in range(len(runs)):
        at = runs[r, 0]
        end = at + min(runs[r, 1], end_position - position)
        while at < end:
            to = min(at + TILE_POSITIONS, end)
            keys, values = stored[0, at:to], stored[1, at:to]
            readable = first_position + 1 - position
            _read(queries, head, group, keys, values, readable, scores, top, total, output)
            position += to - at
            at = to
    for n in range(tokens * group):
        row = output[n // group, head + n % group]
        share = F32(1) / total[n]
        for d in range(len(row)):
            row[d] *= share


@numba.njit(**OPTIONS)
def _attend_work(addresses, number):
    """Attend to tiles until none is left: called by every thread of a team at the same time.

    Args:
        addresses: See `Plan.attend`.
        number: Type of the numbers that are stored.
    """
    at = numba.carray(addresses, 8)
    tokens, heads, width, kv_heads, slots, num_tiles, num_runs, threads = numba.carray(
        at[0], 8, np.int64
    )
    next_scratch = numba.carray(at[1], 2, np.int64)
    next_tile = next_scratch[1:]
    tiles = numba.carray(at[2], (num_tiles, 5), np.int64)
    runs = numba.carray(at[3], (num_runs, 2), np.int64)
    scratch = numba.carray(at[4], (threads, SCRATCH), np.float32)
    queries = numba.carray(at[5], (tokens, heads, width), np.float32)
    stored = numba.carray(at[6], (kv_heads, 2, slots, width), number)
    output = numba.carray(at[7], (tokens, heads, width), np.float32)
    group = heads // kv_heads
    mine = scratch[claim(next_scratch.ctypes)]
    while True:
        claimed = claim(next_tile.ctypes)
        if claimed >= kv_heads * num_tiles:
            return
        head, tile = claimed // num_tiles, tiles[claimed % num_tiles]
        first, last, position, first_run, end_run = tile[0], tile[1], tile[2], tile[3], tile[4]
        _attend_tile(
            queries[first:last],
            head * group,
            group,
            stored[head],
            position,
            runs[first_run:end_run],
            mine,
            output[first:last],
        )


@numba.njit(**OPTIONS)
def _store_work(addresses, number):
    """Store the keys and values of a step and scale its queries; see `Plan.store`."""
    at = numba.carray(addresses, 9)
    sizes = numba.carray(at[0], 8, np.int64)
    tokens, heads, width, kv_heads, slots = sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
    next_tokens = numba.carray(at[1], 2, np.int64)
    # A token's heads lie together, tokens a stride apart.
    queries = numba.carray(at[2], (tokens, sizes[5]), number)
    keys = numba.carray(at[3], (tokens, sizes[6]), number)
    values = numba.carray(at[4], (tokens, sizes[7]), number)
    places = numba.carray(at[5], tokens, np.int64)
    stored = numba.carray(at[6], (kv_heads, 2, slots, width), number)
    scale = numba.carray(at[7], 1, np.float32)[0]
    scaled = numba.carray(at[8], (tokens, heads * width), np.float32)
    while True:
        first = SHARED_TOKENS * claim(next_tokens.ctypes)
        if first >= tokens:
            return
        for head in range(kv_heads):
            for t in range(first, min(first + SHARED_TOKENS, tokens)):
                key, value, place = keys[t], values[t], places[t]
                own_key, own_value = stored[head, 0, place], stored[head, 1, place]
                # Loops, as assigning slices takes three times as long.
                for d in range(width):
                    own_key[d] = key[head * width + d]
                for d in range(width):
                    own_value[d] = value[head * width + d]
        for t in range(first, min(first + SHARED_TOKENS, tokens)):
            query, output = queries[t], scaled[t]
            for d in range(len(output)):
                output[d] = wide(query[d]) * scale


def _store_bfloat16(addresses):
    _store_work(addresses, np.uint16)


def _store_float32(addresses):
    _store_work(addresses, np.float32)


def _attend_bfloat16(addresses):
    _attend_work(addresses, np.uint16)


def _attend_float32(addresses):
    _attend_work(addresses, np.float32)


class Kernels(NamedTuple):
    """What is compiled for one dtype of KV."""

    store: Any
    attend: Any


@functools.cache
def compiled(dtype: torch.dtype) -> Kernels:
    """Compile for one dtype, or find what was compiled before."""
    return Kernels(
        store=work(dtype, bfloat16=_store_bfloat16, float32=_store_float32),
        attend=work(dtype, bfloat16=_attend_bfloat16, float32=_attend_float32),
    )


class Plan:
    """Which tiles there are in a step and where their sequences lie; the same in every layer.

    Args:
        slots: [T] int64 where each packed token's keys and values are stored.
        tiles: [N, 5] int64, of each tile the first and past its last packed token, the first
            token's position, the first and past the last of its sequence's runs.
        runs: [R, 2] int64 first slot and length of contiguous slots, in order of position.
    """

    def __init__(self, slots: torch.Tensor, tiles: torch.Tensor, runs: torch.Tensor) -> None:
        self._slots, self._tiles, self._runs = slots, tiles, runs
        self._threads = torch.get_num_threads()
        self._scratch = torch.empty(self._threads, SCRATCH)

    def store(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: torch.Tensor,
        stored: torch.Tensor,
    ) -> torch.Tensor:
        """Store a step's keys and values.

        Args:
            queries: [T, H, D]; this, keys and values have the dtype of `stored`, and each token's
                heads lie together.
            keys: [T, K, D].
            values: [T, K, D].
            scale: [1] float32.
            stored: [K, 2, slots, D] keys and values of one layer.

        Returns:
            The queries scaled, [T, H, D] float32.

        Raises:
            ValueError: Queries, keys or values are not as said.
        """
        given = (queries, keys, values)
        if any(x.dtype != stored.dtype or x.stride()[1:] != (x.shape[2], 1) for x in given):
            raise ValueError("another dtype than the KV's, or a token's heads do not lie together")
        tokens, kv_heads, _ = keys.shape
        scaled = torch.empty(queries.shape)
        sizes = (*queries.shape, kv_heads, stored.shape[2], *(x.stride(0) for x in given))
        threads = self._threads if tokens >= SHARED_TOKENS else 1
        arrays = (*given, self._slots, stored, scale, scaled)
        run(compiled(stored.dtype).store, threads, sizes, arrays)
        return scaled

    def attend(self, queries: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        """Attend causally.

        Args:
            queries: [T, H, D] float32, scaled.
            stored: [K, 2, slots, D] keys and values of one layer, the step's own among them.

        Returns:
            [T, H, D] float32.
        """
        output = torch.empty_like(queries)
        kv_heads, _, slots, _ = stored.shape
        sizes = (*queries.shape, kv_heads, slots, len(self._tiles), len(self._runs), self._threads)
        arrays = (self._tiles, self._runs, self._scratch, queries, stored, output)
        run(compiled(stored.dtype).attend, self._threads, sizes, arrays)
        return output
