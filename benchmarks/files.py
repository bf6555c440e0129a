"""Whole recordings: this engine against transformers' `generate`, in one run on one machine.

Both get the same recordings, the same dtype, the same number of threads and the same output budget,
and neither looks for silence or repairs anything. The baseline takes one recording at a time, as
`generate` is commonly used. Every level of concurrency gets a fresh engine, so that none finds
another's windows cached, and a share of the baseline's recordings is timed before each, so that a
machine that slows down slows both. Whoever is not timed has no threads (`model/threads.py`).
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from conditions import RATE_HZ, conditions, excerpts, report

from moss_stream import Transcriber
from moss_stream.model.checkpoint import DTYPES, find_checkpoint
from moss_stream.model.memory import keep_freed_memory
from moss_stream.model.threads import in_passing, use_threads

Samples = npt.NDArray[np.float32]
INPUTS = {"5s": 5.0, "20s": 20.0, "60s": 60.0, "20min": 1200.0}
MAX_NEW_TOKENS = 512


@dataclass
class Run:
    """Measurements of one way of transcribing one kind of input."""

    latencies_s: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    outputs: list[list[int]] = field(default_factory=list)
    stages_s: dict[str, float] = field(default_factory=dict)


class Baseline:
    """transformers' own processor and `generate`."""

    def __init__(self, directory: Path, dtype: torch.dtype) -> None:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        model_class = transformers.MossTranscribeDiarizeForConditionalGeneration
        self.processor: Any = transformers.AutoProcessor.from_pretrained(directory)
        self.model: Any = model_class.from_pretrained(directory, dtype=dtype).eval()

    @torch.inference_mode()
    def transcribe(self, samples: Samples) -> list[int]:
        """Output ids of one recording, the end token apart."""
        inputs = self.processor.apply_transcription_request(
            samples, return_tensors="pt", sampling_rate=RATE_HZ
        ).to(dtype=self.model.dtype)
        output = self.model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        ids: list[int] = output[0, inputs["input_ids"].shape[1] :].tolist()
        stop_ids = self.model.generation_config.eos_token_id
        return ids[:-1] if ids[-1] in stop_ids else ids


def time_baseline(baseline: Baseline, recordings: list[Samples], threads: int, run: Run) -> None:
    use_threads(threads)
    baseline.transcribe(recordings[0][: 2 * RATE_HZ])  # warms up
    for samples in recordings:
        started = time.perf_counter()
        run.outputs.append(baseline.transcribe(samples))
        run.latencies_s.append(time.perf_counter() - started)
    run.wall_s = sum(run.latencies_s)


def time_engine(transcriber: Transcriber, recordings: list[Samples], concurrency: int) -> Run:
    run = Run()

    def one(samples: Samples) -> tuple[float, Any]:
        started = time.perf_counter()
        transcript = transcriber.transcribe(
            samples, RATE_HZ, guards=False, max_new_tokens=MAX_NEW_TOKENS
        )
        return time.perf_counter() - started, transcript

    started = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        finished = list(pool.map(one, recordings))
    run.wall_s = time.perf_counter() - started
    run.latencies_s = [latency for latency, _ in finished]
    run.outputs = [list(transcript.token_ids) for _, transcript in finished]
    for stage in ("encode", "prefill", "decode"):
        run.stages_s[stage] = sum(getattr(t.timing, f"{stage}_s") for _, t in finished)
    return run


def row(kind: str, who: str, concurrency: int, run: Run, baseline: Run | None) -> dict[str, Any]:
    count, duration_s = len(run.latencies_s), INPUTS[kind]
    rate = count * duration_s / run.wall_s
    staged = sum(run.stages_s.values())
    result: dict[str, Any] = {
        "input": kind,
        "engine": who,
        "concurrency": concurrency,
        "recordings": count,
        "req/s": count / run.wall_s,
        "latency mean s": float(np.mean(run.latencies_s)),
        "latency p95 s": float(np.percentile(run.latencies_s, 95)),
        "RTF mean": float(np.mean(run.latencies_s)) / duration_s,
        "audio_s/s": rate,
        "ratio": "",
        "same tokens": "",
        "output tokens": sum(map(len, run.outputs)),
    }
    for stage in ("encode", "prefill", "decode"):
        result[f"{stage} %"] = f"{100 * run.stages_s[stage] / staged:.0f}" if staged else ""
    if baseline is not None:
        base_count = len(baseline.latencies_s)
        result["ratio"] = rate / (base_count * duration_s / baseline.wall_s)
        same = sum(a == b for a, b in zip(run.outputs, baseline.outputs, strict=True))
        result["same tokens"] = f"{same}/{count}"
    return result


def main(
    model: str = "mini",
    concurrency: str = "1,4,8",
    inputs: Annotated[str, typer.Option(help="Of 5s, 20s, 60s, 20min.")] = "5s,20s,60s,20min",
    baseline: Annotated[str, typer.Option(help="transformers, or none.")] = "transformers",
    dtype: str = "bfloat16",
    threads: int = torch.get_num_threads(),
    recordings: Annotated[int, typer.Option(help="Recordings of each input under 20 min.")] = 16,
    json: Path | None = None,
) -> None:
    """Time whole recordings against transformers' generate."""
    keep_freed_memory()  # for both
    levels = [int(level) for level in concurrency.split(",")]
    reference = (
        in_passing(lambda: Baseline(find_checkpoint(model), DTYPES[dtype]))
        if baseline == "transformers"
        else None
    )
    rows = []
    for kind in inputs.split(","):
        audio = excerpts(recordings if INPUTS[kind] < 600 else 2, INPUTS[kind])
        base, runs = Run(), []
        for index, level in enumerate(levels):
            if reference is not None:
                # A contiguous share each: outputs stay in the order of the recordings.
                first, last = (len(audio) * n // len(levels) for n in (index, index + 1))
                if share := audio[first:last]:
                    in_passing(partial(time_baseline, reference, share, threads, base))
            with Transcriber(model, "cpu", dtype, threads=threads) as transcriber:
                transcriber.transcribe(audio[0][: 2 * RATE_HZ], RATE_HZ)
                runs.append(time_engine(transcriber, audio, level))
        if reference is not None:
            rows.append(row(kind, "transformers", 1, base, None))
        for level, run in zip(levels, runs, strict=True):
            rows.append(row(kind, "moss_stream", level, run, base if reference else None))
    where = conditions(model=model, dtype=dtype, max_new_tokens=MAX_NEW_TOKENS)
    report("Whole recordings", where, rows, json)


if __name__ == "__main__":
    typer.run(main)
