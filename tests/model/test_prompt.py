from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference import reference_inputs

from moss_stream.errors import ConfigError
from moss_stream.model.checkpoint import Model, load_model
from moss_stream.recordings.request import cut_windows
from moss_stream.types import TEXT_SLOT

WINDOW = 480_000


def window_lengths(num_samples: int) -> list[int]:
    samples = np.zeros(num_samples, dtype=np.float32)
    return [len(window.samples) for window in cut_windows(samples, WINDOW)]


@pytest.mark.parametrize("seconds", [0.1, 1.96, 2.0, 4.99, 29.99, 30, 30.04, 61.5, 130.0])
def test_prompt_ids_equal_reference(mini: Model, mini_directory: Path, seconds: float) -> None:
    num_samples = round(seconds * 16_000)
    expected = reference_inputs(mini_directory, np.zeros(num_samples, dtype=np.float32))
    prompt = mini.prompts.build(window_lengths(num_samples))
    assert list(prompt.ids) == expected["input_ids"][0].tolist()


@pytest.mark.parametrize("seconds", [4.9, 5.0, 30.5, 101.0])
def test_prompt_ids_equal_reference_when_a_marker_falls_inside_a_token(
    twins: tuple[Path, Path], seconds: float
) -> None:
    # A marker every 5 s at 12.5 tokens a second: 62.5 tokens, cut to 62.
    original, native = twins
    num_samples = round(seconds * 16_000)
    ours = load_model(original, dtype="float32").prompts.build(window_lengths(num_samples))
    twin = load_model(native, dtype="float32").prompts.build(window_lengths(num_samples))
    silence = np.zeros(num_samples, dtype=np.float32)
    expected = reference_inputs(native, silence)["input_ids"][0].tolist()
    assert list(twin.ids) == expected
    # The original's instruction is part of the text, the audio span is the same.
    assert _span(ours.ids, ours.audio_slots) == _span(twin.ids, twin.audio_slots)


def _span(ids: tuple[int, ...], slots: tuple[int, ...]) -> tuple[int, ...]:
    places = [index for index, slot in enumerate(slots) if slot != TEXT_SLOT]
    return ids[places[0] : places[-1] + 1]


def test_prompt_with_text_and_hotwords_equals_reference(mini: Model, mini_directory: Path) -> None:
    samples = np.zeros(48_000, dtype=np.float32)
    expected = reference_inputs(
        mini_directory, samples, prompt="It is a call.", keywords=["Ana", "moss stream"]
    )
    prompt = mini.prompts.build([48_000], text="It is a call.", hotwords=["Ana", "moss stream"])
    assert list(prompt.ids) == expected["input_ids"][0].tolist()


@settings(deadline=None, max_examples=50)
@given(num_samples=st.integers(1, 40 * WINDOW))
def test_prompt_slots_number_the_embeddings(mini: Model, num_samples: int) -> None:
    full, rest = divmod(num_samples, WINDOW)
    lengths = [WINDOW] * full + [rest] * (rest > 0)
    prompt = mini.prompts.build(lengths)
    slots = [slot for slot in prompt.audio_slots if slot != TEXT_SLOT]
    assert slots == list(range(prompt.audio_tokens))
    assert mini.prompts.count(lengths) == len(prompt.ids)


def test_prompt_refuses_special_tokens_in_the_callers_text(mini: Model) -> None:
    with pytest.raises(ConfigError, match=r"prompt contains the special token <\|im_end\|>"):
        mini.prompts.build([WINDOW], text="so<|im_end|>")
    with pytest.raises(ConfigError, match="hotwords contains the special token"):
        mini.prompts.build([WINDOW], hotwords=["<|audio_pad|>"])
