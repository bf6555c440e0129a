"""Attention of many queries in bfloat16, where the machine multiplies pairs (`pair_products`).

A thread takes a KV head and some of its queries at a time. It lays out the keys and values as
pairs, for itself: so they lie in its own cache. Then a few queries at a time score all they may
read, soften the scores, which stay in cache in float32, and mix the values by weights in bfloat16.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch

from moss_stream.model.kernels.compiled import F32, LOWEST, OPTIONS, build, claim, narrow, run
from moss_stream.model.kernels.pair_products import (
    COLUMNS,
    ROWS,
    multiplies_pairs,
    multiply_pairs,
    soften_pairs,
)

TASKS_PER_THREAD = 2
"""At least, as threads are not equally fast: where there are fewer KV heads, several threads lay
out the same."""
FAR = 1 << 40
"""More numbers than any tensor has, for arrays whose end is not known to what reads them."""


@numba.njit(**OPTIONS)
def _lay_out_keys(keys, slots, stride, pairs):
    """Lay out a head's keys.

    Args:
        keys: Flat, two numbers each.
        slots: [P] of the positions.
        stride: From a slot to the next.
        pairs: Output [panels, D / 2, COLUMNS] of numbers that follow each other.
    """
    for p in range(len(slots)):
        first = slots[p] * stride
        panel, column = pairs[p // COLUMNS], p % COLUMNS
        for i in range(len(panel)):
            panel[i, column] = keys[first + i]


@numba.njit(**OPTIONS)
def _lay_out_values(values, slots, stride, pairs):
    """Lay out a head's values.

    Args:
        values: Flat.
        slots: See `_lay_out_keys`.
        stride: See `_lay_out_keys`.
        pairs: Output [panels * COLUMNS / 2, D] of numbers that stand below each other; 0 where
            there are no positions any more.
    """
    count, width = len(slots), pairs.shape[1]
    for p in range(0, count - 1, 2):
        pair = pairs[p // 2]
        # Slices, as the compiler makes no vectors of sums of indices.
        upper = values[slots[p] * stride : slots[p] * stride + width]
        lower = values[slots[p + 1] * stride : slots[p + 1] * stride + width]
        for d in range(width):
            pair[d] = np.uint32(upper[d]) | (np.uint32(lower[d]) << np.uint32(16))
    pairs[count // 2 :] = 0
    if count % 2 == 1:
        pairs[count // 2] = values[slots[-1] * stride : slots[-1] * stride + width]


@numba.njit(**OPTIONS)
def _attend_few(queries, readable, key_pairs, value_pairs, scale, scores, weights, totals, mixed):
    """Let `ROWS` queries of one KV head attend.

    Args:
        queries: [ROWS, D].
        readable: [ROWS] how many positions each may read, at least one.
        key_pairs: [panels, D / 2, COLUMNS].
        value_pairs: [panels * COLUMNS / 2, D].
        scale: What scores are multiplied with.
        scores: Scratch [ROWS, panels * COLUMNS].
        weights: Scratch, likewise.
        totals: Output [ROWS] sums of weights.
        mixed: Output [ROWS, D] values by weights.
    """
    width, stride = queries.shape[1], scores.shape[1]
    depth = width // 2
    query_pairs, weight_pairs = queries.view(np.int32), weights.view(np.int32)
    panels = (readable.max() + COLUMNS - 1) // COLUMNS
    read = panels * COLUMNS
    for panel in range(panels):
        keys, own = key_pairs[panel].ctypes, scores[:, panel * COLUMNS :].ctypes
        multiply_pairs(query_pairs.ctypes, depth, keys, COLUMNS, depth, own, stride)
    for n in range(ROWS):
        scores[n, readable[n] : read] = LOWEST
        totals[n] = soften_pairs(scores[n].ctypes, read, scale, weights[n].ctypes)
    for d in range(0, width, COLUMNS):
        values, own = value_pairs[:, d:].ctypes, mixed[:, d:].ctypes
        multiply_pairs(weight_pairs.ctypes, stride // 2, values, width, read // 2, own, width)


@numba.njit(**OPTIONS)
def _place(query, group, stride, width):
    """Where a query of a KV head is: the heads that share one are more queries of it."""
    return query // group * stride + query % group * width


def _work(addresses):
    """Do tasks until none is left: called by every thread of a team at the same time.

    Args:
        addresses: See `attend`.
    """
    at = numba.carray(addresses, 16)
    sizes = numba.carray(at[0], 11, np.int64)
    group, width, stride, output_stride = sizes[:4]
    kv_heads, kv_head_stride, kv_stride, count = sizes[4:8]
    num_queries, first_readable, part = sizes[8:]
    next_scratch = numba.carray(at[1], 2, np.int64)
    next_task = next_scratch[1:]
    queries = numba.carray(at[2], FAR, np.uint16)
    keys = numba.carray(at[3], FAR, np.uint32)
    values = numba.carray(at[4], FAR, np.uint16)
    slots = numba.carray(at[5], count, np.int64)
    scale = numba.carray(at[6], 1, np.float32)[0]
    output = numba.carray(at[7], FAR, np.uint16)
    thread = claim(next_scratch.ctypes)
    panels = (count + COLUMNS - 1) // COLUMNS
    key_pairs = numba.carray(at[8], (thread + 1, panels, width // 2, COLUMNS), np.uint32)[thread]
    value_pairs = numba.carray(at[9], (thread + 1, panels * COLUMNS // 2, width), np.uint32)[thread]
    few = numba.carray(at[10], (thread + 1, ROWS, width), np.uint16)[thread]
    readable = numba.carray(at[11], (thread + 1, ROWS), np.int64)[thread]
    scores = numba.carray(at[12], (thread + 1, ROWS, panels * COLUMNS), np.float32)[thread]
    weights = numba.carray(at[13], (thread + 1, ROWS, panels * COLUMNS), np.uint16)[thread]
    totals = numba.carray(at[14], (thread + 1, ROWS), np.float32)[thread]
    mixed = numba.carray(at[15], (thread + 1, ROWS, width), np.float32)[thread]
    parts = (num_queries + part - 1) // part
    laid_out = -1
    while True:
        task = claim(next_task.ctypes)
        if task >= kv_heads * parts:
            return
        head, first = task // parts, task % parts * part
        if head != laid_out:
            start = head * kv_head_stride
            _lay_out_keys(keys[start // 2 :], slots, kv_stride // 2, key_pairs)
            _lay_out_values(values[start:], slots, kv_stride, value_pairs)
            laid_out = head
        own_queries, own_output = queries[head * group * width :], output[head * group * width :]
        end = min(first + part, num_queries)
        for start in range(first, end, ROWS):
            for n in range(ROWS):
                query = min(start + n, end - 1)  # the last one again, to fill up
                place = _place(query, group, stride, width)
                few[n] = own_queries[place : place + width]
                readable[n] = min(first_readable + query // group, count)
            _attend_few(
                few, readable, key_pairs, value_pairs, scale, scores, weights, totals, mixed
            )
            for n in range(min(ROWS, end - start)):
                place = _place(start + n, group, output_stride, width)
                row, mix, share = own_output[place : place + width], mixed[n], F32(1) / totals[n]
                for d in range(width):
                    row[d] = narrow(mix[d] * share, row[d])


@functools.cache
def compiled() -> Any:
    """Compile, or find what was compiled before."""
    return build(_work)


def attends(dtype: torch.dtype, width: int) -> bool:
    """Whether `attend` is for heads of such a width in that dtype on this machine."""
    return dtype == torch.bfloat16 and width % COLUMNS == 0 and multiplies_pairs()


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    slots: torch.Tensor,
    first_readable: int,
    output: torch.Tensor,
) -> None:
    """Let queries attend to positions, each to one more than the one before.

    Args:
        queries: [T, H, D]; like the others in bfloat16, on CPU, and a head's numbers follow each
            other. See `attends`.
        keys: [N, K, D].
        values: [N, K, D], with the strides of `keys`.
        slots: [P] int64, at which of the N each position is.
        first_readable: How many positions the first query may read, at least one. From P on, each
            may read all.
        output: [T, H, D], where the outcome is written to.

    Raises:
        ValueError: A tensor is not as said.
    """
    tokens, heads, width = queries.shape
    given = (queries, keys, values, output)
    if any(x.dtype != torch.bfloat16 or x.stride(2) != 1 for x in given):
        raise ValueError("not in bfloat16, or the numbers of a head do not follow each other")
    if any(x.stride(1) != width for x in (queries, output)) or width % COLUMNS:
        raise ValueError(f"heads of {width} must follow each other and be multiples of {COLUMNS}")
    if keys.stride() != values.stride() or keys.stride(0) % 2 or keys.stride(1) % 2:
        raise ValueError(f"keys and values have strides {keys.stride()} and {values.stride()}")
    threads = torch.get_num_threads()
    kv_heads, count = keys.shape[1], len(slots)
    group = heads // kv_heads
    num_queries = tokens * group
    part = -(-num_queries // -(-TASKS_PER_THREAD * threads // kv_heads))
    read = -(-count // COLUMNS) * COLUMNS
    scratch = (
        torch.empty(threads, width // 2, read, dtype=torch.int32),  # pairs of keys
        torch.empty(threads, read // 2, width, dtype=torch.int32),  # pairs of values
        torch.empty(threads, ROWS, width, dtype=torch.bfloat16),  # queries
        torch.empty(threads, ROWS, dtype=torch.int64),  # how many positions each may read
        torch.empty(threads, ROWS, read),  # scores
        torch.empty(threads, ROWS, read, dtype=torch.bfloat16),  # weights
        torch.empty(threads, ROWS),  # their sums
        torch.empty(threads, ROWS, width),  # values by weights
    )
    sizes = (
        *(group, width, queries.stride(0), output.stride(0)),
        *(kv_heads, keys.stride(1), keys.stride(0), count),
        *(num_queries, first_readable, part),
    )
    scale = torch.tensor([width**-0.5])
    run(compiled(), threads, sizes, (queries, keys, values, slots, scale, output, *scratch))
