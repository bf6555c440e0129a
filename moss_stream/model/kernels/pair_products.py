"""What attention in bfloat16 is made of, where the machine multiplies pairs.

AVX512-BF16 multiplies 16 pairs of bfloat16 and adds the products up in float32 with one
instruction: twice the work of one in float32. No compiler finds it by itself, so here the
instructions are named, for numba to compile into what calls them.
"""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from moss_stream.model.kernels.compiled import LOWEST

ROWS = 6
COLUMNS = 64
"""Of one product: its sums take 24 of 32 registers, enough to hide how long each takes."""
_LANES = 16
_VECTORS = range(COLUMNS // _LANES)

_HALF, _WORD, _SIZE, _FLOAT = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_HALVES, _WORDS, _FLOATS = (ir.VectorType(kind, _LANES) for kind in (_HALF, _WORD, _FLOAT))
_LOG2_E = 1.4426950408889634
_POWERS_OF_2 = (9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0)
"""Taylor series of 2 ** x, highest power first: within 5e-5 up to 0.5, a fortieth of a bfloat16."""


@functools.cache
def multiplies_pairs() -> bool:
    """Whether pairs are the fastest this machine's processor multiplies.

    Where it has tiles too (AMX), oneDNN's products are faster than those here.
    """
    features = binding.get_host_cpu_features()
    return bool(features.get("avx512bf16")) and not features.get("amx-bf16")


@intrinsic
def multiply_pairs(
    context: Any,
    left: Any,
    left_stride: Any,
    right: Any,
    right_stride: Any,
    depth: Any,
    output: Any,
    output_stride: Any,
) -> Any:
    """Multiply `ROWS` rows with `COLUMNS` columns.

    Args:
        context: The compiler's.
        left: Address of [ROWS, depth] int32, each two bfloat16 that follow each other.
        left_stride: From a row to the next.
        right: Address of [depth, COLUMNS] int32, each two bfloat16 that stand below each other.
        right_stride: From a row to the next.
        depth: How many pairs are multiplied and added up.
        output: Address of [ROWS, COLUMNS] float32.
        output_stride: From a row to the next.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        left, left_stride, right, right_stride, depth, output, output_stride = arguments
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        add_products = _function(builder, name, _FLOATS, _FLOATS, _WORDS, _WORDS)
        # Variables, of which the compiler makes registers.
        sums = [[_variable(builder, 0.0) for _ in _VECTORS] for _ in range(ROWS)]
        with cgutils.for_range(builder, depth) as loop:
            start = builder.mul(loop.index, right_stride)
            columns = [
                _load(builder, right, builder.add(start, _SIZE(_LANES * vector)), _WORDS)
                for vector in _VECTORS
            ]
            for row, row_sums in enumerate(sums):
                place = builder.add(builder.mul(_SIZE(row), left_stride), loop.index)
                pair = _repeated(builder, builder.load(builder.gep(left, [place])))
                for pairs, total in zip(columns, row_sums, strict=True):
                    added = builder.call(add_products, [builder.load(total), pair, pairs])
                    builder.store(added, total)
        for row, row_sums in enumerate(sums):
            start = builder.mul(_SIZE(row), output_stride)
            for vector, total in enumerate(row_sums):
                place = builder.add(start, _SIZE(_LANES * vector))
                _store(builder, builder.load(total), output, place)
        return target.get_dummy_value()

    pairs, size, floats = types.CPointer(types.int32), types.int64, types.CPointer(types.float32)
    return types.void(pairs, size, pairs, size, size, floats, size), generate


@intrinsic
def soften_pairs(context: Any, scores: Any, count: Any, scale: Any, weights: Any) -> Any:
    """Turn scores into the weights of a softmax, not divided by their sum.

    Args:
        context: The compiler's.
        scores: Address of [count] float32.
        count: A multiple of `COLUMNS`, not 0.
        scale: What scores are multiplied with, above 0.
        weights: Address of [count] bfloat16, where they are written to.

    Returns:
        The sum of the weights before they were rounded.
    """

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, count, scale, weights = arguments
        top = _repeated(builder, _highest(builder, scores, count))
        # As powers of 2, since those of whole numbers only change the exponent.
        factor = _repeated(builder, builder.fmul(scale, _FLOAT(_LOG2_E)))
        narrow = _function(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", _HALVES, _FLOATS)
        total = _variable(builder, 0.0)
        with cgutils.for_range_slice(builder, _SIZE(0), count, _SIZE(_LANES)) as (place, _):
            below = builder.fsub(_load(builder, scores, place, _FLOATS), top)
            power = builder.fmul(below, factor)
            weight = _power_of_2(builder, power)
            builder.store(builder.fadd(builder.load(total), weight), total)
            _store(builder, builder.call(narrow, [weight]), weights, place)
        add_up = _function(builder, "llvm.vector.reduce.fadd.v16f32", _FLOAT, _FLOAT, _FLOATS)
        return builder.call(add_up, [_FLOAT(0), builder.load(total)], fastmath=("fast",))

    floats, halves = types.CPointer(types.float32), types.CPointer(types.uint16)
    return types.float32(floats, types.int64, types.float32, halves), generate


def _highest(builder: Any, scores: Any, count: Any) -> Any:
    """Maximum of scores [count]."""
    higher = _function(builder, "llvm.maxnum.v16f32", _FLOATS, _FLOATS, _FLOATS)
    tops = [_variable(builder, float(LOWEST)) for _ in _VECTORS]
    with cgutils.for_range_slice(builder, _SIZE(0), count, _SIZE(COLUMNS)) as (start, _):
        for vector, top in enumerate(tops):
            found = _load(builder, scores, builder.add(start, _SIZE(_LANES * vector)), _FLOATS)
            # Without `fast` numbers that are none would be looked for.
            top_now = builder.call(higher, [builder.load(top), found], fastmath=("fast",))
            builder.store(top_now, top)
    highest = functools.reduce(
        lambda a, b: builder.call(higher, [a, b], fastmath=("fast",)), map(builder.load, tops)
    )
    reduce = _function(builder, "llvm.vector.reduce.fmax.v16f32", _FLOAT, _FLOATS)
    return builder.call(reduce, [highest], fastmath=("fast",))


def _power_of_2(builder: Any, x: Any) -> Any:
    """2 ** x for a vector of floats, 0 where that is too small for one."""
    nearest = _function(builder, "llvm.nearbyint.v16f32", _FLOATS, _FLOATS)
    add_product = _function(builder, "llvm.fma.v16f32", _FLOATS, _FLOATS, _FLOATS, _FLOATS)
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    shift = _function(builder, name, _FLOATS, _FLOATS, _FLOATS, _FLOATS, _HALF, _WORD)
    whole = builder.call(nearest, [x])
    part = builder.fsub(x, whole)
    y = _constant(_POWERS_OF_2[0])
    for factor in _POWERS_OF_2[1:]:
        y = builder.call(add_product, [y, part, _constant(factor)])
    every_lane, current_rounding = _HALF(-1), _WORD(4)
    return builder.call(shift, [y, whole, y, every_lane, current_rounding])


def _function(builder: Any, name: str, result: Any, *given: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, given), name)


def _constant(x: float) -> Any:
    return ir.Constant(_FLOATS, [x] * _LANES)


def _variable(builder: Any, x: float) -> Any:
    variable = cgutils.alloca_once(builder, _FLOATS)
    builder.store(_constant(x), variable)
    return variable


def _repeated(builder: Any, x: Any) -> Any:
    """Vector of one number."""
    undefined = ir.Constant(ir.VectorType(x.type, _LANES), ir.Undefined)
    first = builder.insert_element(undefined, x, _WORD(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, None))


def _load(builder: Any, start: Any, index: Any, kind: Any) -> Any:
    place = builder.bitcast(builder.gep(start, [index]), kind.as_pointer())
    return builder.load(place, align=1)


def _store(builder: Any, vector: Any, start: Any, index: Any) -> None:
    place = builder.bitcast(builder.gep(start, [index]), vector.type.as_pointer())
    builder.store(vector, place, align=1)
