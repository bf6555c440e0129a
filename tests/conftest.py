from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.checkpoints import make_checkpoint, make_twins

from moss_stream.model.checkpoint import SHIPPED, Model, load_model


@pytest.fixture(scope="session")
def mini_directory() -> Path:
    return SHIPPED["mini"]


@pytest.fixture(scope="session")
def mini() -> Model:
    return load_model("mini", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint in the native layout, with grouped queries and no biases."""
    return make_checkpoint(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_directory: Path) -> Model:
    return load_model(tiny_directory, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An original checkpoint and the native one that holds the same tensors."""
    return make_twins(tmp_path_factory.mktemp("twins"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """More threads than free cores wait for each other at every operation, many times as long."""
    torch.set_num_threads(1)
