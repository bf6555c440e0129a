"""Attention in pairs of bfloat16, against torch in double precision."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_stream.model.kernels import pair_attention

pytestmark = pytest.mark.skipif(
    not pair_attention.attends(torch.bfloat16, 64),
    reason="this processor does not multiply pairs of bfloat16",
)


def expected_of(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first_readable: int
) -> torch.Tensor:
    """Attention of [T, H, D] to [P, K, D] in double precision."""
    tokens, positions = len(queries), len(keys)
    may_read = torch.arange(positions) < first_readable + torch.arange(tokens)[:, None]
    query, key, value = (x.double().transpose(0, 1) for x in (queries, keys, values))
    mixed = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=may_read, enable_gqa=True
    )
    return mixed.transpose(0, 1)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_pair_attention_equals_torch(data: st.DataObject) -> None:
    """Any sizes; what lies around the keys and values is no number."""
    kv_heads, group = data.draw(st.integers(1, 3), "KV heads"), data.draw(st.integers(1, 7))
    width = data.draw(st.sampled_from([64, 128, 192]), "width of a head")
    tokens, positions = data.draw(st.integers(1, 80)), data.draw(st.integers(1, 200))
    first_readable = data.draw(st.integers(1, positions), "first readable")
    loudness = data.draw(st.sampled_from([0.0, 1.0, 30.0]), "loudness")
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1), "seed"))
    tasks = data.draw(st.sampled_from([1, 2, 9]), "tasks per thread")

    memory = torch.full((2, 2 * positions, kv_heads, width), torch.nan, dtype=torch.bfloat16)
    slots = torch.randperm(2 * positions, generator=generator)[:positions]
    memory[:, slots] = torch.randn(2, positions, kv_heads, width, generator=generator).bfloat16()
    wide = torch.randn(tokens, kv_heads * group + 2, width, generator=generator).bfloat16()
    queries = (wide * loudness)[:, 1:-1]
    output = torch.full_like(wide, torch.nan)
    with patch.object(pair_attention, "TASKS_PER_THREAD", tasks):
        pair_attention.attend(queries, *memory, slots, first_readable, output[:, 1:-1])
    expected = expected_of(queries, *memory[:, slots], first_readable)
    torch.testing.assert_close(output[:, 1:-1].double(), expected, atol=2e-2, rtol=2**-7)
    assert output[:, [0, -1]].isnan().all()  # not written to


def test_pair_attention_survives_scores_far_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys, values = torch.randn(3, 90, 1, 64, generator=generator).bfloat16()
    queries = queries * 1e18
    output = torch.empty_like(queries)
    pair_attention.attend(queries, keys, values, torch.arange(90), 1, output)
    expected = expected_of(queries, keys, values, 1)
    torch.testing.assert_close(output.double(), expected, atol=2e-2, rtol=2**-7)


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        (0, torch.zeros(4, 2, 64), "not in bfloat16"),
        (1, torch.zeros(5, 64, 2, dtype=torch.bfloat16).transpose(1, 2), "do not follow"),
        (2, torch.zeros(5, 4, 64, dtype=torch.bfloat16)[:, ::2], "strides"),
        (3, torch.zeros(4, 2, 128, dtype=torch.bfloat16)[..., :64], "heads of 64"),
    ],
)
def test_pair_attention_refuses_other_layouts(
    part: int, tensor: torch.Tensor, message: str
) -> None:
    query, key = (torch.zeros(count, 2, 64, dtype=torch.bfloat16) for count in (4, 5))
    given = [query, key, key, torch.empty_like(query)]
    given[part] = tensor
    queries, keys, values, output = given
    with pytest.raises(ValueError, match=message):
        pair_attention.attend(queries, keys, values, torch.arange(5), 1, output)
