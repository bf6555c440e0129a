"""Attention on CUDA in plain torch: correct everywhere, the fast kernels come later.

Each row gathers its own keys and values by slot and runs one attention call under an explicit mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from moss_stream.model.attention import RowView, row_slots
from moss_stream.model.spec import DecoderSpec


class GatherAttention:
    """Attention that gathers each row's KV; runs on any device.

    Args:
        spec: Decoder sizes.
        num_blocks: Blocks of memory.
        block_tokens: Positions in a block.
        dtype: dtype of the KV memory.
        device: Where it lies.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        num_blocks: int,
        block_tokens: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        shape = (spec.num_layers, spec.num_kv_heads, num_blocks * block_tokens, spec.head_dim)
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        self._rows: list[tuple[RowView, torch.Tensor, torch.Tensor]] = []
        self._slots = torch.empty(0, dtype=torch.int64, device=device)

    def begin(self, rows: Sequence[RowView]) -> None:
        """See `Attention.begin`."""
        self._slots = torch.tensor(row_slots(rows, self.block_tokens), device=self.device)
        self._rows = []
        for row in rows:
            end = row.start + row.num_tokens
            whole = RowView(0, end, 0, row.block_table)
            slots = torch.tensor(row_slots([whole], self.block_tokens), device=self.device)
            positions = torch.arange(end, device=self.device)
            mask = positions[None, :] <= positions[row.start :, None]
            self._rows.append((row, slots, mask))

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """See `Attention.attend`."""
        layer_keys, layer_values = self._keys[layer], self._values[layer]
        layer_keys.index_copy_(1, self._slots, keys.transpose(0, 1).to(layer_keys.dtype))
        layer_values.index_copy_(1, self._slots, values.transpose(0, 1).to(layer_values.dtype))
        output = torch.empty_like(queries)
        for row, slots, mask in self._rows:
            span = slice(row.offset, row.offset + row.num_tokens)
            mixed = F.scaled_dot_product_attention(
                queries[span].transpose(0, 1)[None].to(layer_keys.dtype),
                layer_keys[:, slots][None],
                layer_values[:, slots][None],
                attn_mask=mask,
                enable_gqa=True,
            )
            output[span] = mixed[0].transpose(0, 1).to(output.dtype)
        return output
