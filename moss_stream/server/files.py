"""`POST /v1/audio/transcriptions`: a recording in, its transcript out, whole or as it is written.

The file is read and decoded in a worker thread under the limits of `FileLimits`; each request has a
place of its own until its thread has ended, even when its client is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import numpy.typing as npt
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moss_stream.audio.media import Media, load_media
from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.errors import InvalidMessage, MossStreamError, QueueFull
from moss_stream.server.metrics import Metrics
from moss_stream.server.models import check_model
from moss_stream.server.problems import error_body, status_of
from moss_stream.server.protocols.openai_files import (
    described_warnings,
    done_event,
    segment_events,
    server_sent,
    transcript_headers,
    write_transcript,
)
from moss_stream.server.uploads import FileLimits, Upload, discard_body, read_upload
from moss_stream.types import Segment, Transcript

MAX_UNSENT: Final = 16
"""Segments waiting for a slow client before decoding waits too."""
FIRST_SEGMENT_S: Final = 5.0
"""How long a stream waits for its first segment before it starts: until then a failure has an HTTP
status of its own."""
HEARTBEAT_S: Final = 15.0
"""Longest silence of a stream, seconds: proxies close what says nothing for a minute."""
BUSY_RETRY_S: Final = 5.0

T = TypeVar("T")


class FileTranscriber(Protocol):
    """What is needed of `Transcriber`."""

    @property
    def description(self) -> dict[str, Any]:
        """Has `max_audio_s`, the longest recording, seconds."""
        ...

    def transcribe(
        self,
        source: npt.NDArray[np.float32],
        sample_rate: int | None = None,
        *,
        prompt: str | None,
        hotwords: Sequence[str],
        temperature: float,
        max_new_tokens: int | None,
    ) -> Transcript:
        """Transcribe samples and wait."""
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
    ) -> Iterator[Segment]:
        """Transcribe samples and yield segments as they close; leaving early cancels."""
        ...


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
                answer = self._answer_events if upload.stream else self._answer_whole
                response = await answer(upload, place.pop_all())
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

    async def _answer_whole(self, upload: Upload, place: ExitStack) -> Response:
        transcript = await self._in_thread(place, self._transcribe, upload)
        body, media_type = write_transcript(
            transcript,
            upload.response_format,
            language=upload.language,
            temperature=upload.temperature,
        )
        return Response(body, headers=transcript_headers(transcript), media_type=media_type)

    async def _answer_events(self, upload: Upload, place: ExitStack) -> Response:
        send, receive = anyio.create_memory_object_stream[Segment](MAX_UNSENT)
        work = self._in_thread(place, self._stream, upload, send)
        events = _Events(upload.response_format == "diarized_json", receive, work)
        try:
            await events.begin()
        except BaseException:
            receive.close()
            raise
        return events.response()

    def _in_thread(self, place: ExitStack, work: Callable[..., T], *args: Any) -> asyncio.Task[T]:
        """Start work that keeps its place until it has ended, whoever waits for it."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self._limits.max_requests)
        task = asyncio.create_task(anyio.to_thread.run_sync(work, *args, limiter=self._threads))
        task.add_done_callback(partial(_leave, place))
        return task

    def _transcribe(self, upload: Upload) -> Transcript:
        media = self._decode(upload)
        transcript = self._transcriber.transcribe(media.samples, MODEL_RATE_HZ, **upload.options)
        self._metrics.observe_result(transcript.usage, transcript.timing)
        warnings = (*media.warnings, *upload.warnings, *transcript.warnings)
        return replace(transcript, warnings=warnings)

    def _stream(self, upload: Upload, send: MemoryObjectSendStream[Segment]) -> dict[str, Any]:
        """Send segments as they close; return what the end of the stream says of the whole."""
        try:
            media = self._decode(upload)
            for segment in self._transcriber.stream(media.samples, MODEL_RATE_HZ, **upload.options):
                anyio.from_thread.run(send.send, segment)
            return {"warnings": described_warnings((*media.warnings, *upload.warnings))}
        except anyio.BrokenResourceError:  # the client left; leaving the stream cancels the rest
            return {}
        finally:
            anyio.from_thread.run_sync(send.close)

    def _decode(self, upload: Upload) -> Media:
        media = load_media(upload.file.read(), max_duration_s=self._max_audio_s)
        self._metrics.observe_audio(media.duration_s, "file")
        return media


def _leave(place: ExitStack, task: asyncio.Task[Any]) -> None:
    place.close()
    if not task.cancelled():
        task.exception()  # seen here, as nobody may be left who waits for it


class _Events:
    """Server-sent events of one recording.

    Args:
        diarized: Whether to send segments with their speakers besides the words.
        segments: Where segments come from; closed when the client leaves, which ends the work.
        work: Returns fields of the last event.
    """

    def __init__(
        self,
        diarized: bool,
        segments: MemoryObjectReceiveStream[Segment],
        work: asyncio.Task[dict[str, Any]],
    ) -> None:
        self._diarized = diarized
        self._segments = segments
        self._work = work
        self._first: Segment | None = None
        self._texts: list[str] = []

    async def begin(self) -> None:
        """Wait a while for the first segment.

        Raises:
            MossStreamError: The work failed before it.
        """
        with anyio.move_on_after(FIRST_SEGMENT_S):
            try:
                self._first = await self._segments.receive()
            except anyio.EndOfStream:
                await self._work

    def response(self) -> Response:
        """The answer that sends the events."""
        return _EventStream(self._written(), self._segments)

    async def _written(self) -> AsyncGenerator[bytes, None]:
        try:
            if self._first is not None:
                yield self._write(self._first)
            while True:
                segment: Segment | None = None
                with anyio.move_on_after(HEARTBEAT_S):
                    segment = await self._segments.receive()
                yield b": still here\n\n" if segment is None else self._write(segment)
        except anyio.EndOfStream:
            yield await self._last()

    def _write(self, segment: Segment) -> bytes:
        events = segment_events(segment, len(self._texts), diarized=self._diarized)
        self._texts.append(segment.text)
        return b"".join(server_sent(event) for event in events)

    async def _last(self) -> bytes:
        try:
            extra = await self._work
        except MossStreamError as error:
            return server_sent(error_body(error))
        return server_sent(done_event(" ".join(self._texts), extra))


class _EventStream(StreamingResponse):
    """Closes the segments' way out when the client leaves, wherever sending stood."""

    media_type = "text/event-stream"

    def __init__(
        self, content: AsyncGenerator[bytes, None], segments: MemoryObjectReceiveStream[Segment]
    ) -> None:
        # Proxies that buffer would hold the events back.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, headers=headers)
        self._segments = segments

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._segments.close()
