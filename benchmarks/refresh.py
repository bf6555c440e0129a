"""A growing utterance refreshed at intervals: draft verification against full re-decoding.

Both ways run on the same engine settings and see the same audio at every refresh; the texts must be
equal at every step. Re-decoding takes a step for every token: it foresees no tags either. They take
turns utterance by utterance, each on an engine of its own: two engines in one process would share
the cores even while one of them is idle (`model/threads.py`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from conditions import RATE_HZ, conditions, excerpts, report

from moss_stream.config import EngineConfig
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Priority, Request
from moss_stream.live.utterance import EARLIER_HYPOTHESES
from moss_stream.model.checkpoint import Model, load_model
from moss_stream.recordings.request import OUTPUT_TOKENS_PER_S, cut_windows


@dataclass
class Totals:
    """Sums over all refreshes of one way."""

    refreshes: int = 0
    encoder_calls: int = 0
    prefill_tokens: int = 0
    decode_steps: int = 0
    output_tokens: int = 0
    seconds: float = 0.0


def refresh(
    model: Model,
    engine: Engine,
    samples: Any,
    hypotheses: Sequence[tuple[int, ...]] | None,
    totals: Totals,
) -> tuple[int, ...]:
    """Transcribe what was heard so far.

    `hypotheses` are those before, the newest first; with None every token takes a step.
    """
    windows = cut_windows(samples, model.spec.audio.window_samples)
    request = Request(
        prompt=model.prompts.build([len(window.samples) for window in windows]),
        windows=tuple(windows),
        max_new_tokens=64 + int(OUTPUT_TOKENS_PER_S * len(samples) / RATE_HZ),
        stop_ids=model.spec.stop_ids,
        markup_ids=model.tokenizer.markup_ids,
        draft=hypotheses[0] if hypotheses else (),
        earlier=tuple(hypotheses[1 : 1 + EARLIER_HYPOTHESES]) if hypotheses else (),
        spelling=None if hypotheses is None else model.spelling,
        priority=Priority.PARTIAL,
    )
    started = time.perf_counter()
    result = engine.submit(request).result()
    totals.seconds += time.perf_counter() - started
    totals.refreshes += 1
    totals.encoder_calls += result.usage.encoder_misses
    totals.prefill_tokens += result.usage.prompt_tokens - result.usage.prefix_hit_tokens
    totals.decode_steps += result.usage.decode_steps
    totals.output_tokens += result.usage.output_tokens
    return result.token_ids


def grow(
    model: Model, voices: str, seconds: float, interval_s: float, utterances: int, threads: int
) -> list[dict[str, Any]]:
    names = ("draft", "re-decode")
    totals = {name: Totals() for name in names}
    equal = steps = 0
    for audio in excerpts(utterances, seconds, voices):
        texts: dict[str, list[tuple[int, ...]]] = {name: [] for name in names}
        for name in names:
            engine = Engine(model, EngineConfig(kv_bytes=1 << 30), threads=threads)
            refresh(model, engine, audio[-RATE_HZ:], (), Totals())  # warms up
            for step in range(1, int(seconds / interval_s) + 1):
                heard = audio[: int(step * interval_s * RATE_HZ)]
                hypotheses = texts[name][::-1] if name == "draft" else None
                texts[name].append(refresh(model, engine, heard, hypotheses, totals[name]))
            engine.close()
        equal += sum(a == b for a, b in zip(*texts.values(), strict=True))
        steps += len(texts["draft"])
    plain_totals = totals["re-decode"]
    return [
        {
            "audio": voices,
            "interval s": interval_s,
            "way": name,
            "refreshes": total.refreshes,
            "encoder calls": total.encoder_calls,
            "prefill tokens": total.prefill_tokens,
            "decode steps": total.decode_steps,
            "seconds": total.seconds,
            "steps ratio": total.decode_steps / plain_totals.decode_steps,
            "time ratio": total.seconds / plain_totals.seconds,
            "equal texts": f"{equal}/{steps}",
        }
        for name, total in totals.items()
    ]


def main(
    model: str = "mini",
    seconds: Annotated[float, typer.Option(help="Length the utterance grows to.")] = 30.0,
    voices: Annotated[str, typer.Option(help="Kinds of audio.")] = "one voice,several voices",
    intervals: str = "1,0.5",
    utterances: int = 2,
    dtype: str = "bfloat16",
    threads: int = torch.get_num_threads(),
    json: Path | None = None,
) -> None:
    """Time refreshes of a growing utterance."""
    loaded = load_model(model, device="cpu", dtype=dtype)
    rows = []
    for kind in voices.split(","):
        for interval in intervals.split(","):
            rows += grow(loaded, kind, seconds, float(interval), utterances, threads)
    where = conditions(model=model, dtype=dtype, seconds=seconds, utterances=utterances)
    report("Growing utterance", where, rows, json)


if __name__ == "__main__":
    typer.run(main)
