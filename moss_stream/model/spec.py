"""What a checkpoint says about itself: every number the code needs, read from its own files.

Nothing here is assumed from a known checkpoint. A field the model cannot run without is required
and its absence is an error; a field with a documented default in the reference configuration takes
that default.

Letters for shapes, the same in every module of this room: W windows, M mels, F mel frames, T
tokens or encoder positions, N rows, D width, H query heads, K key heads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from moss_stream.errors import UnsupportedModelError

MODEL_TYPE = "moss_transcribe_diarize"
CONV_STRIDE = 2
"""Mel frames per encoder position (stride of the encoder's second convolution)."""


class Layout(StrEnum):
    """Which of the two published arrangements of names a checkpoint uses."""

    NATIVE = "native"
    """As transformers writes it: `model.audio_tower.*`, `model.multi_modal_projector.*`."""
    ORIGINAL = "original"
    """As the authors publish it: `model.whisper_encoder.*`, `model.vq_adaptor.*`."""


@dataclass(frozen=True, slots=True)
class AudioSpec:
    """Front end and prompt geometry."""

    rate_hz: int
    num_mels: int
    n_fft: int
    hop_samples: int
    window_samples: int
    """Samples of one encoder window, 30 s."""
    merge_size: int
    """Encoder positions merged into one audio token."""
    tokens_per_s: float
    marker_every_s: int
    """Seconds between time markers in the prompt; 0 for none."""

    @property
    def token_samples(self) -> int:
        """Samples behind one audio token."""
        return self.hop_samples * CONV_STRIDE * self.merge_size

    @property
    def token_s(self) -> float:
        """Seconds behind one audio token."""
        return self.token_samples / self.rate_hz

    def audio_tokens(self, num_samples: int) -> int:
        """Audio tokens of one window of `num_samples` samples; a started token counts."""
        return -(-num_samples // self.token_samples)


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """Whisper encoder."""

    num_layers: int
    width: int
    num_heads: int
    mlp_width: int
    positions: int
    """Encoder positions of a full window."""
    activation: str


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Qwen3 decoder."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    attention_bias: bool
    activation: str

    @property
    def kv_width(self) -> int:
        """Elements of one position's keys (or values) in one layer."""
        return self.num_kv_heads * self.head_dim

    def kv_position_bytes(self, element_bytes: int) -> int:
        """Bytes of KV of one position over all layers."""
        return 2 * self.num_layers * self.kv_width * element_bytes


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A whole checkpoint."""

    directory: Path
    layout: Layout
    audio: AudioSpec
    encoder: EncoderSpec
    decoder: DecoderSpec
    projector_activation: str
    projector_bias: bool
    audio_token_id: int
    stop_ids: frozenset[int]
    weights_dtype: str
    """dtype the checkpoint was saved for, such as `bfloat16`."""


class _Fields:
    """A JSON object that names itself when a field is missing or of the wrong kind."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self.values = values

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that is present and not null, else `default`."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is not None:
            return default
        raise UnsupportedModelError(
            f"{self.where} has no field {' or '.join(names)}", field=names[0]
        )

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UnsupportedModelError(
                f"{self.where} field {names[0]} is {value!r}, expected a whole number",
                field=names[0],
            )
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UnsupportedModelError(
                f"{self.where} field {names[0]} is {value!r}, expected a number", field=names[0]
            )
        return float(value)

    def section(self, name: str) -> _Fields:
        value = self.get(name)
        if not isinstance(value, dict):
            raise UnsupportedModelError(f"{self.where} field {name} is not an object", field=name)
        return _Fields(f"{self.where} {name}", value)


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        UnsupportedModelError: It is missing though required, or not a JSON object.
    """
    if not path.is_file():
        if required:
            raise UnsupportedModelError(
                f"{path.parent} has no {path.name}: not a checkpoint directory", field="model"
            )
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnsupportedModelError(f"{path} is not JSON: {error}", field="model") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} is not a JSON object", field="model")
    return value


def load_spec(directory: Path) -> ModelSpec:
    """Read a checkpoint directory's configuration, in either layout.

    Raises:
        UnsupportedModelError: A file or field is missing or says something this package cannot run.
    """
    config = _Fields("config.json", read_json(directory / "config.json"))
    model_type = config.values.get("model_type")
    if model_type != MODEL_TYPE:
        raise UnsupportedModelError(
            f"{directory} holds model_type {model_type!r}, this package runs {MODEL_TYPE!r}",
            field="model",
        )
    audio_config = config.section("audio_config")
    text_config = config.section("text_config")
    layout = Layout.ORIGINAL if "d_model" in audio_config.values else Layout.NATIVE
    encoder = _encoder_spec(audio_config)
    audio = _audio_spec(directory, config, audio_config, encoder)
    return ModelSpec(
        directory=directory,
        layout=layout,
        audio=audio,
        encoder=encoder,
        decoder=_decoder_spec(config, text_config),
        projector_activation=str(config.get("projector_hidden_act", default="silu")),
        projector_bias=bool(config.values.get("projector_bias", True)),
        audio_token_id=config.integer("audio_token_id"),
        stop_ids=_stop_ids(directory, text_config),
        weights_dtype=str(config.get("dtype", "torch_dtype", default="float32")),
    )


def _encoder_spec(fields: _Fields) -> EncoderSpec:
    if fields.values.get("scale_embedding"):
        raise UnsupportedModelError(
            "audio_config scale_embedding is true, which this package does not run",
            field="scale_embedding",
        )
    return EncoderSpec(
        num_layers=fields.integer("num_hidden_layers", "encoder_layers"),
        width=fields.integer("hidden_size", "d_model"),
        num_heads=fields.integer("num_attention_heads", "encoder_attention_heads"),
        mlp_width=fields.integer("intermediate_size", "encoder_ffn_dim"),
        positions=fields.integer("max_source_positions"),
        activation=str(fields.get("activation_function", default="gelu")),
    )


def _audio_spec(
    directory: Path, config: _Fields, audio_config: _Fields, encoder: EncoderSpec
) -> AudioSpec:
    processor = _Fields("processor_config.json", read_json(directory / "processor_config.json"))
    front_end_values = processor.values.get("feature_extractor") or read_json(
        directory / "preprocessor_config.json"
    )
    front_end = _Fields("feature extractor configuration", front_end_values)
    spec = AudioSpec(
        rate_hz=front_end.integer("sampling_rate"),
        num_mels=front_end.integer("feature_size"),
        n_fft=front_end.integer("n_fft"),
        hop_samples=front_end.integer("hop_length"),
        window_samples=front_end.integer("chunk_length") * front_end.integer("sampling_rate"),
        merge_size=processor.integer(
            "audio_merge_size", default=config.integer("audio_merge_size", default=4)
        ),
        tokens_per_s=processor.number("audio_tokens_per_second"),
        marker_every_s=(
            processor.integer("time_marker_every_seconds")
            if processor.values.get("enable_time_marker", True)
            else 0
        ),
    )
    if spec.num_mels != audio_config.integer("num_mel_bins"):
        raise UnsupportedModelError(
            f"the front end makes {spec.num_mels} mel bins, the encoder reads "
            f"{audio_config.integer('num_mel_bins')}",
            field="num_mel_bins",
        )
    if spec.window_samples != encoder.positions * CONV_STRIDE * spec.hop_samples:
        raise UnsupportedModelError(
            f"a window of {spec.window_samples} samples does not fill the encoder's "
            f"{encoder.positions} positions",
            field="max_source_positions",
        )
    if front_end.values.get("dither"):
        raise UnsupportedModelError(
            "the front end asks for dither, which would make transcripts random", field="dither"
        )
    return spec


def _decoder_spec(config: _Fields, fields: _Fields) -> DecoderSpec:
    rope = fields.values.get("rope_parameters") or fields.values.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    layer_types = set(fields.values.get("layer_types") or ["full_attention"])
    if rope_type != "default" or layer_types != {"full_attention"}:
        raise UnsupportedModelError(
            f"text_config asks for rope type {rope_type!r} and layer types {sorted(layer_types)}; "
            "this package runs 'default' and ['full_attention']",
            field="text_config",
        )
    tied = config.values.get("tie_word_embeddings", fields.values.get("tie_word_embeddings", True))
    if not tied:
        raise UnsupportedModelError(
            "tie_word_embeddings is false; this package runs tied embeddings",
            field="tie_word_embeddings",
        )
    width = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", default=num_heads)
    head_dim = fields.integer("head_dim", default=width // num_heads)
    if num_heads % num_kv_heads:
        raise UnsupportedModelError(
            f"num_attention_heads is {num_heads}, which is no multiple of the {num_kv_heads} of "
            "num_key_value_heads",
            field="num_key_value_heads",
        )
    if head_dim % 2:
        raise UnsupportedModelError(
            f"head_dim is {head_dim}; rotary positions turn pairs, so it must be even",
            field="head_dim",
        )
    return DecoderSpec(
        num_layers=fields.integer("num_hidden_layers"),
        width=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_width=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        max_positions=fields.integer("max_position_embeddings"),
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else fields.get("rope_theta")),
        norm_eps=fields.number("rms_norm_eps", default=1e-6),
        attention_bias=bool(fields.values.get("attention_bias", False)),
        activation=str(fields.get("hidden_act", default="silu")),
    )


def _stop_ids(directory: Path, text_config: _Fields) -> frozenset[int]:
    generation = read_json(directory / "generation_config.json", required=False)
    value = generation.get("eos_token_id", text_config.values.get("eos_token_id"))
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) for token_id in ids):
        raise UnsupportedModelError(
            f"eos_token_id is {value!r}, expected token ids", field="eos_token_id"
        )
    return frozenset(ids)
