"""The file endpoint on its own, and a transcriber whose answers are known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from starlette.applications import Starlette
from support.http import serving
from support.media import wav_bytes

from moss_stream.server import files
from moss_stream.server.metrics import Metrics
from moss_stream.server.problems import EXCEPTION_HANDLERS
from moss_stream.server.uploads import FileLimits
from moss_stream.types import Segment, Transcript

SEGMENTS = (Segment(0.5, 1.0, "S01", "one"), Segment(1.0, 2.0, "S02", "two"))
TRANSCRIPT = Transcript(
    segments=SEGMENTS,
    markup="",
    token_ids=(),
    duration_s=2.0,
    coverage_end_s=2.0,
    truncated=False,
)


def silent_wav(seconds: float, rate_hz: int = 16_000) -> bytes:
    return wav_bytes(np.zeros(round(seconds * rate_hz), dtype=np.int16), rate_hz)


class Scripted:
    """A transcriber whose answers are known, and which waits after a segment when told to."""

    transcript = TRANSCRIPT

    def __init__(self, error: Exception | None = None, max_audio_s: float = 100.0) -> None:
        self.description = {"max_audio_s": max_audio_s}
        self.error = error
        self.options: dict[str, Any] = {}
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()
        self.closed = threading.Event()

    def stream(self, source: Any, sample_rate: int | None = None, **options: Any) -> Scripted:
        self.options = options
        return self

    def __iter__(self) -> Iterator[Segment]:
        yield SEGMENTS[0]
        self.entered.set()
        assert self.may_go.wait(20)
        if self.error:
            raise self.error
        yield SEGMENTS[1]

    def close(self) -> None:
        self.closed.set()
        self.may_go.set()


@contextmanager
def files_app(transcriber: Any, limits: FileLimits | None = None) -> Iterator[httpx.Client]:
    metrics = Metrics()
    routes = files.routes(transcriber, limits, metrics=metrics) + metrics.routes()
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
    with serving(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def post(client: httpx.Client, file: bytes = b"", **fields: Any) -> httpx.Response:
    return client.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", file or silent_wav(1))},
        data=fields,
    )
