"""The 0.9B shape, with random weights, in either layout."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.checkpoints import make_full_size

LIMIT_BYTES = 8 << 30
RUN = """
import json, resource, sys
import numpy as np
from moss_stream.config import EngineConfig
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Request
from moss_stream.model.checkpoint import load_model
from moss_stream.recordings.request import cut_windows

model = load_model(sys.argv[1], device="cpu", dtype="bfloat16")
samples = np.random.default_rng(0).normal(0, 0.1, 48_000).astype(np.float32)
windows = cut_windows(samples, model.spec.audio.window_samples)
engine = Engine(model, EngineConfig(kv_bytes=256 << 20), threads=2)
request = Request(
    prompt=model.prompts.build([len(samples)]),
    windows=tuple(windows),
    max_new_tokens=11,
    stop_ids=frozenset(),
    stop_loops=False,
)
result = engine.submit(request).result(300)
engine.close()
print(json.dumps({
    "layout": model.spec.layout,
    "parameters": model.parameters,
    "tokens": len(result.token_ids),
    "decode_steps": result.usage.decode_steps,
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["native", "original"])
def test_full_size_runs_within_memory(tmp_path: Path, layout: str) -> None:
    directory = make_full_size(tmp_path / layout, layout)
    # A process of its own, so that its memory is its own.
    run = subprocess.run(
        [sys.executable, "-c", RUN, str(directory)], capture_output=True, text=True, check=True
    )
    said = json.loads(run.stdout)
    assert said["layout"] == layout
    assert said["parameters"] == 908_513_280
    assert (said["tokens"], said["decode_steps"]) == (11, 10)
    assert said["peak_bytes"] < LIMIT_BYTES
