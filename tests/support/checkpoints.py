"""Random checkpoints as real directories: tiny ones for tests, a full-size one for speed.

Both layouts of one seed and shape hold the same tensors, so the native twin of an original
checkpoint is what the reference can load. A tensor's values depend on the seed and its name alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import save_file

Layout = Literal["native", "original"]

MINI = Path(__file__).parents[2] / "moss_stream" / "assets" / "mini"

TINY_TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": False,
    "rope_theta": 1_000_000.0,
}
TINY_AUDIO: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
FULL_TEXT: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_bias": False,
    "rope_theta": 1_000_000.0,
    "vocab_size": 151_936,
}
FULL_AUDIO: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}

ORIGINAL_NAMES = {
    "model.audio_tower.": "model.whisper_encoder.",
    "model.multi_modal_projector.linear_1.": "model.vq_adaptor.layers.0.",
    "model.multi_modal_projector.linear_2.": "model.vq_adaptor.layers.2.",
    "model.multi_modal_projector.norm.": "model.vq_adaptor.layers.3.",
}

ORIGINAL_CHAT_TEMPLATE = (
    "{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for item in message.content %}"
    "{%- if item.type == 'audio' %}{{- '<|audio_start|><|audio_pad|><|audio_end|>\n' }}"
    "{%- elif item.type == 'text' %}{{- item.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def make_checkpoint(
    directory: Path,
    *,
    layout: Layout = "native",
    seed: int = 0,
    text: Mapping[str, Any] | None = None,
    audio: Mapping[str, Any] | None = None,
    marker_every_s: int | None = None,
    chat_template: str | None = None,
    lm_head: bool = False,
    dtype: torch.dtype = torch.float32,
    shard_bytes: int = 256 << 20,
) -> Path:
    """Write a random checkpoint, tiny unless `text` and `audio` say otherwise.

    Args:
        directory: Created if missing.
        layout: Names of tensors and configuration fields.
        seed: Decides every value.
        text: Decoder fields over `TINY_TEXT`, in Qwen3's names with a flat `rope_theta`.
        audio: Encoder fields over `TINY_AUDIO`, in the native names.
        marker_every_s: Seconds between time markers; by default 2 natively, 5 originally.
        chat_template: By default the layout's own.
        lm_head: Whether the tied output matrix is stored a second time.
        dtype: Of all tensors.
        shard_bytes: A shard is closed when it holds this many bytes; one shard has no index.

    Returns:
        `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    native = _native_config(TINY_TEXT | dict(text or {}), TINY_AUDIO | dict(audio or {}), dtype)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(MINI / name, directory / name)
    processor = json.loads((MINI / "processor_config.json").read_text())
    if layout == "native":
        _write_json(directory / "config.json", native)
        processor["time_marker_every_seconds"] = 2 if marker_every_s is None else marker_every_s
        default_template = (MINI / "chat_template.jinja").read_text()
    else:
        _write_json(directory / "config.json", _original_config(native))
        extractor = processor.pop("feature_extractor")
        extractor["feature_extractor_type"] = "WhisperFeatureExtractor"
        _write_json(directory / "preprocessor_config.json", extractor)
        processor = {
            "audio_merge_size": 4,
            "audio_tokens_per_second": 12.5,
            "enable_time_marker": True,
            "processor_class": "MossTranscribeDiarizeProcessor",
            "time_marker_every_seconds": 5 if marker_every_s is None else marker_every_s,
        }
        default_template = ORIGINAL_CHAT_TEMPLATE
    _write_json(directory / "processor_config.json", processor)
    (directory / "chat_template.jinja").write_text(chat_template or default_template)
    _write_tensors(directory, _tensors(native, layout, seed, lm_head, dtype), shard_bytes)
    return directory


def make_twins(directory: Path, *, seed: int = 0, marker_every_s: int = 5) -> tuple[Path, Path]:
    """Write an original checkpoint and its native twin: same tensors, markers and template.

    Returns:
        The original's directory and the twin's, both inside `directory`.
    """
    original = make_checkpoint(
        directory / "original", layout="original", seed=seed, marker_every_s=marker_every_s
    )
    twin = make_checkpoint(
        directory / "twin",
        layout="native",
        seed=seed,
        marker_every_s=marker_every_s,
        chat_template=ORIGINAL_CHAT_TEMPLATE,
    )
    return original, twin


def make_full_size(directory: Path, layout: Layout, *, seed: int = 0) -> Path:
    """Write random weights in the shape of the 0.9B model: bf16, 1.8 GB, shard by shard."""
    return make_checkpoint(
        directory,
        layout=layout,
        seed=seed,
        text=FULL_TEXT,
        audio=FULL_AUDIO,
        dtype=torch.bfloat16,
    )


def _native_config(
    text: dict[str, Any], audio: dict[str, Any], dtype: torch.dtype
) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MINI / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    rope = {"rope_theta": text.pop("rope_theta"), "rope_type": "default"}
    config["text_config"] |= text | {"rope_parameters": rope}
    config["text_config"]["layer_types"] = ["full_attention"] * text["num_hidden_layers"]
    config["audio_config"] |= audio
    return config


def _original_config(native: dict[str, Any]) -> dict[str, Any]:
    audio = native["audio_config"]
    text = dict(native["text_config"])
    text["rope_theta"] = text.pop("rope_parameters")["rope_theta"]
    return {
        "architectures": native["architectures"],
        "model_type": native["model_type"],
        "dtype": native["dtype"],
        "audio_config": {
            "model_type": "whisper",
            "d_model": audio["hidden_size"],
            "encoder_layers": audio["num_hidden_layers"],
            "encoder_attention_heads": audio["num_attention_heads"],
            "encoder_ffn_dim": audio["intermediate_size"],
            "num_mel_bins": audio["num_mel_bins"],
            "max_source_positions": audio["max_source_positions"],
            "activation_function": audio["activation_function"],
            "scale_embedding": False,
        },
        "text_config": text,
        "adaptor_input_dim": audio["hidden_size"] * native["audio_merge_size"],
        "audio_merge_size": native["audio_merge_size"],
        "audio_token_id": native["audio_token_id"],
        "tie_word_embeddings": native["tie_word_embeddings"],
    }


def _tensors(
    native: dict[str, Any], layout: Layout, seed: int, lm_head: bool, dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    with torch.device("meta"):
        model = transformers.MossTranscribeDiarizeForConditionalGeneration(
            transformers.MossTranscribeDiarizeConfig(**native)
        )
    for name, meta in model.state_dict().items():
        if name == "lm_head.weight":
            if lm_head:
                yield name, _values("model.language_model.embed_tokens.weight", meta, seed, dtype)
            continue
        stored = name
        if layout == "original":
            for ours, theirs in ORIGINAL_NAMES.items():
                stored = stored.replace(ours, theirs)
        yield stored, _values(name, meta, seed, dtype)


def _values(name: str, meta: torch.Tensor, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw one tensor so that greedy output varies and depends on all that came before.

    With tied embeddings and small layers, a random decoder repeats its input for ever; so layers
    outweigh the residual, and attention is sharp and outweighs the MLP.
    """
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    values = torch.randn(meta.shape, generator=generator)
    if name.endswith("embed_tokens.weight"):
        values.mul_(0.2)
    elif name.endswith("embed_positions.weight"):
        values.mul_(0.5)
    elif "norm" in name:
        sharpness = 4.0 if "q_norm" in name else 1.0
        values.mul_(0.1).add_(0.0 if name.endswith("bias") else sharpness)
    elif name.endswith("bias"):
        values.mul_(0.1)
    else:
        gain = 4.0 if "o_proj" in name else 1.5
        values.mul_(gain / math.sqrt(math.prod(meta.shape[1:])))
    return values.to(dtype)


def _write_tensors(
    directory: Path, tensors: Iterator[tuple[str, torch.Tensor]], shard_bytes: int
) -> None:
    paths: list[Path] = []
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for shard in _shards(tensors, shard_bytes):
        paths.append(directory / f"model-{len(paths) + 1:05}.safetensors")
        save_file(shard, paths[-1], metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, paths[-1].name)
        total_bytes += sum(tensor.nbytes for tensor in shard.values())
    if len(paths) == 1:
        paths[0].rename(directory / "model.safetensors")
        return
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    _write_json(directory / "model.safetensors.index.json", index)


def _shards(
    tensors: Iterator[tuple[str, torch.Tensor]], shard_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    held_bytes = 0
    for name, tensor in tensors:
        shard[name] = tensor
        held_bytes += tensor.nbytes
        if held_bytes >= shard_bytes:
            yield shard
            shard, held_bytes = {}, 0
    if shard:
        yield shard


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
