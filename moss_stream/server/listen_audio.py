"""Audio of `/v1/listen` as it arrives: bare samples at once, containers through a thread.

Both hand over `Block`s on the event loop, and are told to end by `end`; after the last block they
say so themselves.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt

from moss_stream.audio.container import Block, BytePipe, decode_stream
from moss_stream.audio.pcm import Encoding, PcmDecoder
from moss_stream.errors import UnsupportedAudio
from moss_stream.server.audio_input import InputMeter

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 1 << 18
"""Bytes of a container not decoded yet at which no more are read from the client."""


class Sink(Protocol):
    """Whoever wants the audio."""

    async def heard(self, block: Block) -> bool:
        """Take the next audio; waits while there is no room for it.

        Returns:
            Whether more is wanted.
        """
        ...

    def ended(self, error: Exception | None) -> None:
        """No more audio comes, because of an error or because it was ended."""
        ...

    def warn(self, code: str, message: str) -> None:
        """Take note of something that is no mistake."""
        ...


class Source(Protocol):
    """A client's audio."""

    async def feed(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere; waits while there is no room for what is in them."""
        ...

    async def settle(self) -> None:
        """Wait until all that can be decoded by now is handed over."""
        ...

    def end(self) -> None:
        """No more bytes come; what is there is still handed over. May be called again."""
        ...

    def stop(self) -> None:
        """End now: what is there is dropped."""
        ...


class BareAudio:
    """Bare samples, channels interleaved.

    Args:
        encoding: How a sample is written.
        rate_hz: Samples a second of each channel.
        num_channels: How many channels there are.
        sink: Told what is heard.
    """

    def __init__(self, encoding: Encoding, rate_hz: int, num_channels: int, sink: Sink) -> None:
        self._rate_hz = rate_hz
        self._num_channels = num_channels
        self._sink = sink
        self._sample_bytes = encoding.sample_bytes
        self._decoder = PcmDecoder(encoding)
        self._meter = InputMeter(rate_hz)
        self._carry = b""
        self._has_warned = False
        self._has_ended = False

    async def feed(self, data: bytes) -> None:
        """See `Source`."""
        data = self._carry + data
        frame_bytes = self._sample_bytes * self._num_channels
        whole = len(data) - len(data) % frame_bytes
        self._carry = data[whole:]
        piece_bytes = frame_bytes * self._rate_hz  # a second
        for start in range(0, whole, piece_bytes):
            if start:
                await asyncio.sleep(0)  # others get their turn
            samples = self._decode(data[start : min(start + piece_bytes, whole)])
            channels = samples.reshape(-1, self._num_channels).T
            for warning in self._meter.observe(channels[0], channels.shape[1], time.monotonic()):
                self._sink.warn(*warning)
            if not await self._sink.heard(Block(self._rate_hz, channels)):
                return

    async def settle(self) -> None:
        """See `Source`; nothing is ever held back."""

    def end(self) -> None:
        """See `Source`."""
        if not self._has_ended:
            self._has_ended = True
            self._sink.ended(None)

    def stop(self) -> None:
        """See `Source`."""
        self.end()

    def _decode(self, data: bytes) -> npt.NDArray[np.float32]:
        """Samples of whole frames; silence where they are none, so that time goes on."""
        try:
            return self._decoder.decode(data)
        except UnsupportedAudio as error:
            if not self._has_warned:
                self._has_warned = True
                self._sink.warn(error.code, f"taken for silence: {error.message}")
            return np.zeros(len(data) // self._sample_bytes, np.float32)


class ContainerAudio:
    """A container, decoded in a thread of its own.

    Args:
        format_name: FFmpeg's name of its format; None to find out.
        sink: Told what is heard.
    """

    def __init__(self, format_name: str | None, sink: Sink) -> None:
        self._format_name = format_name
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._pipe = BytePipe(self._notify)
        self._thread: threading.Thread | None = None
        self._has_warned = False
        self._has_ended = False

    async def feed(self, data: bytes) -> None:
        """See `Source`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._decode, name="moss-container", daemon=True)
            self._thread.start()
        self._pipe.write(data)
        await self._until(lambda: self._pipe.num_bytes <= MAX_PENDING_BYTES)

    async def settle(self) -> None:
        """See `Source`."""
        if self._thread is not None:
            await self._until(lambda: self._pipe.is_starved)

    def end(self) -> None:
        """See `Source`."""
        self._pipe.close()
        if self._thread is None:
            self._ended(None)

    def stop(self) -> None:
        """See `Source`."""
        self._pipe.drop()
        self._ended(None)

    def _ended(self, error: Exception | None) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._moved.set()
            self._sink.ended(error)

    def _damaged(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            message = f"a part of the audio could not be decoded ({reason})"
            self._sink.warn("media_damaged", message)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not (is_so() or self._has_ended):
            self._moved.clear()
            await self._moved.wait()

    # In the thread.

    def _notify(self) -> None:
        self._call(self._moved.set)

    def _tell_damage(self, reason: str) -> None:
        self._call(lambda: self._damaged(reason))

    def _call(self, callback: Callable[[], object]) -> None:
        # A thread that nobody listens to any more may outlive the loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def _hear(self, block: Block) -> bool:
        hearing = self._sink.heard(block)
        try:
            return asyncio.run_coroutine_threadsafe(hearing, self._loop).result()
        except (RuntimeError, CancelledError):
            if not self._loop.is_closed():
                raise
            hearing.close()  # nobody is there any more who would
            return False

    def _decode(self) -> None:
        failure: Exception | None = None
        try:
            for block in decode_stream(self._pipe, self._format_name, self._tell_damage):
                if self._has_ended or not self._hear(block):
                    break
        except UnsupportedAudio as error:
            failure = error
        except Exception as bug:
            logger.exception("container broke")
            failure = bug
        self._call(lambda: self._ended(failure))
