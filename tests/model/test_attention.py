"""One suite for every attention backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_stream.errors import UnsupportedModelError
from moss_stream.model import attention
from moss_stream.model.attention import Attention, CpuAttention, RowView, slot_runs
from moss_stream.model.attention_cuda import GatherAttention
from moss_stream.model.kernels import compiled
from moss_stream.model.kernels.attention import TILE_QUERIES
from moss_stream.model.spec import DecoderSpec
from moss_stream.model.threads import in_passing, use_threads

BLOCK = 4
NUM_BLOCKS = 32
SPEC = DecoderSpec(
    num_layers=2,
    width=32,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    mlp_width=16,
    vocab_size=10,
    max_positions=128,
    rope_theta=1e4,
    norm_eps=1e-6,
    attention_bias=False,
    activation="silu",
)
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


def cpu_backend(device: str) -> Attention:
    if device != "cpu":
        pytest.skip("the CPU backend runs on the CPU alone")
    return CpuAttention(SPEC, NUM_BLOCKS, BLOCK, dtype=torch.float32)


def gather_backend(device: str) -> Attention:
    return GatherAttention(
        SPEC, NUM_BLOCKS, BLOCK, dtype=torch.float32, device=torch.device(device)
    )


@pytest.fixture(params=[cpu_backend, gather_backend])
def make_backend(request: pytest.FixtureRequest) -> Callable[[str], Attention]:
    return request.param


def attention_of(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """What torch makes of it in float32: all [T, heads, D]."""
    mixed = F.scaled_dot_product_attention(
        *(x.float().transpose(0, 1)[None] for x in (queries, keys, values)),
        is_causal=True,
        enable_gqa=True,
    )
    return mixed[0].transpose(0, 1)


class Stream:
    """One sequence's queries, keys and values, and what attention over all of them must give."""

    def __init__(
        self,
        length: int,
        seed: int,
        device: str,
        table: list[int],
        spec: DecoderSpec = SPEC,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (length, spec.num_heads, spec.head_dim)
        kv_shape = (length, spec.num_kv_heads, spec.head_dim)
        self.queries = torch.randn(shape, generator=generator).to(device, dtype)
        self.keys, self.values = (
            torch.randn(kv_shape, generator=generator).to(device, dtype) for _ in range(2)
        )
        self.table = table
        self.expected = attention_of(self.queries, self.keys, self.values)


def run_steps(
    backend: Attention, streams: list[Stream], steps: list[list[tuple[int, int]]]
) -> list[torch.Tensor]:
    """Feed tokens step by step: each step lists (stream, number of tokens). Outputs by stream."""
    fed = [0] * len(streams)
    outputs: list[list[torch.Tensor]] = [[] for _ in streams]
    for step in steps:
        rows, packed, offset = [], [], 0
        for index, count in step:
            stream = streams[index]
            rows.append(RowView(offset, count, fed[index], stream.table))
            packed.append(
                tuple(
                    x[fed[index] : fed[index] + count]
                    for x in (stream.queries, stream.keys, stream.values)
                )
            )
            fed[index] += count
            offset += count
        backend.begin(rows)
        mixed = backend.attend(1, *(torch.cat(parts) for parts in zip(*packed, strict=True)))
        for (index, _), row in zip(step, rows, strict=True):
            outputs[index].append(mixed[row.offset : row.offset + row.num_tokens])
    return [torch.cat(parts) for parts in outputs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "steps",
    [
        [[(0, 13), (1, 9)]],
        [[(0, 1)] for _ in range(13)] + [[(1, 9)]],
        [[(0, 5), (1, 1)], [(1, 3), (0, 7)], [(0, 1), (1, 5)]],
        [[(1, 8)], [(0, 12)], [(0, 1), (1, 1)]],
    ],
)
def test_attention_equals_torch_in_any_steps(
    make_backend: Callable[[str], Attention], device: str, steps: list[list[tuple[int, int]]]
) -> None:
    streams = [
        Stream(13, seed=1, device=device, table=[3, 4, 9, 2]),
        Stream(9, seed=2, device=device, table=[20, 21, 22]),
    ]
    outputs = run_steps(make_backend(device), streams, steps)
    for stream, output in zip(streams, outputs, strict=True):
        torch.testing.assert_close(output, stream.expected[: len(output)], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_attention_reads_a_shared_prefix(
    make_backend: Callable[[str], Attention], device: str
) -> None:
    backend = make_backend(device)
    first = Stream(12, seed=3, device=device, table=[5, 6, 7])
    second = Stream(12, seed=3, device=device, table=[5, 6, 15])
    run_steps(backend, [first], [[(0, 12)]])
    backend.begin([RowView(0, 4, 8, second.table)])
    tail = backend.attend(1, second.queries[8:], second.keys[8:], second.values[8:])
    torch.testing.assert_close(tail, second.expected[8:], atol=1e-5, rtol=1e-5)


def test_attention_ignores_rejected_tokens(make_backend: Callable[[str], Attention]) -> None:
    backend = make_backend("cpu")
    stream = Stream(10, seed=4, device="cpu", table=[1, 2, 3])
    wrong = Stream(10, seed=5, device="cpu", table=[1, 2, 3])
    run_steps(backend, [stream], [[(0, 6)]])
    backend.begin([RowView(0, 3, 6, stream.table)])
    backend.attend(1, wrong.queries[6:9], wrong.keys[6:9], wrong.values[6:9])
    backend.begin([RowView(0, 4, 6, stream.table)])
    tail = backend.attend(1, stream.queries[6:], stream.keys[6:], stream.values[6:])
    torch.testing.assert_close(tail, stream.expected[6:], atol=1e-5, rtol=1e-5)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_cpu_attention_equals_torch_over_long_sequences(data: st.DataObject) -> None:
    """Several tiles of queries and of positions, some rows long, over blocks that lie anywhere."""
    num_kv_heads = data.draw(st.sampled_from([1, 2, 3, 6]), "KV heads")
    width = data.draw(st.sampled_from([8, 20, 64, 128]), "width of a head")
    spec = replace(SPEC, num_kv_heads=num_kv_heads, head_dim=width)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]), "dtype")
    lengths = data.draw(st.lists(st.integers(1, 400), min_size=1, max_size=3), "lengths")
    needed = [-(-length // BLOCK) for length in lengths]
    places = data.draw(st.permutations(range(sum(needed))), "places")
    in_order = data.draw(st.booleans(), "in order")
    blocks = iter(sorted(places) if in_order else places)
    streams = [
        Stream(length, seed, "cpu", [next(blocks) for _ in range(count)], spec, dtype)
        for seed, (length, count) in enumerate(zip(lengths, needed, strict=True))
    ]
    left, steps = list(lengths), []
    while any(left):
        step = [
            (index, data.draw(st.sampled_from([1, count, max(1, count // 2)])))
            for index, count in enumerate(left)
            if count
        ][:: data.draw(st.sampled_from([1, -1]))]
        if len(steps) > 6:
            step = [(index, count) for index, count in enumerate(left) if count]
        for index, count in step:
            left[index] -= count
        steps.append(step)
    backend = CpuAttention(spec, sum(needed), BLOCK, dtype=dtype)
    limits = {
        "PAIR_TOKENS": data.draw(st.sampled_from([1, 32, 1000]), "tokens laid out for"),
        "LONG_TOKENS": data.draw(st.sampled_from([1, 60, 1000]), "long tokens"),
        "LONG_POSITIONS": data.draw(st.sampled_from([1, 150]), "long positions"),
        "LONG_QUERIES": data.draw(st.sampled_from([1, 32, 256]), "queries at one time"),
    }
    with patch.multiple(attention, **limits):
        outputs = run_steps(backend, streams, steps)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for stream, output in zip(streams, outputs, strict=True):
        torch.testing.assert_close(output.float(), stream.expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_cpu_attention_does_not_depend_on_threads(
    threads: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(SPEC, head_dim=width)

    def outcome(threads: int) -> torch.Tensor:
        def attend() -> torch.Tensor:
            use_threads(threads)
            backend = CpuAttention(spec, 64, BLOCK, dtype=torch.bfloat16)
            stream = Stream(200, 1, "cpu", list(range(50)), spec, torch.bfloat16)
            (output,) = run_steps(backend, [stream], [[(0, 150)], [(0, 1)], [(0, 49)]])
            return output

        return in_passing(attend)

    together = outcome(threads)
    monkeypatch.setattr(compiled, "_parallel", lambda: None)  # torch with another OpenMP
    assert torch.equal(together, outcome(1))


def test_cpu_attention_survives_scores_far_apart() -> None:
    stream = Stream(300, 1, "cpu", list(range(75)))
    backend = CpuAttention(SPEC, 80, BLOCK, dtype=torch.float32)
    loud = stream.queries * 1e3
    backend.begin([RowView(0, 300, 0, stream.table)])
    output = backend.attend(0, loud, stream.keys, stream.values)
    expected = attention_of(loud, stream.keys, stream.values)
    torch.testing.assert_close(output, expected, atol=1e-3, rtol=1e-3)


def test_cpu_attention_refuses_groups_larger_than_a_tile() -> None:
    spec = replace(SPEC, num_heads=TILE_QUERIES + 1, num_kv_heads=1)
    with pytest.raises(UnsupportedModelError, match="65 heads share one KV head"):
        CpuAttention(spec, 1, BLOCK, dtype=torch.float32)


def test_slot_runs_join_neighbours() -> None:
    assert slot_runs([3, 4, 9, 2], 13, 4) == [(12, 8), (36, 4), (8, 1)]
    assert slot_runs([3], 0, 4) == []
