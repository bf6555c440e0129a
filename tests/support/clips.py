"""The recordings in tests/data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parents[1] / "data"


def load_clip(name: str) -> npt.NDArray[np.float32]:
    """Samples of `tests/data/NAME.flac`: [n] float32 at 16 kHz."""
    return load_flac(DATA / f"{name}.flac")


def load_flac(path: Path) -> npt.NDArray[np.float32]:
    """Samples of a 16-bit mono FLAC file: [n] float32, at the file's own rate."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(frames).astype(np.float32) / 32_768


def clip_references(directory: Path = DATA) -> list[dict[str, Any]]:
    """The lines of `refs.jsonl`: audio, duration, segments, set, source."""
    return [json.loads(line) for line in (directory / "refs.jsonl").read_text().splitlines()]
