"""Options of a live session, with a preset for each of the two uses."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from moss_stream.config import check_range
from moss_stream.errors import ConfigError

SAMPLE_RATE_HZ = 16_000
"""Rate of every sample position in this package."""
VAD_FRAME_SAMPLES = 512
"""New samples a speech probability stands for."""


def to_samples(seconds: float) -> int:
    """Seconds as a whole number of samples."""
    return round(seconds * SAMPLE_RATE_HZ)


def to_seconds(samples: int) -> float:
    """Samples as seconds."""
    return samples / SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """How one session finds utterances and how often it asks for text.

    The defaults are those of `agent`.

    Raises:
        ConfigError: A value is outside its bounds, or two contradict each other.
    """

    threshold: float = 0.5
    """Speech probability that starts speech; speech goes on down to 0.15 less."""
    min_speech_s: float = 0.096
    """Speech shorter than this is taken for a noise, seconds."""
    pre_roll_s: float = 0.4
    """Audio before the first speech frame that belongs to the utterance, seconds."""
    pause_s: float = 0.2
    """Silence that ends speech for now: the eager final starts, seconds. As much stays in the
    utterance after its last speech."""
    endpoint_s: float = 0.6
    """Silence that ends the utterance when the text gives no hint, seconds."""
    endpoint_min_s: float = 0.35
    """The same when the text ends a sentence, seconds."""
    endpoint_max_s: float = 1.2
    """The same when the text stops in the middle of a phrase, seconds."""
    max_utterance_s: float = 28.0
    """Longest utterance, seconds; it is then split. With the pre-roll it should fit one window."""
    split_search_s: float = 4.0
    """How far back a split looks for its quietest point, seconds."""
    refresh_s: float = 0.8
    """New audio that makes a refresh worth while, seconds, at load factor 1."""
    refresh_max_s: float = 6.0
    """The same under the highest load, seconds."""
    commit_margin_s: float = 1.0
    """Text is committed only when it ends this long before the end of the audio, seconds."""
    eager_final: bool = True
    """Whether the final is decoded at the first pause, before the endpoint is decided."""
    context_s: float = 0.0
    """Earlier speech kept in the request, seconds; 0 decodes each utterance alone."""
    anchor_s: float = 4.0
    """Speech of each known speaker that opens a new context, at most, seconds."""
    max_anchors: int = 6
    """Most speakers carried into a new context."""
    final_target_s: float = 0.2
    """When a final is wanted after its endpoint, seconds: its deadline in the engine."""
    max_attempts: int = 5
    """Times a final is tried when it fails for a reason that may pass."""
    retry_delay_s: float = 0.5
    """Wait before the second try, seconds; it grows by as much for each further one."""
    max_buffer_s: float = 180.0
    """Most audio held, decoded or not, seconds; more is refused until some is done with."""

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0.05, 0.99)
        check_range("min_speech_s", self.min_speech_s, 0, 1)
        check_range("pre_roll_s", self.pre_roll_s, 0.3, 2)
        check_range("pause_s", self.pause_s, 0.064, 5)
        check_range("endpoint_min_s", self.endpoint_min_s, self.pause_s, math.inf)
        check_range("endpoint_s", self.endpoint_s, self.endpoint_min_s, math.inf)
        check_range("endpoint_max_s", self.endpoint_max_s, self.endpoint_s, math.inf)
        check_range("max_utterance_s", self.max_utterance_s, 2, 600)
        check_range("split_search_s", self.split_search_s, 0.1, self.max_utterance_s / 2)
        check_range("refresh_s", self.refresh_s, 0.1, 60)
        check_range("refresh_max_s", self.refresh_max_s, self.refresh_s, 600)
        check_range("commit_margin_s", self.commit_margin_s, 0, 30)
        check_range("context_s", self.context_s, 0, 3600)
        check_range("anchor_s", self.anchor_s, 1, 20)
        check_range("max_anchors", self.max_anchors, 0, 32)
        check_range("final_target_s", self.final_target_s, 0, 60)
        check_range("max_attempts", self.max_attempts, 1, 100)
        check_range("retry_delay_s", self.retry_delay_s, 0, 60)
        check_range("max_buffer_s", self.max_buffer_s, 2 * self.max_utterance_s, 3600)
        if self.context_s and self.context_s < self.anchor_s * self.max_anchors:
            raise ConfigError(
                f"context_s is {self.context_s:g}, the speaker anchors alone may take "
                f"{self.anchor_s * self.max_anchors:g} (anchor_s times max_anchors)",
                field="context_s",
            )

    @classmethod
    def agent(cls) -> Self:
        """Preset for voice agents: each utterance alone, short endpoints."""
        return cls()

    @classmethod
    def captions(cls) -> Self:
        """Preset for meeting captions: earlier speech as context, patient endpoints."""
        return cls(
            endpoint_s=0.9,
            endpoint_min_s=0.6,
            endpoint_max_s=1.6,
            refresh_s=1.0,
            context_s=120.0,
        )

    def with_manual_endpoints(self) -> Self:
        """The same without endpoints from silence: the caller's commits end utterances.

        Utterances still start with speech and still end at `max_utterance_s`.
        """
        return replace(self, endpoint_min_s=math.inf, endpoint_s=math.inf, endpoint_max_s=math.inf)
