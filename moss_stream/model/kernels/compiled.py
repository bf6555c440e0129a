"""Functions compiled by numba for the machine at hand, and torch's own threads to run them.

For what torch has no operator for, or only one that takes several times as long.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

logger = logging.getLogger(__name__)

F32 = np.float32
Work = Callable[[Any], None]
LOWEST = F32(-1e30)
"""Below the scores of any sane model."""


OPTIONS = {"fastmath": True, "error_model": "numpy"}
"""How everything is compiled."""


@intrinsic
def claim(context: Any, counter: Any) -> Any:
    """Add one to a counter that threads share; returns what it was."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = target.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", arguments[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def wide(context: Any, stored: Any) -> Any:
    """float32 of a number as it is kept: of float32 itself, or of the bits of a bfloat16."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        word = ir.IntType(32)
        shifted = builder.shl(builder.zext(arguments[0], word), ir.Constant(word, 16))
        return builder.bitcast(shifted, ir.FloatType())

    return types.float32(stored), generate


@intrinsic
def narrow(context: Any, x: Any, like: Any) -> Any:
    """Bring a finite float32 into the form of `like`: the inverse of `wide`, to the nearest."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like == types.float32:
            return arguments[0]
        word = ir.IntType(32)
        sixteen, one, half = (ir.Constant(word, n) for n in (16, 1, 0x7FFF))
        bits = builder.bitcast(arguments[0], word)
        odd = builder.and_(builder.lshr(bits, sixteen), one)
        to_even = builder.add(builder.add(bits, half), odd)
        return builder.trunc(builder.lshr(to_even, sixteen), ir.IntType(16))

    return like(types.float32, like), generate


@numba.njit(**OPTIONS)
def rounded(x, like):
    """Round float32 to what the form of `like` can hold."""
    return wide(narrow(x, like))


@numba.njit(**OPTIONS)
def exp(x):
    """Exponential of at most 0, within 2e-7 and never 0; a loop over it becomes vectors."""
    x = max(x * F32(1.4426950408889634), F32(-126))
    whole = np.floor(x + F32(0.5))
    part = x - whole
    # Taylor series of 2 ** part.
    y = F32(1.5403530e-4)
    y = y * part + F32(1.3333558e-3)
    y = y * part + F32(9.6181291e-3)
    y = y * part + F32(5.5504109e-2)
    y = y * part + F32(2.4022651e-1)
    y = y * part + F32(6.9314718e-1)
    y = y * part + F32(1)
    exponent = np.int32((np.int32(whole) + np.int32(127)) * np.int32(1 << 23))
    return y * exponent.view(np.float32)


@numba.njit(**OPTIONS)
def _ordered(bits):
    """Integers in the order of the float32 whose bits they are, and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@numba.njit(**OPTIONS)
def highest(numbers, at_least):
    """Maximum of numbers [N] and of `at_least`."""
    # Of integers, which unlike floats are compared as vectors: 0.03 instead of 0.6 ns a number.
    top = _ordered(F32(at_least).view(np.int32))
    for j in range(len(numbers)):
        top = max(top, _ordered(F32(wide(numbers[j])).view(np.int32)))
    return np.int32(_ordered(top)).view(np.float32)


def _keeps_compiled_code() -> bool:
    """Whether numba finds a folder it may write to, beside this file or the user's."""
    try:
        numba.njit(cache=True)(_keeps_compiled_code)
    except RuntimeError:
        return False
    return True


@functools.cache
def _sources() -> str:
    """Digest of all that goes into compiled code, this folder's files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(function: Work) -> Any:
    """Compile what every thread of a team runs, called with the addresses that `run` gives.

    Takes seconds where it was never asked for before.
    """
    # numba looks only at the file of the function itself to see whether what it kept is old.
    function.__qualname__ = f"{function.__qualname__}_{_sources()}"
    signature = types.void(types.CPointer(types.voidptr))
    if _keeps_compiled_code():
        try:
            return numba.cfunc(signature, **OPTIONS, cache=True)(function)
        except Exception as cause:  # whatever a full disk or a damaged file may come to
            logger.warning("compiled code can be neither read nor kept: %s", cause)
    return numba.cfunc(signature, **OPTIONS)(function)


def work(dtype: torch.dtype, *, bfloat16: Work, float32: Work) -> Any:
    """Build for one dtype.

    Two functions and not one with a type as a free variable, because numba would find nothing of
    that again.

    Args:
        dtype: Of the tensors that are worked on.
        bfloat16: What to build for that dtype.
        float32: What to build for that one.
    """
    return build({torch.bfloat16: bfloat16, torch.float32: float32}[dtype])


@functools.cache
def _parallel() -> Any:
    """What runs a function on every thread of torch's own team: another team would be in its way.

    None where torch's OpenMP has no such function: one thread does all the work then.
    """
    try:
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except AttributeError:
        return None
    # The function, what it is called with, number of threads, flags.
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


def run(compiled: Any, threads: int, sizes: Sequence[int], arrays: Sequence[torch.Tensor]) -> None:
    """Run work on `threads` threads, of which one is the calling one.

    Args:
        compiled: By `build`. It finds the address of the sizes (int64), then of two counters at 0
            for `claim`, then of the arrays.
        threads: As many as the calling thread uses in torch, or 1.
        sizes: Numbers the work needs.
        arrays: Dense tensors on CPU.
    """
    numbers, counters = (ctypes.c_int64 * len(sizes))(*sizes), (ctypes.c_int64 * 2)()
    addresses = (ctypes.c_void_p * (2 + len(arrays)))(
        ctypes.addressof(numbers),
        ctypes.addressof(counters),
        *(array.data_ptr() for array in arrays),
    )
    parallel = _parallel() if threads > 1 else None
    if parallel is None:
        compiled.ctypes(addresses)
    else:
        parallel(compiled.address, addresses, threads, 0)
