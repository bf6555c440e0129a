"""Recordings for the live benchmark, and where speech is in them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from conditions import RATE_HZ, talk

from moss_stream.audio.speech import speech_regions
from moss_stream.model.vad import Vad

Samples = npt.NDArray[np.float32]

KINDS = ("talk", "pauses")
"""`talk` never stops; `pauses` has 1 to 2 s of silence after each utterance."""
_NOISE = 1e-4
"""Level of a noise of each stream's own, -80 dB: no window of one stream equals one of another."""


@dataclass(frozen=True)
class Recording:
    """What one client says."""

    samples: Samples
    """[n] float32 at 16 kHz."""
    speech: list[tuple[float, float]]
    """Start and end of each stretch of speech, seconds."""

    def onset_s(self, after_s: float) -> float:
        """When the first speech that ends after `after_s` begins, not before `after_s`."""
        index = bisect_right(self.speech, after_s, key=lambda region: region[1])
        return max(after_s, self.speech[index][0]) if index < len(self.speech) else after_s

    def speech_end_s(self, before_s: float) -> float:
        """When the last speech that begins before `before_s` ends, not after `before_s`."""
        index = bisect_left(self.speech, before_s, key=lambda region: region[0])
        return min(before_s, self.speech[index - 1][1]) if index else before_s


def make_recordings(kind: str, count: int, seconds: float, vad: Vad) -> list[Recording]:
    """`count` recordings of one of `KINDS`, each with its utterances in an order of its own."""
    # Of one voice where nobody pauses: with several the small checkpoint runs away beyond 20 s, and
    # its loops would be what is timed.
    source = talk("one voice" if kind == "talk" else "several voices")
    gap_s, pad_s = (0.1, 0.05) if kind == "talk" else (0.3, 0.1)
    regions = speech_regions(vad.speech_probabilities(source), min_silence_s=gap_s, pad_s=pad_s)
    utterances = [source[int(a * RATE_HZ) : int(b * RATE_HZ)] for a, b in regions]
    recordings = []
    for index in range(count):
        random = np.random.default_rng(index)
        pieces, length = [], 0
        for piece in _pieces(kind, utterances, random):
            pieces.append(piece)
            length += len(piece)
            if length >= seconds * RATE_HZ:
                break
        samples = np.concatenate(pieces)[: int(seconds * RATE_HZ)]
        samples += random.normal(0, _NOISE, len(samples)).astype(np.float32)
        recordings.append(Recording(samples, speech_regions(vad.speech_probabilities(samples))))
    return recordings


def _pieces(kind: str, utterances: list[Samples], random: np.random.Generator) -> Iterator[Samples]:
    while True:
        for index in random.permutation(len(utterances)):
            yield utterances[index]
            if kind == "pauses":
                yield np.zeros(int(random.uniform(1, 2) * RATE_HZ), np.float32)
