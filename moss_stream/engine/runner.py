"""Turns the scheduler's rows into tensors, runs the model and says what it chose.

Owns the KV memory and nothing else that lasts: which blocks a row uses and what its outcome means
is the scheduler's business.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from moss_stream.config import EngineConfig
from moss_stream.engine.sampler import Choice, choose
from moss_stream.engine.scheduler import Row
from moss_stream.errors import ConfigError
from moss_stream.model import kernels
from moss_stream.model.attention import Attention, CpuAttention, RowView
from moss_stream.model.attention_cuda import GatherAttention
from moss_stream.model.checkpoint import Model
from moss_stream.types import Prompt, Window

LOGIT_ROWS = 64
"""Positions whose logits exist at one time: a whole draft's would be large at a large
vocabulary."""


@dataclass(slots=True)
class Embeddings:
    """Audio embeddings of one request's windows, as far as they are known."""

    windows: list[torch.Tensor | None]
    """Per window [tokens, D], or None while unknown or no longer needed."""

    def gather(self, prompt: Prompt, first: int, last: int) -> torch.Tensor:
        """Embeddings of audio slots `first`..`last`, both included: [last - first + 1, D]."""
        pieces = []
        offset = 0
        for tokens, window in zip(prompt.window_tokens, self.windows, strict=True):
            low, high = max(first - offset, 0), min(last + 1 - offset, tokens)
            if low < high:
                assert window is not None, "the scheduler fed a window that was not ready"
                pieces.append(window[low:high])
            offset += tokens
        return torch.cat(pieces)


class Runner:
    """Encoder and decoder of one loaded model with its KV memory.

    Args:
        model: The checkpoint.
        config: Sizes.

    Raises:
        ConfigError: The KV memory would not hold a single block.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.model = model
        decoder = model.spec.decoder
        on_cpu = model.device.type == "cpu"
        block_bytes = config.block_tokens * decoder.kv_position_bytes(model.dtype.itemsize)
        self.num_blocks = config.kv_bytes // block_bytes
        if self.num_blocks < 1:
            raise ConfigError(
                f"kv_bytes is {config.kv_bytes}, one block of this model takes {block_bytes}",
                field="kv_bytes",
            )
        self._attention: Attention = (
            CpuAttention(decoder, self.num_blocks, config.block_tokens, dtype=model.dtype)
            if on_cpu
            else GatherAttention(
                decoder,
                self.num_blocks,
                config.block_tokens,
                dtype=model.dtype,
                device=model.device,
            )
        )
        if on_cpu:
            kernels.prepare(model.dtype)

    @torch.inference_mode()
    def encode(self, windows: Seq[Window], audio_tokens: Seq[int]) -> list[torch.Tensor]:
        """Embed windows: per window [audio tokens, D]."""
        mels = torch.stack([self.model.mel(window.samples) for window in windows])
        encoder = self.model.encoder
        if self.model.device.type != "cpu":
            return encoder.encode(mels, audio_tokens)
        # On CPU a batch gains nothing, and alone a window's embedding never depends on company.
        return [
            embedding
            for mel, tokens in zip(mels[:, None], audio_tokens, strict=True)
            for embedding in encoder.encode(mel, [tokens])
        ]

    @torch.inference_mode()
    def forward(self, rows: Seq[Row], embeddings: Seq[Embeddings]) -> list[list[int]]:
        """Run one step.

        Args:
            rows: What to feed, at least one.
            embeddings: Of each row's request.

        Returns:
            Per row the tokens chosen after its last `num_logits` positions.
        """
        decoder = self.model.decoder
        views: list[RowView] = []
        ids: list[int] = []
        positions: list[int] = []
        for row in rows:
            views.append(RowView(len(ids), len(row.ids), row.start, row.sequence.block_table))
            ids.extend(row.ids)
            positions.extend(range(row.start, row.start + len(row.ids)))
        device = self.model.device
        hidden = decoder.embed(torch.tensor(ids, device=device))
        for row, view, audio in zip(rows, views, embeddings, strict=True):
            _place_audio(hidden, row, view, audio)
        self._attention.begin(views)
        ends = [view.offset + view.num_tokens for view in views]
        wanted = [
            place
            for row, end in zip(rows, ends, strict=True)
            for place in range(end - row.num_logits, end)
        ]
        hidden = decoder.forward(
            hidden,
            torch.tensor(positions, device=device),
            self._attention,
            torch.tensor(wanted, dtype=torch.int64, device=device),
        )
        return self._choose(rows, hidden)

    def _choose(self, rows: Seq[Row], hidden: torch.Tensor) -> list[list[int]]:
        """Pick the tokens after the positions whose hidden states [N, D] were asked for."""
        choices: list[Choice] = []
        for row in rows:
            request = row.sequence.request
            # Position p chooses output number p + 1 - len(prompt).
            first = row.start + len(row.ids) - row.num_logits + 1 - len(request.prompt.ids)
            choices.extend(
                Choice(request.temperature, request.seed, first + i) for i in range(row.num_logits)
            )
        chosen: list[int] = []
        for at in range(0, len(choices), LOGIT_ROWS):
            part = slice(at, at + LOGIT_ROWS)
            chosen.extend(choose(self.model.decoder.logits(hidden[part]), choices[part]))
        counts = iter(chosen)
        return [[next(counts) for _ in range(row.num_logits)] for row in rows]


def _place_audio(hidden: torch.Tensor, row: Row, view: RowView, audio: Embeddings) -> None:
    """Write audio embeddings over the placeholder embeddings of one row, in place."""
    prompt = row.sequence.request.prompt
    slots = prompt.audio_slots[row.start : row.start + view.num_tokens]
    places = [view.offset + index for index, slot in enumerate(slots) if slot >= 0]
    if places:
        used = [slot for slot in slots if slot >= 0]
        hidden[torch.tensor(places, device=hidden.device)] = audio.gather(prompt, used[0], used[-1])
