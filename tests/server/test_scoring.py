from __future__ import annotations

import numpy as np
import pytest
from support.clips import load_clip

from moss_stream.model.vad import VadState, load_vad
from moss_stream.server.scoring import score_frames


def test_batched_scores_equal_each_stream_alone() -> None:
    vad = load_vad()
    samples = load_clip("mix_duo_002")[: 512 * 40].reshape(-1, 512)
    streams = [samples[:10], samples[5:40], samples[3:4]]
    scores, states = score_frames(vad, streams, [VadState.start() for _ in streams])
    for frames, own, state in zip(streams, scores, states, strict=True):
        alone = vad.speech_probabilities(frames.reshape(-1))
        np.testing.assert_allclose(own, alone, atol=1e-5)
        assert len(state.h) == 1


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_scores_go_on_from_the_state(cut: int) -> None:
    vad = load_vad()
    frames = load_clip("mix_duo_002")[: 512 * 30].reshape(-1, 512)
    first, states = score_frames(vad, [frames[:cut]], [VadState.start()])
    second, _ = score_frames(vad, [frames[cut:]], states)
    alone = vad.speech_probabilities(frames.reshape(-1))
    np.testing.assert_allclose(first[0] + second[0], alone, atol=1e-5)
