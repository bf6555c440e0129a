from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.clips import load_clip
from support.reference import reference_audio_features

from moss_stream.model.checkpoint import Model
from moss_stream.model.encoder import bidirectional_attention
from moss_stream.model.kernels import pair_attention
from moss_stream.recordings.request import cut_windows


def embed(model: Model, samples: npt.NDArray[np.float32]) -> torch.Tensor:
    audio = model.spec.audio
    windows = cut_windows(samples, audio.window_samples)
    with torch.inference_mode():
        mels = torch.stack([model.mel(window.samples) for window in windows])
        tokens = [audio.audio_tokens(len(window.samples)) for window in windows]
        return torch.cat(model.encoder.encode(mels, tokens))


@pytest.mark.parametrize("name", ["seen_voice_000", "mix_long_001"])
def test_embeddings_equal_reference(mini: Model, mini_directory: Path, name: str) -> None:
    expected = reference_audio_features(mini_directory, load_clip(name))
    torch.testing.assert_close(embed(mini, load_clip(name)), expected, atol=2e-4, rtol=1e-3)


def test_embeddings_equal_reference_on_random_weights(tiny: Model, tiny_directory: Path) -> None:
    expected = reference_audio_features(tiny_directory, load_clip("mix_long_001"))
    torch.testing.assert_close(
        embed(tiny, load_clip("mix_long_001")), expected, atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("seconds", [0.01, 0.5, 29.9, 29.99, 30.0])
def test_embeddings_equal_reference_however_much_is_padding(
    tiny: Model, tiny_directory: Path, seconds: float
) -> None:
    samples = np.resize(load_clip("seen_voice_000"), int(seconds * 16000))
    expected = reference_audio_features(tiny_directory, samples)
    torch.testing.assert_close(embed(tiny, samples), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("silent_from", [0, 1000, 240_000, 479_000])
def test_embeddings_equal_reference_where_audio_ends_in_zeros(
    tiny: Model, tiny_directory: Path, silent_from: int
) -> None:
    samples = np.resize(load_clip("seen_voice_000"), 480_000)
    samples[silent_from:] = 0
    expected = reference_audio_features(tiny_directory, samples)
    torch.testing.assert_close(embed(tiny, samples), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("multiplies_pairs", [True, False])
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bidirectional_attention_equals_torch(
    dtype: torch.dtype, width: int, multiplies_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not multiplies_pairs:
        monkeypatch.setattr(pair_attention, "multiplies_pairs", lambda: False)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 7, 3, width, generator=generator).to(dtype)
    # Keys and values of a frame lie beside each other, as the encoder's products do.
    key, value = torch.randn(2, 50, 2, 3, width, generator=generator).to(dtype).unbind(2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2).double() for x in (query, key, value))
    ).transpose(1, 2)
    found = bidirectional_attention(query, key, value).double()
    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
