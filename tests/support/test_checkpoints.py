from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.checkpoints import make_checkpoint, make_twins
from support.reference import reference_generate, reference_inputs

NOISE = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)


def test_twins_hold_the_same_tensors(tmp_path: Path) -> None:
    original, twin = (load_file(p / "model.safetensors") for p in make_twins(tmp_path))

    assert len(original) == len(twin)
    assert torch.equal(
        original["model.vq_adaptor.layers.2.weight"],
        twin["model.multi_modal_projector.linear_2.weight"],
    )
    assert torch.equal(
        original["model.whisper_encoder.layers.1.fc1.bias"],
        twin["model.audio_tower.layers.1.fc1.bias"],
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_checkpoint_output_is_varied(tmp_path: Path, seed: int) -> None:
    directory = make_checkpoint(tmp_path, seed=seed)

    ids = reference_generate(directory, NOISE, max_new_tokens=40)

    assert len(set(ids)) >= 20


def test_checkpoint_in_shards_is_the_same_model(tmp_path: Path) -> None:
    whole = make_checkpoint(tmp_path / "whole")
    shards = make_checkpoint(tmp_path / "shards", shard_bytes=1 << 20, lm_head=True)

    index = json.loads((shards / "model.safetensors.index.json").read_text())

    assert len(set(index["weight_map"].values())) > 1
    assert "lm_head.weight" in index["weight_map"]
    assert reference_generate(whole, NOISE, max_new_tokens=10) == reference_generate(
        shards, NOISE, max_new_tokens=10
    )


def test_original_template_takes_the_instruction_from_the_caller(tmp_path: Path) -> None:
    _, twin = make_twins(tmp_path)

    with_instruction = reference_inputs(twin, NOISE, prompt="Write it down.")["input_ids"]

    assert with_instruction.shape[1] > reference_inputs(twin, NOISE)["input_ids"].shape[1]
