"""The server under test, in a process of its own.

`refresh` is the server as it is. `redecode` decodes everything anew each time, as servers without
these means do: no draft, no tag foreseen, nothing committed before the final, and every window
unknown to the encoder cache and to the prefix index. Endpoints, eager finals, intervals and
priorities are equal.
"""

from __future__ import annotations

import multiprocessing
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import Any, ClassVar

from prometheus_client.parser import text_string_to_metric_families

from moss_stream.engine.delivery import AsyncHandle
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Request
from moss_stream.model.checkpoint import load_model
from moss_stream.model.vad import load_vad
from moss_stream.server.app import Backend
from moss_stream.server.config import PRESETS, ServerConfig
from moss_stream.server.serve import DrainingServer
from moss_stream.types import Window

POLICIES = ("refresh", "redecode")
_NEVER_S = 30.0
"""Commit margin that no utterance reaches, seconds: the longest lasts 28."""
_START_S = 120.0
_STOP_S = 30.0


@dataclass(frozen=True)
class Options:
    """How to start a server."""

    policy: str
    preset: str
    model: str
    dtype: str
    threads: int


class UnseenWindow(Window):
    """A window that equals no other, so nothing computed from one is found again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "digest", os.urandom(len(self.digest)))


class RedecodingEngine(Engine):
    """Takes nothing over from one request to the next."""

    def submit_async(self, request: Request) -> AsyncHandle:
        """See `Engine`."""
        windows = tuple(UnseenWindow(window.samples) for window in request.windows)
        plain = replace(request, windows=windows, draft=(), earlier=(), spelling=None)
        return super().submit_async(plain)


class NoRecordings:
    """Stands in for the transcriber of files: none are sent."""

    description: ClassVar[dict[str, Any]] = {"max_audio_s": 60.0}


class Server:
    """A running server."""

    def __init__(self, process_id: int, port: int) -> None:
        self._process_id = process_id
        self.url = f"ws://127.0.0.1:{port}/v1/realtime?intent=transcription"
        self._metrics_url = f"http://127.0.0.1:{port}/metrics"

    def counts(self) -> dict[str, float]:
        """Work done since the start."""
        with urllib.request.urlopen(self._metrics_url, timeout=30) as answer:
            text = answer.read().decode()
        samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]
        values = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
        prompt, hits = values["moss_prompt_tokens_total",], values["moss_prefix_hit_tokens_total",]
        return {
            "audio s": values.get(("moss_audio_seconds_total", "live"), 0.0),
            "encoder calls": values["moss_encoder_windows_total", "encoder"],
            "prefill tokens": prompt - hits,
            "decoder steps": values["moss_engine_steps_total",],
            "server cpu s": self._cpu_s(),
            "machine cpu s": _machine_cpu_s(),
        }

    def _cpu_s(self) -> float:
        """CPU time of the process, user and system."""
        stat = Path(f"/proc/{self._process_id}/stat").read_text()
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _machine_cpu_s() -> float:
    """CPU time of all processes, and time the host took away."""
    user, nice, system, _idle, _wait, *others = Path("/proc/stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, *others))) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(options: Options) -> Iterator[Server]:
    """Start a server; stops it in the end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(options, there), daemon=True)
    process.start()
    try:
        if not here.poll(_START_S):
            raise TimeoutError(f"the server did not start within {_START_S:g} s")
        yield Server(process.pid or 0, here.recv())
    finally:
        process.terminate()
        process.join(_STOP_S)
        process.kill()


def _serve(options: Options, ready: Connection) -> None:
    class Announcing(DrainingServer):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            ready.send(self.servers[0].sockets[0].getsockname()[1])

    model = load_model(options.model, device="cpu", dtype=options.dtype)
    vad = load_vad()
    redecodes = options.policy == "redecode"
    if redecodes:
        live = PRESETS[options.preset]
        PRESETS[options.preset] = lambda: replace(live(), commit_margin_s=_NEVER_S)
    engine = (RedecodingEngine if redecodes else Engine)(model, threads=options.threads)
    try:
        backend = Backend(options.model, model, engine, vad, NoRecordings())
        config = ServerConfig(port=0, preset=options.preset, max_sessions=1024)
        Announcing(config, backend).run()
    finally:
        engine.close()
