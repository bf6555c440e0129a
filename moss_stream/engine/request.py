"""What goes into the engine and what comes out of it. Plain values, no torch.

A request is a prompt (token ids with audio slots), the windows those slots point into, and what is
already known of the answer: tokens that are forced, and a draft the model is asked to agree with.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from moss_stream.config import check_range, check_whole
from moss_stream.errors import ConfigError
from moss_stream.transcript.spelling import Spelling
from moss_stream.types import Prompt, Timing, Usage, Window

MAX_TOKENS = 1 << 24
"""Most output tokens that can be asked for, far beyond any context."""
MAX_SEED = (1 << 32) - 1
"""Largest seed of random numbers."""


class Priority(IntEnum):
    """Order of service: lower values first."""

    FINAL = 0
    """An utterance ended and somebody waits for its text."""
    PARTIAL = 1
    """A refresh of a growing utterance."""
    FILE = 2
    """A whole recording."""


class StopReason(StrEnum):
    """Why a request's output ended."""

    END = "end"
    """The model wrote its end token."""
    LENGTH = "length"
    """The output budget or the context is used up."""
    LOOP = "loop"
    """The output repeated itself; what repeats is cut."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One transcription to make.

    Raises:
        ConfigError: A value is outside its bounds.
    """

    prompt: Prompt
    windows: tuple[Window, ...]
    max_new_tokens: int
    """Most output tokens, forced ones included; reserved at admission."""
    stop_ids: frozenset[int]
    """Token ids that end the output."""
    forced: tuple[int, ...] = ()
    """Output so far that is not to be decided again."""
    draft: tuple[int, ...] = ()
    """A guess at the output after `forced`, kept exactly as far as the model agrees."""
    earlier: tuple[tuple[int, ...], ...] = ()
    """Older guesses, the newest first, with or without what is forced: asked where the draft turns
    out to be wrong."""
    priority: Priority = Priority.FILE
    deadline_s: float = float("inf")
    """Monotonic time by which the result is wanted; earlier ones go first within a priority."""
    stream_id: str | None = None
    """Owner of refreshes: a newer PARTIAL of the same stream replaces one that has not started."""
    temperature: float = 0.0
    """0 takes the likeliest token; above, samples from softmax(logits / temperature)."""
    seed: int = 0
    """Seed of this request's own random numbers; only used with a temperature."""
    stop_loops: bool = True
    """Whether to stop when the output repeats itself."""
    markup_ids: frozenset[int] = frozenset()
    """Tokens of times and speaker tags, which do not count as words: the model can say the same
    again and again under new times."""
    spelling: Spelling | None = None
    """How the model spells text; tags are foreseen with it, which saves steps and changes
    nothing else."""

    def __post_init__(self) -> None:
        if len(self.windows) != len(self.prompt.window_tokens):
            raise ConfigError(
                f"the prompt has slots for {len(self.prompt.window_tokens)} windows, "
                f"the request carries {len(self.windows)}",
                field="windows",
            )
        check_whole("max_new_tokens", self.max_new_tokens, 1, MAX_TOKENS)
        check_whole("seed", self.seed, 0, MAX_SEED)
        check_range("temperature", self.temperature, 0, 10)
        if len(self.forced) >= self.max_new_tokens:
            raise ConfigError(
                f"{len(self.forced)} forced tokens leave nothing of max_new_tokens "
                f"{self.max_new_tokens}",
                field="forced",
            )
        if not self.stop_ids.isdisjoint(self.forced):
            raise ConfigError("forced tokens contain an end token", field="forced")


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """Output tokens since the previous delivery."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A finished request."""

    token_ids: tuple[int, ...]
    """The output, forced tokens included, the end token apart."""
    stop_reason: StopReason
    accepted_length: int
    """Leading draft tokens the model agreed with: the common prefix of two hypotheses."""
    usage: Usage
    timing: Timing
