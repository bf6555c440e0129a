from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from moss_stream.errors import ConfigError, UnsupportedModelError, WeightsError
from moss_stream.model.checkpoint import find_checkpoint, load_model
from moss_stream.model.spec import Layout


def copy_with(source: Path, target: Path, change: dict[str, torch.Tensor | None]) -> Path:
    """Copy a checkpoint, replacing tensors or, where the value is None, leaving them out."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors") | {
        name: value for name, value in change.items() if value is not None
    }
    for name, value in change.items():
        if value is None:
            del tensors[name]
    save_file(tensors, target / "model.safetensors")
    return target


def edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_both_layouts_load_to_the_same_model(twins: tuple[Path, Path]) -> None:
    original, native = (load_model(path, dtype="float32") for path in twins)
    assert (original.spec.layout, native.spec.layout) == (Layout.ORIGINAL, Layout.NATIVE)
    mels = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours, twins_own = (model.encoder.encode(mels, [50]) for model in (original, native))
    torch.testing.assert_close(ours, twins_own)
    assert torch.equal(original.decoder.weights.embedding, native.decoder.weights.embedding)


@pytest.mark.parametrize("index", [0, 1])
def test_a_missing_tensor_is_named_as_the_file_names_it(
    twins: tuple[Path, Path], tmp_path: Path, index: int
) -> None:
    name = ["model.vq_adaptor.layers.2.weight", "model.multi_modal_projector.linear_2.weight"][
        index
    ]
    broken = copy_with(twins[index], tmp_path / "broken", {name: None})
    with pytest.raises(WeightsError, match=f"missing {name}"):
        load_model(broken)


def test_an_extra_and_a_misshapen_tensor_are_named_together(
    tiny_directory: Path, tmp_path: Path
) -> None:
    broken = copy_with(
        tiny_directory,
        tmp_path / "broken",
        {"model.more.weight": torch.zeros(2), "model.language_model.norm.weight": torch.zeros(3)},
    )
    with pytest.raises(WeightsError) as caught:
        load_model(broken)
    assert "unexpected model.more.weight" in caught.value.message
    assert "model.language_model.norm.weight is [3], expected [" in caught.value.message


def test_a_broken_weights_file_is_refused(tiny_directory: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory, broken)
    (broken / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(WeightsError, match="is broken"):
        load_model(broken)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"model_type": "whisper"}, "model_type 'whisper'"),
        ("config.json", {"tie_word_embeddings": False}, "tie_word_embeddings is false"),
        ("config.json", {"audio_token_id": None}, "no field audio_token_id"),
        ("processor_config.json", {"audio_tokens_per_second": "many"}, "expected a number"),
        ("generation_config.json", {"eos_token_id": "stop"}, "expected token ids"),
    ],
)
def test_an_unusable_configuration_names_the_field(
    tiny_directory: Path, tmp_path: Path, file: str, changes: dict[str, object], message: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory, broken)
    edit_json(broken / file, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(broken)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 7, "num_key_value_heads": 2}, "is 7, which is no multiple of"),
        ({"num_attention_heads": 2, "num_key_value_heads": 4}, "is 2, which is no multiple of"),
        ({"head_dim": 15}, "head_dim is 15"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    tiny_directory: Path, tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_directory, broken)
    text_config = json.loads((broken / "config.json").read_text())["text_config"]
    edit_json(broken / "config.json", text_config=text_config | changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(broken)


def test_a_directory_without_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no config\.json: not a checkpoint"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["maxi", "./nowhere", "a/b/c", ""])
def test_a_name_that_is_no_checkpoint_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="not one of mini"):
        find_checkpoint(name)


def test_a_hub_id_without_network_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnsupportedModelError, match="nor could it be downloaded") as caught:
        find_checkpoint("nobody/nothing")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "cuda:x", "cuda:99"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_model("mini", device=device)
    assert caught.value.field == "device"


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype is 'int4', allowed are auto, float32, bfloat16"):
        load_model("mini", dtype="int4")
