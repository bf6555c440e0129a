"""Qwen3 decoder over packed rows: tokens of many sequences in one forward.

Source: transformers `Qwen3Model`. QKV and gate/up are one product each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from moss_stream.model.attention import Attention
from moss_stream.model.encoder import ACTIVATIONS
from moss_stream.model.linear import Linear
from moss_stream.model.norms import rms_norm, rotate_heads
from moss_stream.model.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer."""

    attention_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor
    """[H + K, D] weights of the per-head norms of queries and keys."""
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """Weights of the decoder."""

    embedding: torch.Tensor
    """[vocabulary, D], also the output head's weight."""
    layers: tuple[DecoderLayer, ...]
    final_norm: torch.Tensor
    head: Linear


class Decoder:
    """Embeddings of packed tokens to hidden states and logits."""

    def __init__(self, spec: DecoderSpec, weights: DecoderWeights) -> None:
        self.spec = spec
        self.weights = weights
        self._activation = ACTIVATIONS[spec.activation]
        self._eps = torch.tensor([spec.norm_eps])  # on CPU: reading it never waits for a device
        self._rotary = RotaryTable(spec, weights.embedding.dtype, weights.embedding.device)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token embeddings: ids [T] int64 to [T, D]."""
        return F.embedding(ids, self.weights.embedding)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """Run all layers.

        Args:
            hidden: [T, D] input embeddings of the packed tokens.
            positions: [T] int64 position of each token in its sequence.
            attention: Prepared for this step by `begin`.
            wanted: [N] int64 indices of the packed tokens whose hidden states are asked for.

        Returns:
            [N, D] hidden states before the final norm.
        """
        spec, eps = self.spec, self._eps
        cos, sin = self._rotary.at(positions)
        rotated_heads = spec.num_heads + spec.num_kv_heads
        for index, layer in enumerate(self.weights.layers):
            qkv = layer.qkv(rms_norm(hidden, layer.attention_norm, eps))
            qkv = qkv.view(len(hidden), rotated_heads + spec.num_kv_heads, spec.head_dim)
            qk = rotate_heads(qkv, layer.qk_norm, eps, cos, sin)
            mixed = attention.attend(
                index, qk[:, : spec.num_heads], qk[:, spec.num_heads :], qkv[:, rotated_heads:]
            )
            if layer is self.weights.layers[-1]:
                # Of the other tokens only the keys and values were needed.
                hidden, mixed = hidden[wanted], mixed[wanted]
            hidden = hidden + layer.output(mixed.flatten(1))
            gate, up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)).chunk(2, dim=-1)
            hidden = hidden + layer.down(self._activation(gate) * up)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores of the vocabulary: hidden [N, D] from `forward` to [N, vocabulary]."""
        return self.weights.head(rms_norm(hidden, self.weights.final_norm, self._eps))


class RotaryTable:
    """Cosines and sines of rotary position embedding, grown as positions are asked for."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype, device: torch.device) -> None:
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
        self._inverse = 1.0 / (spec.rope_theta**exponents)
        self._dtype, self._device = dtype, device
        self._cos = self._sin = torch.empty(0)
        self._grow(1024)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [T, head_dim] for positions [T]."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            self._grow(2 * needed)
        return self._cos[positions], self._sin[positions]

    def _grow(self, length: int) -> None:
        angles = torch.arange(length, dtype=torch.float32)[:, None] * self._inverse
        angles = torch.cat((angles, angles), dim=-1)
        self._cos = angles.cos().to(dtype=self._dtype, device=self._device)
        self._sin = angles.sin().to(dtype=self._dtype, device=self._device)
