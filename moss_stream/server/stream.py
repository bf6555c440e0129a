"""Drives one live session: has its frames scored and its decodes made, and tells its events.

It knows nothing of any wire protocol. All methods are called on the event loop; every answer goes
through the session on that loop, so the session sees one thing after another.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from moss_stream.engine.delivery import AsyncHandle
from moss_stream.engine.request import Priority, Request, Result, StopReason
from moss_stream.errors import MossStreamError, RequestFailed
from moss_stream.live.config import LiveConfig
from moss_stream.live.events import (
    CancelDecode,
    DecodeKind,
    DecodeRequest,
    Event,
    FrameBatch,
    Output,
)
from moss_stream.live.session import LiveSession
from moss_stream.live.text import TextCodec
from moss_stream.model.checkpoint import Model
from moss_stream.recordings.request import output_budget
from moss_stream.types import TranscriptWarning, Window

logger = logging.getLogger(__name__)

_REFRESH_TOKENS = 48
_REFRESH_TOKENS_PER_S = 12  # fast speech with its tags comes to about half


class Decoding(Protocol):
    """What a stream needs of the machinery that all streams share."""

    @property
    def codec(self) -> TextCodec:
        """The model's tokenizer."""
        ...

    def add(self, stream: LiveStream) -> None:
        """Score and tick a stream from now on."""
        ...

    def remove(self, stream: LiveStream) -> None:
        """Forget it."""
        ...

    def notice(self, stream: LiveStream) -> None:
        """It has new frames."""
        ...

    async def submit(
        self, asked: DecodeRequest, keywords: Sequence[str], stream_id: str
    ) -> tuple[AsyncHandle, bool]:
        """Give a decode to the engine; also tells whether it is worked on at once."""
        ...

    def note(self, asked: DecodeRequest, result: Result, elapsed_s: float) -> None:
        """Learn from a decode that ended."""
        ...

    def load(self, refresh_s: float) -> float:
        """How much longer than `refresh_s` refreshes should wait, a factor of at least 1."""
        ...


class Listener(Protocol):
    """Whoever owns a stream."""

    def told(self, event: Event) -> None:
        """Take an event of the session."""
        ...

    def broke(self, error: BaseException) -> None:
        """The stream cannot go on."""
        ...

    def ticked(self, now_s: float) -> None:
        """Do what is due by time."""
        ...


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What may change during a stream."""

    live: LiveConfig
    keywords: tuple[str, ...] = ()
    """Words likely to be said."""


class LiveStream:
    """One live session at work.

    Args:
        hub: What all streams share.
        options: How to listen.
        stream_id: Names it in the engine and in logs.
        listener: Told what happens.
    """

    def __init__(
        self, hub: Decoding, options: StreamOptions, stream_id: str, listener: Listener
    ) -> None:
        self._hub = hub
        self._options = options
        self._stream_id = stream_id
        self._listener = listener
        self._session = LiveSession(options.live, hub.codec)
        self._decodes: dict[int, asyncio.Task[None]] = {}
        self._moved = asyncio.Event()
        self._is_closed = False
        self.load = 1.0
        """How much refreshes are stretched now."""
        hub.add(self)

    @property
    def session(self) -> LiveSession:
        """For a look at its positions."""
        return self._session

    def configure(self, options: StreamOptions) -> None:
        """Change options; before the first audio all of them, then how utterances are found."""
        if self._session.received_at == 0:
            self._session = LiveSession(options.live, self._hub.codec)
        elif options.live != self._options.live:
            self._session.configure(options.live)
        self._options = options

    async def room(self, num_samples: int) -> None:
        """Wait until so many samples fit."""
        while self._session.room < num_samples and not self._is_closed:
            self._moved.clear()
            await self._moved.wait()

    def receive(self, samples: npt.NDArray[np.float32]) -> None:
        """Take the next audio; see `LiveSession.receive`."""
        self._take(self._session.receive(samples, time.monotonic()))
        self._hub.notice(self)

    def commit(self) -> None:
        """See `LiveSession.commit`."""
        self._take(self._session.commit(time.monotonic()))

    def clear(self) -> None:
        """See `LiveSession.clear`."""
        self._take(self._session.clear(time.monotonic()))

    def merge_speakers(self, duplicate: str, into: str) -> None:
        """See `LiveSession.merge_speakers`."""
        self._take(self._session.merge_speakers(duplicate, into))

    def finish(self) -> None:
        """See `LiveSession.finish`."""
        self._take(self._session.finish(time.monotonic()))
        self._hub.notice(self)

    def close(self) -> None:
        """Stop everything; nothing is told any more."""
        self._is_closed = True
        self._hub.remove(self)
        for task in self._decodes.values():
            task.cancel()
        self._moved.set()

    # For the hub.

    def pending_frames(self) -> FrameBatch:
        """See `LiveSession.pending_frames`."""
        return self._session.pending_frames()

    def scored(self, first_frame: int, probabilities: Sequence[float]) -> None:
        """See `LiveSession.probabilities`."""
        self._guard(lambda now_s: self._session.probabilities(first_frame, probabilities, now_s))

    def tick(self) -> None:
        """Do what is due by time."""
        self.load = self._hub.load(self._options.live.refresh_s)
        self._session.set_load(self.load)
        self._guard(self._tick)

    # How it works.

    def _tick(self, now_s: float) -> list[Output]:
        self._listener.ticked(now_s)
        return self._session.tick(now_s)

    def _guard(self, step: Callable[[float], list[Output]]) -> None:
        """Do something nobody waits for: what goes wrong breaks the stream, and this one alone."""
        if self._is_closed:
            return
        try:
            self._take(step(time.monotonic()))
        except Exception as error:
            logger.exception("stream broke stream=%s", self._stream_id)
            self._listener.broke(error)

    def _take(self, outputs: list[Output]) -> None:
        for output in outputs:
            if self._is_closed:
                return
            match output:
                case DecodeRequest():
                    task = asyncio.create_task(self._decode(output))
                    self._decodes[output.request_id] = task
                case CancelDecode():
                    task_or_none = self._decodes.pop(output.request_id, None)
                    if task_or_none is not None:
                        task_or_none.cancel()
                case _:
                    self._listener.told(output)
        self._moved.set()

    async def _decode(self, asked: DecodeRequest) -> None:
        request_id = asked.request_id
        try:
            started_s = time.monotonic()
            result = await self._result(asked)
        except MossStreamError as failure:
            error = failure
            self._guard(lambda now_s: self._session.failed(request_id, error, now_s))
        except Exception as bug:
            logger.exception("decode broke stream=%s", self._stream_id)
            broken = RequestFailed(f"the decode failed: {type(bug).__name__}")
            self._guard(lambda now_s: self._session.failed(request_id, broken, now_s))
        else:
            self._hub.note(asked, result, time.monotonic() - started_s)
            self._guard(
                lambda now_s: self._session.hypothesis(
                    request_id,
                    result.token_ids,
                    now_s,
                    is_complete=result.stop_reason is StopReason.END,
                    warnings=_stop_warnings(result),
                    usage=result.usage,
                )
            )
        finally:
            self._decodes.pop(request_id, None)

    async def _result(self, asked: DecodeRequest) -> Result:
        handle, is_started = await self._hub.submit(asked, self._options.keywords, self._stream_id)
        try:
            if is_started:
                self._session.started(asked.request_id)
            async for _ in handle.tokens():
                self._session.started(asked.request_id)
            return await handle.result()
        finally:
            handle.cancel()  # without effect on one that ended


def live_request(
    model: Model,
    asked: DecodeRequest,
    keywords: Sequence[str],
    *,
    stream_id: str,
    max_tokens: int,
) -> Request:
    """Build the engine's request for a decode; takes milliseconds of CPU.

    Raises:
        RequestFailed: Audio and text do not fit `max_tokens`.
        ConfigError: A keyword contains a special token.
    """
    windows = tuple(Window(window.samples) for window in asked.windows)
    prompt = model.prompts.build([len(w.samples) for w in windows], hotwords=keywords)
    room = max_tokens - len(prompt.ids)
    if room <= len(asked.forced):
        raise RequestFailed(
            f"{len(prompt.ids)} prompt tokens and {len(asked.forced)} known ones leave no room of "
            f"{max_tokens}"
        )
    is_final = asked.kind in (DecodeKind.EAGER, DecodeKind.FINAL)
    # A final may write as much as the same audio in a file. A refresh that runs away only holds
    # up those after it.
    own = _REFRESH_TOKENS + math.ceil(_REFRESH_TOKENS_PER_S * asked.new_audio_s)
    budget = len(asked.forced) + (output_budget(asked.new_audio_s) if is_final else own)
    return Request(
        prompt=prompt,
        windows=windows,
        max_new_tokens=min(budget, room),
        stop_ids=model.spec.stop_ids,
        markup_ids=model.tokenizer.markup_ids,
        spelling=model.spelling,
        forced=asked.forced,
        draft=asked.draft,
        earlier=asked.earlier,
        # Finals wait for what is asked about speakers.
        priority=Priority.PARTIAL if asked.kind is DecodeKind.REFRESH else Priority.FINAL,
        deadline_s=asked.deadline_s,
        stream_id=stream_id,
    )


def _stop_warnings(result: Result) -> tuple[TranscriptWarning, ...]:
    match result.stop_reason:
        case StopReason.LOOP:
            message = "the output repeated itself and was cut"
            return (TranscriptWarning("loop_cut", message),)
        case StopReason.LENGTH:
            message = f"the output budget of {len(result.token_ids)} tokens is used up"
            return (TranscriptWarning("output_limit", message),)
    return ()
