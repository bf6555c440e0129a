"""One suite for every attention backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from moss_stream.model import attention
from moss_stream.model.attention import Attention, CpuAttention, RowView, slot_runs
from moss_stream.model.attention_cuda import GatherAttention
from moss_stream.model.spec import DecoderSpec

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


@pytest.fixture(params=[(3, 5), (8, 2), (2, 64)])
def in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Attention:
    """The CPU backend with limits that short sequences reach."""
    scored, wide = request.param
    monkeypatch.setattr(attention, "SCORED_TOKENS", scored)
    monkeypatch.setattr(attention, "WIDE_POSITIONS", wide)
    return cpu_backend("cpu")


class Stream:
    """One sequence's queries, keys and values, and what attention over all of them must give."""

    def __init__(self, length: int, seed: int, device: str, table: list[int]) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (length, SPEC.num_heads, SPEC.head_dim)
        kv_shape = (length, SPEC.num_kv_heads, SPEC.head_dim)
        self.queries = torch.randn(shape, generator=generator).to(device)
        self.keys, self.values = (
            torch.randn(kv_shape, generator=generator).to(device) for _ in range(2)
        )
        self.table = table
        self.expected = F.scaled_dot_product_attention(
            *(x.transpose(0, 1)[None] for x in (self.queries, self.keys, self.values)),
            is_causal=True,
            enable_gqa=True,
        )[0].transpose(0, 1)


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


STEPS = pytest.mark.parametrize(
    "steps",
    [
        [[(0, 13), (1, 9)]],
        [[(0, 1)] for _ in range(13)] + [[(1, 9)]],
        [[(0, 5), (1, 1)], [(1, 3), (0, 7)], [(0, 1), (1, 5)]],
        [[(1, 8)], [(0, 12)], [(0, 1), (1, 1)]],
    ],
)


@pytest.mark.parametrize("device", DEVICES)
@STEPS
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


@STEPS
def test_attention_in_parts_equals_torch(
    in_parts: Attention, steps: list[list[tuple[int, int]]]
) -> None:
    streams = [Stream(13, 1, "cpu", [3, 4, 9, 2]), Stream(9, 2, "cpu", [20, 21, 22])]
    outputs = run_steps(in_parts, streams, steps)
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


def test_slot_runs_join_neighbours() -> None:
    assert slot_runs([3, 4, 9, 2], 13, 4) == [(12, 8), (36, 4), (8, 1)]
    assert slot_runs([3], 0, 4) == []
