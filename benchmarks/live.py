"""Live captions over sockets: how many streams a server keeps up with, and how late its text is.

For each policy (see `live_server`) and kind of audio the number of streams is raised until finals
come late. Every run has a server process of its own, so nothing is warm but the model. Clients
speak from this process.
"""

from __future__ import annotations

import asyncio
import time
from json import dumps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import torch
import typer
from conditions import RATE_HZ, conditions, report
from live_audio import KINDS, Recording, make_recordings
from live_client import Measurements, speak
from live_server import POLICIES, Options, Server, serving
from rich.console import Console

from moss_stream.model.vad import load_vad
from moss_stream.server.hub import model_threads

MAX_FINAL_DELAY_S = 0.5
"""95th percentile of the delay of finals beyond which no streams are added."""
_WARM_UP_S = 4.0


class Percentiles(NamedTuple):
    """Of delays, seconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, values_s: list[float]) -> Self | None:
        """Compute them; None when there are no values."""
        if not values_s:
            return None
        points = np.percentile(values_s, (50, 95, 99))
        return cls(*(round(float(point), 4) for point in points))

    def __str__(self) -> str:
        return "/".join(f"{value:.2f}" for value in self)


def measure(options: Options, recordings: list[Recording]) -> tuple[Measurements, dict[str, float]]:
    """Run one server and its clients; returns what they saw and what it cost."""
    warm_up, *spoken = recordings
    short = Recording(warm_up.samples[: int(_WARM_UP_S * RATE_HZ)], warm_up.speech)
    with serving(options) as server:
        asyncio.run(speak(server.url, [short]))
        before = _counts(server)
        seen = asyncio.run(speak(server.url, spoken))
        after = _counts(server)
    return seen, {name: after[name] - before[name] for name in after}


def _counts(server: Server) -> dict[str, float]:
    clocks = {"clients cpu s": time.process_time(), "wall s": time.monotonic()}
    return server.counts() | clocks


def text_row(seen: Measurements) -> dict[str, Any]:
    return {
        "partial age": Percentiles.of(seen.partial_ages_s),
        "first word": Percentiles.of(seen.first_words_s),
        "finals": len(seen.final_delays_s),
        "final delay": Percentiles.of(seen.final_delays_s),
        "after speech": Percentiles.of(seen.speech_delays_s),
        "failures": len(seen.failures),
    }


def work_row(seen: Measurements, cost: dict[str, float]) -> dict[str, Any]:
    others_s = cost["machine cpu s"] - cost["server cpu s"] - cost["clients cpu s"]
    return {
        "refreshes / audio s": seen.num_refreshes / cost["audio s"],
        "encoder calls": int(cost["encoder calls"]),
        "prefill tokens": int(cost["prefill tokens"]),
        "decoder steps": int(cost["decoder steps"]),
        "server cores": cost["server cpu s"] / cost["wall s"],
        "clients' cores": cost["clients cpu s"] / cost["wall s"],
        "others' cores": others_s / cost["wall s"],
    }


def main(
    streams: Annotated[str, typer.Option(help="Streams at the same time.")] = "1,2,4,8",
    policy: Annotated[str, typer.Option(help=f"Of {', '.join(POLICIES)}.")] = ",".join(POLICIES),
    audio: Annotated[str, typer.Option(help=f"Of {', '.join(KINDS)}.")] = ",".join(KINDS),
    seconds: Annotated[float, typer.Option(help="How long each client speaks.")] = 60.0,
    preset: Annotated[str, typer.Option(help="Preset of the sessions.")] = "agent",
    model: str = "mini",
    dtype: str = "bfloat16",
    threads: Annotated[int, typer.Option(help="Of the model.")] = model_threads(),
    json: Path | None = None,
) -> None:
    """Time live captions; percentiles are p50, p95, p99 in seconds."""
    console = Console(stderr=True)
    torch.set_num_threads(1)
    levels = [int(level) for level in streams.split(",")]
    vad = load_vad()
    texts, works = [], []
    for kind in audio.split(","):
        recordings = make_recordings(kind, 1 + max(levels), seconds, vad)
        for way in policy.split(","):
            options = Options(way, preset, model, dtype, threads)
            for level in levels:
                seen, cost = measure(options, recordings[: 1 + level])
                run = {"audio": kind, "policy": way, "streams": level}
                texts.append(run | text_row(seen))
                works.append(run | work_row(seen, cost))
                for failure in seen.failures:
                    console.print(f"{kind} {way} {level}: {failure}", style="red")
                delay = Percentiles.of(seen.final_delays_s)
                if seen.failures or (delay is not None and delay.p95 > MAX_FINAL_DELAY_S):
                    break
    where = conditions(
        model=model, dtype=dtype, preset=preset, seconds=seconds, server_threads=threads
    )
    report("Live captions: what clients saw", where, texts, None)
    rows = [text | work for text, work in zip(texts, works, strict=True)]
    report("Live captions: what it took", where, works, None)
    if json is not None:
        json.write_text(dumps({"title": "Live captions", "conditions": where, "rows": rows}))


if __name__ == "__main__":
    typer.run(main)
