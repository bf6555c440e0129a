"""Tensors of a checkpoint, in either layout, checked by name and shape and laid out for inference.

transformers maps only the native names, so the mapping is ours: every tensor is asked for by its
native name, and for an original checkpoint by the name that stands for it there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from moss_stream.errors import WeightsError
from moss_stream.model.decoder import DecoderLayer, DecoderWeights
from moss_stream.model.encoder import EncoderLayer, EncoderWeights, Norm
from moss_stream.model.linear import Linear
from moss_stream.model.spec import DecoderSpec, Layout, ModelSpec

ORIGINAL_NAMES = (
    ("model.audio_tower.", "model.whisper_encoder."),
    ("model.multi_modal_projector.linear_1.", "model.vq_adaptor.layers.0."),
    ("model.multi_modal_projector.linear_2.", "model.vq_adaptor.layers.2."),
    ("model.multi_modal_projector.norm.", "model.vq_adaptor.layers.3."),
)
"""Native prefixes and what the original layout calls them; all other names agree."""
IGNORED = ("lm_head.weight",)
"""Tensors that may be present but repeat another: the head is tied to the embedding."""
ENCODER_NORM_EPS = 1e-5
"""torch's default, which the reference encoder uses."""


def load_weights(
    spec: ModelSpec, *, dtype: torch.dtype, device: torch.device
) -> tuple[EncoderWeights, DecoderWeights]:
    """Load a checkpoint's tensors.

    Raises:
        WeightsError: Tensors are missing, unexpected, wrongly shaped or unreadable; all are named.
    """
    shapes = expected_shapes(spec)
    with ExitStack() as stack:
        stored = _open_tensors(spec.directory, stack)
        names = {name: _stored_name(name, spec.layout) for name in shapes}
        _check(spec.directory, shapes, names, stored)

        def take(name: str) -> torch.Tensor:
            tensor: torch.Tensor = stored[names[name]].get_tensor(names[name])
            return tensor.to(device=device, dtype=dtype).contiguous()

        return _encoder_weights(spec, take), _decoder_weights(spec.decoder, take)


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Native name to shape of every tensor a checkpoint of this configuration must have."""
    return dict([*_encoder_shapes(spec), *_decoder_shapes(spec.decoder)])


def _encoder_shapes(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    tower, encoder, text_width = "model.audio_tower", spec.encoder, spec.decoder.width
    width = encoder.width
    yield f"{tower}.conv1.weight", (width, spec.audio.num_mels, 3)
    yield f"{tower}.conv1.bias", (width,)
    yield f"{tower}.conv2.weight", (width, width, 3)
    yield f"{tower}.conv2.bias", (width,)
    yield f"{tower}.embed_positions.weight", (encoder.positions, width)
    for index in range(encoder.num_layers):
        layer = f"{tower}.layers.{index}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield f"{layer}.self_attn.{name}.weight", (width, width)
            if name != "k_proj":
                yield f"{layer}.self_attn.{name}.bias", (width,)
        yield f"{layer}.fc1.weight", (encoder.mlp_width, width)
        yield f"{layer}.fc1.bias", (encoder.mlp_width,)
        yield f"{layer}.fc2.weight", (width, encoder.mlp_width)
        yield f"{layer}.fc2.bias", (width,)
        yield from _norm_shapes(f"{layer}.self_attn_layer_norm", width)
        yield from _norm_shapes(f"{layer}.final_layer_norm", width)
    yield from _norm_shapes(f"{tower}.layer_norm", width)
    projector = "model.multi_modal_projector"
    yield f"{projector}.linear_1.weight", (text_width, width * spec.audio.merge_size)
    yield f"{projector}.linear_2.weight", (text_width, text_width)
    if spec.projector_bias:
        yield f"{projector}.linear_1.bias", (text_width,)
        yield f"{projector}.linear_2.bias", (text_width,)
    yield from _norm_shapes(f"{projector}.norm", text_width)


def _norm_shapes(name: str, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _decoder_shapes(spec: DecoderSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    model, width = "model.language_model", spec.width
    query_width = spec.num_heads * spec.head_dim
    projections = {
        "q_proj": (query_width, width),
        "k_proj": (spec.kv_width, width),
        "v_proj": (spec.kv_width, width),
        "o_proj": (width, query_width),
    }
    yield f"{model}.embed_tokens.weight", (spec.vocab_size, width)
    yield f"{model}.norm.weight", (width,)
    for index in range(spec.num_layers):
        layer = f"{model}.layers.{index}"
        for name, shape in projections.items():
            yield f"{layer}.self_attn.{name}.weight", shape
            if spec.attention_bias:
                yield f"{layer}.self_attn.{name}.bias", shape[:1]
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", (spec.head_dim,)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", (spec.mlp_width, width)
        yield f"{layer}.mlp.down_proj.weight", (width, spec.mlp_width)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (width,)


def _stored_name(native: str, layout: Layout) -> str:
    if layout is Layout.ORIGINAL:
        for prefix, original in ORIGINAL_NAMES:
            if native.startswith(prefix):
                return original + native.removeprefix(prefix)
    return native


def _open_tensors(directory: Path, stack: ExitStack) -> dict[str, Any]:
    """Stored name to the open file that holds it."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = ["model.safetensors"]
    stored: dict[str, Any] = {}
    for file in files:
        path = directory / file
        if not path.is_file():
            raise WeightsError(f"{directory} has no {file}", field="model")
        try:
            tensors = stack.enter_context(safe_open(path, framework="pt"))
        except SafetensorError as error:
            raise WeightsError(f"{path} is broken: {error}", field="model") from error
        stored.update(dict.fromkeys(tensors.keys(), tensors))
    return stored


def _check(
    directory: Path,
    shapes: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    stored: Mapping[str, Any],
) -> None:
    """Name everything that is wrong at once, so that one look at the error is enough."""
    missing = [name for name in names.values() if name not in stored]
    extra = sorted(set(stored) - set(names.values()) - set(IGNORED))
    misshapen = []
    for native, name in names.items():
        if name in stored:
            shape = tuple(stored[name].get_slice(name).get_shape())
            if shape != shapes[native]:
                misshapen.append(f"{name} is {list(shape)}, expected {list(shapes[native])}")
    problems = [
        f"{kind} {_some(items)}"
        for kind, items in (("missing", missing), ("unexpected", extra), ("misshapen", misshapen))
        if items
    ]
    if problems:
        raise WeightsError(f"checkpoint {directory}: {'; '.join(problems)}", field="model")


def _some(items: list[str], limit: int = 4) -> str:
    rest = f" and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + rest


def _encoder_weights(spec: ModelSpec, take: Callable[[str], torch.Tensor]) -> EncoderWeights:
    tower, projector = "model.audio_tower", "model.multi_modal_projector"

    def norm(name: str, eps: float = ENCODER_NORM_EPS) -> Norm:
        return Norm(take(f"{name}.weight"), take(f"{name}.bias"), eps)

    def linear(name: str) -> Linear:
        return Linear(take(f"{name}.weight"), take(f"{name}.bias"))

    def project(name: str) -> Linear:
        return linear(name) if spec.projector_bias else Linear(take(f"{name}.weight"))

    def layer(name: str) -> EncoderLayer:
        attention = f"{name}.self_attn"
        value_bias = take(f"{attention}.v_proj.bias")
        return EncoderLayer(
            attention_norm=norm(f"{name}.self_attn_layer_norm"),
            query=linear(f"{attention}.q_proj"),
            key_value=Linear(
                torch.cat((take(f"{attention}.k_proj.weight"), take(f"{attention}.v_proj.weight"))),
                torch.cat((torch.zeros_like(value_bias), value_bias)),
            ),
            output=linear(f"{attention}.out_proj"),
            mlp_norm=norm(f"{name}.final_layer_norm"),
            up=linear(f"{name}.fc1"),
            down=linear(f"{name}.fc2"),
        )

    return EncoderWeights(
        conv1=(take(f"{tower}.conv1.weight"), take(f"{tower}.conv1.bias")),
        conv2=(take(f"{tower}.conv2.weight"), take(f"{tower}.conv2.bias")),
        positions=take(f"{tower}.embed_positions.weight"),
        layers=tuple(layer(f"{tower}.layers.{i}") for i in range(spec.encoder.num_layers)),
        final_norm=norm(f"{tower}.layer_norm"),
        projector_in=project(f"{projector}.linear_1"),
        projector_out=project(f"{projector}.linear_2"),
        projector_norm=norm(f"{projector}.norm", spec.decoder.norm_eps),
    )


def _decoder_weights(spec: DecoderSpec, take: Callable[[str], torch.Tensor]) -> DecoderWeights:
    model = "model.language_model"

    def joined(layer: str, *names: str) -> Linear:
        weight = torch.cat([take(f"{layer}.{name}.weight") for name in names])
        if spec.attention_bias and "self_attn" in layer:
            return Linear(weight, torch.cat([take(f"{layer}.{name}.bias") for name in names]))
        return Linear(weight)

    def layer(name: str) -> DecoderLayer:
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return DecoderLayer(
            attention_norm=take(f"{name}.input_layernorm.weight"),
            qkv=joined(attention, "q_proj", "k_proj", "v_proj"),
            qk_norm=torch.cat(
                (
                    take(f"{attention}.q_norm.weight").expand(spec.num_heads, -1),
                    take(f"{attention}.k_norm.weight").expand(spec.num_kv_heads, -1),
                )
            ),
            output=joined(attention, "o_proj"),
            mlp_norm=take(f"{name}.post_attention_layernorm.weight"),
            gate_up=joined(mlp, "gate_proj", "up_proj"),
            down=joined(mlp, "down_proj"),
        )

    embedding = take(f"{model}.embed_tokens.weight")
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(f"{model}.layers.{i}") for i in range(spec.num_layers)),
        final_norm=take(f"{model}.norm.weight"),
        head=Linear(embedding),
    )
