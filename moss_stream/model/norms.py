"""The decoder's norms, and the rotary positions of its heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from moss_stream.model.kernels import norms as kernels


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """RMS norm in float32, because a few channels of a checkpoint may hold large constants.

    Args:
        x: [T, D].
        weight: [D].
        eps: [1] float32, on CPU.

    Returns:
        [T, D] in the dtype of `x`.
    """
    if x.device.type == "cpu":
        return kernels.rms_norm(x, weight, eps)
    return plain_rms_norm(x, weight, eps)


def rotate_heads(
    x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Normalise each of the first heads and turn it by the angles of its token's position.

    Args:
        x: [T, all heads, D].
        weight: [heads, D] of the norms: how many heads there are to be.
        eps: [1] float32, on CPU.
        cos: [T, D].
        sin: [T, D].

    Returns:
        [T, heads, D].
    """
    if x.device.type == "cpu":
        return kernels.rotate_heads(x, weight, eps, cos, sin)
    return plain_rotate_heads(x, weight, eps, cos, sin)


def plain_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """`rms_norm` in torch's operators, on any device."""
    return F.rms_norm(x.float(), x.shape[-1:], None, float(eps)).to(x.dtype) * weight


def plain_rotate_heads(
    x: torch.Tensor, weight: torch.Tensor, eps: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """`rotate_heads` in torch's operators, on any device."""
    normed = plain_rms_norm(x[:, : len(weight)], weight, eps)
    first, second = normed.chunk(2, dim=-1)
    return normed * cos[:, None] + torch.cat((-second, first), dim=-1) * sin[:, None]
