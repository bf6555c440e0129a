"""What all live streams of a server share: model, engine, speech scorer, clock and load.

Model and engine are those of the transcriber, so recordings and live streams share one machine and
one set of priorities.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence

from moss_stream.engine.delivery import AsyncHandle
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Request, Result
from moss_stream.live.events import DecodeKind, DecodeRequest
from moss_stream.model.checkpoint import Model
from moss_stream.model.threads import side_threads
from moss_stream.model.tokenizer import Tokenizer
from moss_stream.model.vad import Vad
from moss_stream.server.metrics import Metrics
from moss_stream.server.scoring import Scorer
from moss_stream.server.stream import LiveStream, live_request

logger = logging.getLogger(__name__)

TICK_S = 0.1
"""How often streams look at the clock: it bounds how late a retry or an acknowledgement is."""
_SHARE = 2.0
"""Refresh intervals in the time a refresh takes: half of a stream's time is left to others."""
_SMOOTHING = 0.3
_FADE = 0.98  # of the measured time at each tick: an idle server forgets that it was busy


def model_threads() -> int:
    """CPU threads of the model: a core is left to the event loop and to whoever else is there.

    Threads of one computation wait for each other, so one that shares its core with another busy
    process holds up all: with as many threads as cores a decode can take a hundred times as long.
    """
    return max(1, (os.cpu_count() or 2) - 1)


class Hub:
    """The shared part of a server. Make and use it on one event loop.

    Args:
        model: The checkpoint.
        engine: Runs it.
        vad: Finds speech.
        metrics: Told what decodes cost.
    """

    def __init__(self, model: Model, engine: Engine, vad: Vad, metrics: Metrics) -> None:
        self.model = model
        self.engine = engine
        self.metrics = metrics
        self._workers = side_threads(2, "moss-live")
        self._scorer = Scorer(vad, self._workers)
        self._streams: set[LiveStream] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._refresh_s = 0.0
        """Time a refresh takes at present, from the wish to the answer."""

    @property
    def codec(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    def start(self) -> None:
        """Begin to score and to tick."""
        self._tasks = [
            asyncio.create_task(self._scorer.run(), name="moss-scorer"),
            asyncio.create_task(self._tick(), name="moss-ticker"),
        ]
        for task in self._tasks:
            task.add_done_callback(_log_end)

    async def stop(self) -> None:
        """Stop; the engine is its owner's."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._workers.shutdown(wait=True, cancel_futures=True)

    def add(self, stream: LiveStream) -> None:
        """Score and tick a stream from now on."""
        self._streams.add(stream)
        self._scorer.add(stream)

    def remove(self, stream: LiveStream) -> None:
        """Forget a stream."""
        self._streams.discard(stream)
        self._scorer.remove(stream)

    def notice(self, stream: LiveStream) -> None:
        """A stream has new frames."""
        self._scorer.notice(stream)

    def check_keywords(self, keywords: Sequence[str]) -> None:
        """Refuse words that the model cannot be told to expect.

        Raises:
            ConfigError: One contains a special token of the model.
        """
        self.model.prompts.build((), hotwords=keywords)

    async def submit(
        self, asked: DecodeRequest, keywords: Sequence[str], stream_id: str
    ) -> tuple[AsyncHandle, bool]:
        """Give a decode to the engine.

        Returns:
            Where its tokens come, and whether nothing waits before it.

        Raises:
            MossStreamError: It does not fit, or the engine takes nothing.
        """

        def prepare() -> tuple[Request, bool]:
            request = live_request(
                self.model,
                asked,
                keywords,
                stream_id=stream_id,
                max_tokens=self.engine.max_tokens,
            )
            stats = self.engine.stats()
            return request, stats.waiting == stats.finals == 0

        loop = asyncio.get_running_loop()
        request, is_free = await loop.run_in_executor(self._workers, prepare)
        return self.engine.submit_async(request), is_free

    def note(self, asked: DecodeRequest, result: Result, elapsed_s: float) -> None:
        """Learn from a decode that ended."""
        self.metrics.observe_result(result.usage, result.timing)
        if asked.kind is DecodeKind.REFRESH:
            self._refresh_s += _SMOOTHING * (elapsed_s - self._refresh_s)

    def load(self, refresh_s: float) -> float:
        """How much longer than `refresh_s` refreshes should wait, a factor of at least 1."""
        return max(1.0, _SHARE * self._refresh_s / refresh_s)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._refresh_s *= _FADE
            for stream in list(self._streams):
                stream.tick()


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical("task=%s ended", task.get_name(), exc_info=task.exception())
