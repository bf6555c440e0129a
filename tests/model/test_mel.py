from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.clips import load_clip
from support.reference import reference_inputs

from moss_stream.model.checkpoint import Model


@pytest.mark.parametrize("num_samples", [1600, 16_000, 479_000, 479_999, 480_000])
def test_mel_equals_reference(mini: Model, mini_directory: Path, num_samples: int) -> None:
    samples = np.random.default_rng(num_samples).normal(0, 0.1, num_samples).astype(np.float32)
    expected = reference_inputs(mini_directory, samples)["input_features"][0]
    torch.testing.assert_close(mini.mel(samples), expected, atol=1e-5, rtol=0)


def test_mel_equals_reference_on_speech(mini: Model, mini_directory: Path) -> None:
    samples = load_clip("mix_duo_002")
    expected = reference_inputs(mini_directory, samples)["input_features"][0]
    torch.testing.assert_close(mini.mel(samples), expected, atol=1e-5, rtol=0)


def test_mel_of_digital_silence_is_flat(mini: Model) -> None:
    mel = mini.mel(np.zeros(16_000, dtype=np.float32))
    assert mel.min() == mel.max()
