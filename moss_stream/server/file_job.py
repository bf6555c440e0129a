"""One uploaded recording on its way through a worker thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from moss_stream.audio.media import load_media
from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.errors import Cancelled
from moss_stream.server.metrics import Metrics
from moss_stream.server.uploads import Upload
from moss_stream.types import Segment, Transcript

MAX_UNSENT: Final = 16
"""Segments waiting for a slow client before the thread waits too."""


class FileStream(Protocol):
    """What is needed of the transcriber's `SegmentStream`."""

    def __iter__(self) -> Iterator[Segment]:
        """Segments as they close."""
        ...

    @property
    def transcript(self) -> Transcript:
        """The whole, once the segments have ended."""
        ...

    def close(self) -> None:
        """Cancel what is left; from any thread, at any time."""
        ...


class FileTranscriber(Protocol):
    """What is needed of `Transcriber`."""

    @property
    def description(self) -> dict[str, Any]:
        """Has `max_audio_s`, the longest recording, seconds."""
        ...

    def stream(
        self,
        source: npt.NDArray[np.float32],
        sample_rate: int | None = None,
        *,
        prompt: str | None,
        hotwords: Sequence[str],
        temperature: float,
        max_new_tokens: int | None,
    ) -> FileStream:
        """Transcribe samples."""
        ...


class FileJob:
    """Decodes and transcribes an upload. Made, awaited and cancelled on one event loop.

    Args:
        upload: What to transcribe; read, not closed.
        transcriber: Does the work.
        max_audio_s: Longest recording accepted.
        metrics: Where to count.
    """

    def __init__(
        self, upload: Upload, transcriber: FileTranscriber, max_audio_s: float, metrics: Metrics
    ) -> None:
        self._upload = upload
        self._transcriber = transcriber
        self._max_audio_s = max_audio_s
        self._metrics = metrics
        self._send, self.segments = anyio.create_memory_object_stream[Segment](MAX_UNSENT)
        self._stream: FileStream | None = None
        self._is_cancelled = False
        self._task: asyncio.Task[Transcript] | None = None

    def start(self, threads: anyio.CapacityLimiter, on_end: Callable[[], object]) -> None:
        """Start the thread; `on_end` is called when it has ended, however it did.

        `segments` then has the segments as they close, and ends with the work.
        """
        self._task = asyncio.create_task(anyio.to_thread.run_sync(self._work, limiter=threads))

        def end(task: asyncio.Task[Transcript]) -> None:
            on_end()
            if not task.cancelled():
                task.exception()  # seen here, as nobody may be left who asks for the transcript

        self._task.add_done_callback(end)

    async def transcript(self) -> Transcript:
        """Drop the segments that nobody took, and wait for the end of the work.

        Raises:
            MossStreamError: The file was refused, or the work failed or was cancelled.
        """
        assert self._task is not None
        with suppress(anyio.ClosedResourceError):  # cancelled: the task says so
            async for _ in self.segments:
                pass
        return await self._task

    def cancel(self) -> None:
        """Stop the work, if it goes on, and forget its segments."""
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.close()
        self.segments.close()

    def _work(self) -> Transcript:
        try:
            return self._transcribe()
        except anyio.BrokenResourceError:
            raise Cancelled("the client left") from None
        finally:
            anyio.from_thread.run_sync(self._send.close)

    def _transcribe(self) -> Transcript:
        upload = self._upload
        media = load_media(upload.file.read(), max_duration_s=self._max_audio_s)
        self._metrics.observe_audio(media.duration_s, "file")
        stream = self._stream = self._transcriber.stream(
            media.samples, MODEL_RATE_HZ, **upload.options
        )
        try:
            # A cancel before this line found no stream to close.
            if self._is_cancelled:
                raise Cancelled("the client left")
            for segment in stream:
                anyio.from_thread.run(self._send.send, segment)
        finally:
            stream.close()
        transcript = stream.transcript
        self._metrics.observe_result(transcript.usage, transcript.timing)
        warnings = (*media.warnings, *upload.warnings, *transcript.warnings)
        return replace(transcript, warnings=warnings)
