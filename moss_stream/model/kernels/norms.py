"""RMS norms and rotary positions of packed rows: one pass over what torch takes a dozen for.

Rounds wherever torch's operators would, so bfloat16 comes out as it does from them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
import numpy as np
import torch

from moss_stream.model.kernels.compiled import F32, OPTIONS, claim, narrow, rounded, run, wide, work

CLAIMED_TOKENS = 4
"""Tokens a thread takes at one time."""
SHARED_TOKENS = 16
"""From so many tokens on, threads share the work; calling them costs as much as a few tokens."""


@numba.njit(**OPTIONS)
def _normalise(row, weight, eps, output):
    """RMS norm of row [D] to output [D]."""
    total = F32(0)
    for d in range(len(row)):
        x = wide(row[d])
        total += x * x
    share = F32(1) / np.sqrt(total / F32(len(row)) + eps)
    for d in range(len(row)):
        normed = rounded(wide(row[d]) * share, row[d])
        output[d] = narrow(normed * wide(weight[d]), row[d])


@numba.njit(**OPTIONS)
def _rotate(row, cos, sin):
    """Turn row [D] in place by the angles whose cosines and sines are given [D]."""
    half = len(row) // 2
    first, second = row[:half], row[half:]
    cos_first, cos_second, sin_first, sin_second = cos[:half], cos[half:], sin[:half], sin[half:]
    for d in range(half):
        x, y, like = wide(first[d]), wide(second[d]), first[d]
        a = rounded(x * wide(cos_first[d]), like) - rounded(y * wide(sin_first[d]), like)
        b = rounded(y * wide(cos_second[d]), like) + rounded(x * wide(sin_second[d]), like)
        first[d], second[d] = narrow(a, like), narrow(b, like)


@numba.njit(**OPTIONS)
def _norm_work(addresses, number):
    at = numba.carray(addresses, 6)
    tokens, width = numba.carray(at[0], 2, np.int64)
    next_tokens = numba.carray(at[1], 2, np.int64)
    rows = numba.carray(at[2], (tokens, width), number)
    weight = numba.carray(at[3], width, number)
    eps = numba.carray(at[4], 1, np.float32)[0]
    output = numba.carray(at[5], (tokens, width), number)
    while True:
        first = CLAIMED_TOKENS * claim(next_tokens.ctypes)
        if first >= tokens:
            return
        for t in range(first, min(first + CLAIMED_TOKENS, tokens)):
            _normalise(rows[t], weight, eps, output[t])


@numba.njit(**OPTIONS)
def _head_work(addresses, number):
    at = numba.carray(addresses, 8)
    tokens, all_heads, heads, width = numba.carray(at[0], 4, np.int64)
    next_tokens = numba.carray(at[1], 2, np.int64)
    rows = numba.carray(at[2], (tokens, all_heads, width), number)
    weight = numba.carray(at[3], (heads, width), number)
    eps = numba.carray(at[4], 1, np.float32)[0]
    cos = numba.carray(at[5], (tokens, width), number)
    sin = numba.carray(at[6], (tokens, width), number)
    output = numba.carray(at[7], (tokens, heads, width), number)
    while True:
        first = CLAIMED_TOKENS * claim(next_tokens.ctypes)
        if first >= tokens:
            return
        for t in range(first, min(first + CLAIMED_TOKENS, tokens)):
            for head in range(heads):
                _normalise(rows[t, head], weight[head], eps, output[t, head])
                _rotate(output[t, head], cos[t], sin[t])


def _norm_bfloat16(addresses):
    _norm_work(addresses, np.uint16)


def _norm_float32(addresses):
    _norm_work(addresses, np.float32)


def _heads_bfloat16(addresses):
    _head_work(addresses, np.uint16)


def _heads_float32(addresses):
    _head_work(addresses, np.float32)


class Kernels(NamedTuple):
    """What is compiled for one dtype."""

    norm: Any
    heads: Any


@functools.cache
def compiled(dtype: torch.dtype) -> Kernels:
    """Compile for one dtype, or find what was compiled before."""
    return Kernels(
        norm=work(dtype, bfloat16=_norm_bfloat16, float32=_norm_float32),
        heads=work(dtype, bfloat16=_heads_bfloat16, float32=_heads_float32),
    )


def _threads(tokens: int) -> int:
    return torch.get_num_threads() if tokens >= SHARED_TOKENS else 1


def _check(x: torch.Tensor, **others: torch.Tensor) -> None:
    """Compiled code reads on where a tensor ends."""
    for name, other in others.items():
        if (other.dtype, other.shape[-1]) != (x.dtype, x.shape[-1]):
            raise ValueError(f"{name} is {other.dtype} {list(other.shape)}, x {list(x.shape)}")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """See `model.norms.rms_norm`, on CPU."""
    _check(x, weight=weight)
    x = x.contiguous()
    output = torch.empty_like(x)
    run(compiled(x.dtype).norm, _threads(len(x)), x.shape, (x, weight, eps, output))
    return output


def rotate_heads(
    x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """See `model.norms.rotate_heads`, on CPU."""
    _check(x, weight=weight, cos=cos, sin=sin)
    x = x.contiguous()
    tokens, all_heads, width = x.shape
    output = x.new_empty(tokens, len(weight), width)
    sizes = (tokens, all_heads, len(weight), width)
    run(compiled(x.dtype).heads, _threads(tokens), sizes, (x, weight, eps, cos, sin, output))
    return output
