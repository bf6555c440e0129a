"""Finding a checkpoint by name and loading it whole."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch

from moss_stream.errors import ConfigError, UnsupportedModelError
from moss_stream.model.decoder import Decoder
from moss_stream.model.encoder import Encoder
from moss_stream.model.mel import MelFrontEnd
from moss_stream.model.prompt import PromptBuilder
from moss_stream.model.spec import ModelSpec, load_spec
from moss_stream.model.threads import in_passing
from moss_stream.model.tokenizer import Tokenizer
from moss_stream.model.weights import expected_shapes, load_weights
from moss_stream.transcript.spelling import Spelling

SHIPPED = {"mini": Path(__file__).parent.parent / "assets" / "mini"}
"""Checkpoints that come with the package."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""dtypes the model runs in, by name."""
HUB_FILES = ("*.json", "*.jinja", "*.safetensors", "*.txt")
"""What is downloaded of a hub repository."""


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded checkpoint."""

    spec: ModelSpec
    tokenizer: Tokenizer
    spelling: Spelling
    prompts: PromptBuilder
    mel: MelFrontEnd
    encoder: Encoder
    decoder: Decoder
    dtype: torch.dtype
    device: torch.device
    parameters: int
    """Number of weights."""


def find_checkpoint(name: str | os.PathLike[str]) -> Path:
    """Directory of a checkpoint: a shipped name, a local directory, or a hub id (downloaded).

    Raises:
        UnsupportedModelError: There is no such thing, or the hub cannot be reached.
    """
    text = os.fspath(name)
    if text in SHIPPED:
        return SHIPPED[text]
    if text and Path(text).is_dir():
        return Path(text)
    if Path(text).exists() or text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise UnsupportedModelError(
            f"model is {text!r}: not one of {', '.join(SHIPPED)}, a checkpoint directory or a hub "
            "id such as owner/name",
            field="model",
        )
    return _download(text)


def _download(hub_id: str) -> Path:
    # Imported here: the hub client is slow to import and most runs need no hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(HUB_FILES)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UnsupportedModelError(
            f"model {hub_id!r} is neither in the local cache nor could it be downloaded from the "
            f"hub: {reason}",
            field="model",
        ) from error


def resolve_device(name: str) -> torch.device:
    """The torch device of `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        ConfigError: No such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise ConfigError(
            f"device is {name!r}, allowed are auto, cpu, cuda and cuda:N", field="device"
        )
    count = torch.cuda.device_count()
    if kind == "cuda" and int(index or 0) >= count:
        raise ConfigError(
            f"device is {name!r}, this machine has {count} CUDA devices", field="device"
        )
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The torch dtype of `auto`, `float32` or `bfloat16`.

    `auto` is bfloat16 where the device computes in it, else float32.

    Raises:
        ConfigError: No such dtype.
    """
    if name == "auto":
        native = device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()
        return torch.bfloat16 if native else torch.float32
    if name not in DTYPES:
        raise ConfigError(
            f"dtype is {name!r}, allowed are auto, {', '.join(DTYPES)}", field="dtype"
        )
    return DTYPES[name]


def load_model(
    name: str | os.PathLike[str] = "mini", *, device: str = "auto", dtype: str = "auto"
) -> Model:
    """Load a checkpoint.

    Raises:
        ConfigError: Unknown device or dtype.
        UnsupportedModelError: Not a checkpoint this package can run.
        WeightsError: Its tensors do not fit its configuration.
    """
    torch_device = resolve_device(device)
    torch_dtype = resolve_dtype(dtype, torch_device)
    spec = load_spec(find_checkpoint(name))
    return in_passing(partial(_load, spec, torch_dtype, torch_device))


@torch.inference_mode()
def _load(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Model:
    tokenizer = Tokenizer(spec.directory)
    encoder, decoder = load_weights(spec, dtype=dtype, device=device)
    return Model(
        spec=spec,
        tokenizer=tokenizer,
        spelling=Spelling(tokenizer.encode, tokenizer.decode, spec.audio.token_s),
        prompts=PromptBuilder(spec, tokenizer),
        mel=MelFrontEnd(spec.audio),
        encoder=Encoder(spec, encoder),
        decoder=Decoder(spec.decoder, decoder),
        dtype=dtype,
        device=device,
        parameters=num_parameters(spec),
    )


def num_parameters(spec: ModelSpec) -> int:
    """Weights of a checkpoint of this configuration, the tied head counted once."""
    return sum(prod(shape) for shape in expected_shapes(spec).values())
