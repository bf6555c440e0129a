"""transformers as the reference: what its own processor and `generate` make of a checkpoint.

Takes directories in the native layout only: transformers does not map the original names. Loaded
models and outputs are kept for the process; every call is greedy, alone in its batch, on CPU.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

Samples = npt.NDArray[np.float32]

_outputs: dict[tuple[Any, ...], tuple[int, list[int]]] = {}
"""What was asked -> tokens allowed and the output. Greedy output with fewer tokens is its head."""


@functools.cache
def _processor(directory: Path) -> Any:
    return transformers.AutoProcessor.from_pretrained(directory)


@functools.cache
def reference_model(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The loaded `MossTranscribeDiarizeForConditionalGeneration`, in eval mode."""
    model_class = transformers.MossTranscribeDiarizeForConditionalGeneration
    return model_class.from_pretrained(directory, dtype=dtype).eval()


def reference_inputs(
    directory: Path,
    samples: Samples,
    *,
    prompt: str | None = None,
    keywords: list[str] | None = None,
) -> dict[str, torch.Tensor]:
    """The processor's tensors for one recording.

    Returns:
        input_ids: [1, T], attention_mask: [1, T], input_features: [W, 80, 3000],
        input_features_mask: [W, 3000], padding_mask: [1, samples].
    """
    request = _processor(Path(directory)).apply_transcription_request(
        samples, prompt=prompt, keywords=keywords, return_tensors="pt", sampling_rate=16_000
    )
    return dict(request)


def reference_audio_features(
    directory: Path, samples: Samples, *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Projected audio embeddings of one recording, windows in order: [audio tokens, D]."""
    inputs = reference_inputs(directory, samples)
    with torch.inference_mode():
        outputs = reference_model(Path(directory), dtype).get_audio_features(
            input_features=inputs["input_features"],
            input_features_mask=inputs["input_features_mask"],
            padding_mask=inputs["padding_mask"],
        )
    return outputs.pooler_output


def reference_generate(
    directory: Path,
    samples: Samples,
    *,
    max_new_tokens: int,
    dtype: torch.dtype = torch.float32,
    prompt: str | None = None,
    keywords: list[str] | None = None,
) -> list[int]:
    """Greedy output ids of one recording, without the prompt and the end token.

    What was generated before for the same arguments and as many tokens is not generated again.
    """
    digest = hashlib.blake2b(samples.tobytes()).digest()
    key = (Path(directory), digest, dtype, prompt, tuple(keywords or ()))
    allowed, ids = _outputs.get(key, (0, []))
    if allowed < max_new_tokens:
        inputs = reference_inputs(directory, samples, prompt=prompt, keywords=keywords)
        ids = _generate(reference_model(Path(directory), dtype), inputs, max_new_tokens)
        _outputs[key] = (max_new_tokens, ids)
    return ids[:max_new_tokens]


def _generate(model: Any, inputs: dict[str, torch.Tensor], max_new_tokens: int) -> list[int]:
    with torch.inference_mode():
        output = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)
    ids: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
    end_ids = model.generation_config.eos_token_id
    end_ids = set(end_ids) if isinstance(end_ids, list) else {end_ids}
    return ids[:-1] if ids and ids[-1] in end_ids else ids


def reference_decode(directory: Path, ids: list[int]) -> str:
    """The text of output ids."""
    text: str = _processor(Path(directory)).tokenizer.decode(ids)
    return text
