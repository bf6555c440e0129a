"""From a recording's samples and the caller's options to an engine request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moss_stream.config import check_range, check_whole
from moss_stream.engine.request import MAX_SEED, Priority, Request
from moss_stream.errors import AudioTooLong, ConfigError
from moss_stream.model.checkpoint import Model
from moss_stream.types import Window

MIN_OUTPUT_TOKENS = 512
"""Least output budget. Source: the model's other servers; see `OUTPUT_TOKENS_PER_S`."""
MAX_OUTPUT_TOKENS = 131_072
"""Largest output budget that can be asked for; what does not fit the context is never used."""
MAX_TEXT_CHARACTERS = 8192
"""Most characters of an instruction, and of all hot words together: they go before the model whole,
at a cost that grows with their square."""
OUTPUT_TOKENS_PER_S = 10
"""Output budget per audio second: dense meetings come to about 4.5 tokens a second."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to transcribe one recording.

    Raises:
        ConfigError: A value is outside its bounds.
    """

    prompt: str | None = None
    """Instruction in place of, or added to, the checkpoint's own, as its template has it."""
    hotwords: Sequence[str] = ()
    """Words likely to be said."""
    temperature: float = 0.0
    """0 takes the likeliest token; above, samples."""
    seed: int = 0
    """Seed of the samples."""
    max_new_tokens: int | None = None
    """Output budget; None for `MIN_OUTPUT_TOKENS` or `OUTPUT_TOKENS_PER_S`, whichever is more."""
    guards: bool = True
    """Whether silence is kept from the model and its known defects are cut, repaired, reported."""

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0, 10)
        check_whole("seed", self.seed, 0, MAX_SEED)
        if self.max_new_tokens is not None:
            check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_OUTPUT_TOKENS)
        if not isinstance(self.guards, bool):
            raise ConfigError(
                f"guards is {self.guards!r}, allowed are True and False", field="guards"
            )
        _check_text("prompt", () if self.prompt is None else (self.prompt,))
        if isinstance(self.hotwords, str) or not isinstance(self.hotwords, Sequence):
            kind = type(self.hotwords).__name__
            raise ConfigError(f"hotwords is a {kind}, expected a list of words", field="hotwords")
        _check_text("hotwords", self.hotwords)


def _check_text(field: str, values: Sequence[str]) -> None:
    for value in values:
        if not isinstance(value, str):
            kind = type(value).__name__
            raise ConfigError(f"{field} has {value!r} of type {kind}, expected text", field=field)
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(f"{field} is not valid Unicode text", field=field)
    length = sum(map(len, values))
    if length > MAX_TEXT_CHARACTERS:
        raise ConfigError(
            f"{field} has {length} characters, allowed are {MAX_TEXT_CHARACTERS}", field=field
        )


def cut_windows(samples: npt.NDArray[np.float32], window_samples: int) -> list[Window]:
    """Cut samples [n] on the fixed grid; all windows but the last are full."""
    return [
        Window(samples[at : at + window_samples]) for at in range(0, len(samples), window_samples)
    ]


def build_request(
    model: Model, samples: npt.NDArray[np.float32], options: Options, *, max_tokens: int
) -> Request:
    """Build the request for a whole recording.

    Args:
        model: The checkpoint.
        samples: [n] float32 mono at the model's rate.
        options: The caller's wishes.
        max_tokens: Positions the engine allows one request.

    Raises:
        AudioTooLong: Prompt and least output do not fit `max_tokens`; says what is allowed.
    """
    windows = cut_windows(samples, model.spec.audio.window_samples)
    lengths = [len(window.samples) for window in windows]
    prompt = model.prompts.build(lengths, text=options.prompt, hotwords=options.hotwords)
    duration_s = len(samples) / model.spec.audio.rate_hz
    room = max_tokens - len(prompt.ids)
    budget = options.max_new_tokens or output_budget(duration_s)
    if room < min(budget, MIN_OUTPUT_TOKENS):
        # The caller's own text takes room from the audio.
        text_tokens = len(prompt.ids) - model.prompts.count(lengths)
        allowed_s = max_audio_s(model, max_tokens - text_tokens)
        raise AudioTooLong(
            f"the audio lasts {duration_s:.1f} s and its prompt takes {len(prompt.ids)} tokens; "
            f"{max_tokens} tokens are available, enough for {allowed_s:.0f} s",
            field="file",
        )
    return Request(
        prompt=prompt,
        windows=tuple(windows),
        max_new_tokens=min(budget, room),
        stop_ids=model.spec.stop_ids,
        priority=Priority.FILE,
        temperature=options.temperature,
        seed=options.seed,
        stop_loops=options.guards,
        markup_ids=model.tokenizer.markup_ids,
        spelling=model.spelling,
    )


def output_budget(duration_s: float) -> int:
    """Output tokens allowed by default for audio of this duration."""
    return max(MIN_OUTPUT_TOKENS, math.ceil(OUTPUT_TOKENS_PER_S * duration_s))


def max_audio_s(model: Model, max_tokens: int) -> float:
    """Longest audio, whole seconds, whose prompt leaves room for the least output."""
    audio = model.spec.audio
    low, high = 0, max_tokens
    while low < high:
        middle = (low + high + 1) // 2
        full, rest = divmod(middle * audio.rate_hz, audio.window_samples)
        tokens = model.prompts.count([audio.window_samples] * full + [rest] * (rest > 0))
        if tokens + MIN_OUTPUT_TOKENS <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return float(low)
