"""Requests for the engine as tests want them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from moss_stream.config import EngineConfig
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Request
from moss_stream.model.checkpoint import Model
from moss_stream.recordings.request import cut_windows

SMALL = {"kv_bytes": 256 << 20}
"""Room for a few minutes of audio, so that an engine per test stays cheap."""


def make_request(
    model: Model, samples: npt.NDArray[np.float32], *, max_new_tokens: int = 48, **fields: Any
) -> Request:
    """A raw greedy request: no loop cut unless asked for."""
    windows = cut_windows(samples, model.spec.audio.window_samples)
    return Request(
        prompt=model.prompts.build([len(window.samples) for window in windows]),
        windows=tuple(windows),
        max_new_tokens=max_new_tokens,
        stop_ids=model.spec.stop_ids,
        **({"stop_loops": False} | fields),
    )


@contextmanager
def running(model: Model, **config: Any) -> Iterator[Engine]:
    """An engine that must end with every KV block accounted for."""
    engine = Engine(model, EngineConfig(**(SMALL | config)), threads=1)
    try:
        yield engine
        assert engine.drain(60)
        engine.check_idle()
    finally:
        engine.close()


def blocked(engine: Engine) -> threading.Event:
    """Make the engine's next forward wait until the returned event is set."""
    release = threading.Event()
    forward = engine._runner.forward

    def wait_first(*arguments: Any) -> list[list[int]]:
        release.wait()
        return forward(*arguments)

    engine._runner.forward = wait_first  # type: ignore[method-assign]
    return release
