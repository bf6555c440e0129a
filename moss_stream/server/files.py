"""`POST /v1/audio/transcriptions`: a recording in, its transcript out, whole or as it is written.

The file is read and decoded in a worker thread under the limits of `FileLimits`; each request has a
place of its own until its thread has ended, even when its client is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moss_stream.errors import InvalidMessage, MossStreamError, QueueFull
from moss_stream.server.file_job import FileJob, FileTranscriber
from moss_stream.server.metrics import Metrics
from moss_stream.server.models import check_model
from moss_stream.server.problems import error_body, status_of
from moss_stream.server.protocols.openai_files import (
    done_event,
    segment_events,
    server_sent,
    transcript_headers,
    write_transcript,
)
from moss_stream.server.uploads import FileLimits, Upload, discard_body, read_upload
from moss_stream.types import Segment

__all__ = ["FileTranscriber", "routes"]

FIRST_SEGMENT_S: Final = 5.0
"""How long a stream waits for its first segment before it starts: until then a failure has an HTTP
status of its own."""
HEARTBEAT_S: Final = 15.0
"""Longest silence of a stream, seconds: proxies close what says nothing for a minute."""
BUSY_RETRY_S: Final = 5.0


def routes(
    transcriber: FileTranscriber,
    limits: FileLimits | None = None,
    *,
    model: str = "mini",
    metrics: Metrics | None = None,
) -> list[Route]:
    """Routes for recordings. Errors are raised; `problems.EXCEPTION_HANDLERS` answers them.

    Args:
        transcriber: Does the work.
        limits: What is accepted.
        model: Name of the loaded model.
        metrics: Where to count.
    """
    files = _Files(transcriber, limits or FileLimits(), model, metrics or Metrics())
    return [
        Route("/v1/audio/transcriptions", files.transcribe, methods=["POST"]),
        Route("/v1/audio/translations", files.translate, methods=["POST"]),
    ]


class _Files:
    """Recordings under way on one server."""

    def __init__(
        self, transcriber: FileTranscriber, limits: FileLimits, model: str, metrics: Metrics
    ) -> None:
        self._transcriber = transcriber
        self._limits = limits
        self._max_audio_s = min(limits.max_audio_s, transcriber.description["max_audio_s"])
        self._model = model
        self._metrics = metrics
        self._threads: anyio.CapacityLimiter | None = None
        self._num_open = 0

    async def transcribe(self, request: Request) -> Response:
        """Answer a recording with its transcript."""
        started_s = time.monotonic()
        try:
            await self._check_room(request)
            with ExitStack() as place:
                place.enter_context(self._place())
                upload = await read_upload(request, self._limits.max_bytes)
                place.callback(upload.file.close)
                check_model(upload.model, self._model)
                job = self._start(upload, place.pop_all())
            if upload.stream:
                response = await _answer_events(upload, job)
            else:
                response = await _answer_whole(request, upload, job)
        except MossStreamError as error:
            self._metrics.observe_file(status_of(error), time.monotonic() - started_s)
            raise
        self._metrics.observe_file(response.status_code, time.monotonic() - started_s)
        return response

    async def translate(self, request: Request) -> Response:
        """Say that there is no translation."""
        await discard_body(request, self._limits.max_bytes)
        raise InvalidMessage(
            "translation is not served: the model writes the language that is spoken; "
            "send the file to /v1/audio/transcriptions"
        )

    async def _check_room(self, request: Request) -> None:
        if self._num_open >= self._limits.max_requests:
            await discard_body(request, self._limits.max_bytes)
            raise QueueFull(
                f"{self._limits.max_requests} recordings are being worked on, no more are allowed",
                field="max_requests",
                retry_after_s=BUSY_RETRY_S,
            )

    @contextmanager
    def _place(self) -> Iterator[None]:
        self._num_open += 1
        self._metrics.file_opened()
        try:
            yield
        finally:
            self._num_open -= 1
            self._metrics.file_closed()

    def _start(self, upload: Upload, place: ExitStack) -> FileJob:
        """Start work that keeps its place until it has ended, whoever waits for it."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._limits.max_requests)
        job = FileJob(upload, self._transcriber, self._max_audio_s, self._metrics)
        job.start(self._threads, place.close)
        return job


async def _answer_whole(request: Request, upload: Upload, job: FileJob) -> Response:
    watch = asyncio.create_task(_cancel_when_gone(request, job))
    try:
        transcript = await job.transcript()
    finally:
        watch.cancel()
        job.cancel()
    body, media_type = write_transcript(
        transcript,
        upload.response_format,
        language=upload.language,
        temperature=upload.temperature,
    )
    return Response(body, headers=transcript_headers(transcript), media_type=media_type)


async def _cancel_when_gone(request: Request, job: FileJob) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    job.cancel()


async def _answer_events(upload: Upload, job: FileJob) -> Response:
    events = _Events(upload.response_format == "diarized_json", job)
    try:
        await events.begin()
    except BaseException:
        job.cancel()
        raise
    return _EventStream(events.written(), job)


class _Events:
    """Server-sent events of one recording.

    Args:
        diarized: Whether to send segments with their speakers besides the words.
        job: Where segments come from.
    """

    def __init__(self, diarized: bool, job: FileJob) -> None:
        self._diarized = diarized
        self._job = job
        self._first: Segment | None = None
        self._num_segments = 0

    async def begin(self) -> None:
        """Wait a while for the first segment.

        Raises:
            MossStreamError: The work failed before it.
        """
        with anyio.move_on_after(FIRST_SEGMENT_S):
            try:
                self._first = await self._job.segments.receive()
            except anyio.EndOfStream:
                await self._job.transcript()

    async def written(self) -> AsyncGenerator[bytes, None]:
        """The events as bytes, with a comment now and then while there are none."""
        try:
            if self._first is not None:
                yield self._write(self._first)
            while True:
                segment: Segment | None = None
                with anyio.move_on_after(HEARTBEAT_S):
                    segment = await self._job.segments.receive()
                yield b": still here\n\n" if segment is None else self._write(segment)
        except anyio.EndOfStream:
            yield await self._last()

    def _write(self, segment: Segment) -> bytes:
        events = segment_events(segment, self._num_segments, diarized=self._diarized)
        self._num_segments += 1
        return b"".join(server_sent(event) for event in events)

    async def _last(self) -> bytes:
        try:
            return server_sent(done_event(await self._job.transcript()))
        except MossStreamError as error:
            return server_sent(error_body(error))


class _EventStream(StreamingResponse):
    """Ends the work when the client leaves, wherever sending stood."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[bytes, None], job: FileJob) -> None:
        # Proxies that buffer would hold the events back.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, headers=headers)
        self._job = job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._job.cancel()
