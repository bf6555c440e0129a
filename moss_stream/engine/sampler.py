"""Choosing tokens from logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Choice:
    """How one position's token is chosen."""

    temperature: float
    seed: int
    index: int
    """Index of the token in its request's output: with the seed it fixes the random numbers, so a
    sampled output depends neither on the batch nor on drafts."""


def choose(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    """Pick a token per position: the likeliest, or a sample where there is a temperature.

    Args:
        logits: [N, vocabulary].
        choices: One for each of the N positions.

    Returns:
        N token ids.
    """
    # Comparing in float32 takes a fifth of the time that bfloat16 takes on CPU, with the same
    # result.
    chosen: list[int] = logits.float().argmax(dim=-1).tolist()
    for row, choice in enumerate(choices):
        if choice.temperature > 0:
            chosen[row] = _sample(logits[row], choice)
    return chosen


def _sample(logits: torch.Tensor, choice: Choice) -> int:
    """Sample one token by adding Gumbel noise, which needs no normalisation."""
    # Distinct streams for neighbouring seeds and positions: the generator mixes its seed well.
    generator = torch.Generator().manual_seed((choice.seed << 20) + choice.index)
    uniform = torch.rand(logits.shape[-1], generator=generator).clamp_min(1e-20)
    noise = -torch.log(-torch.log(uniform))
    return int((logits.float().cpu() / choice.temperature + noise).argmax())
