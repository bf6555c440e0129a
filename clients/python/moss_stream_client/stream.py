"""A live stream over sockets that come and go."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from moss_stream_client.audio import SAMPLE_BYTES, WaveFile, to_s16
from moss_stream_client.dialing import Backoff, Endpoint
from moss_stream_client.errors import AtCapacity, AudioError, ConnectError, UsageError
from moss_stream_client.events import Event, Raw
from moss_stream_client.inbox import Inbox
from moss_stream_client.pacing import at_speech_speed
from moss_stream_client.session import OutOfStep, Session, SessionOptions

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOG = logging.getLogger(__name__)
_MAX_UNREAD_EVENTS = 10_000


class _Dropped(ConnectError):
    """The server was reached, and the connection broke before the session was open."""


@asynccontextmanager
async def connect(
    url: str,
    *,
    api_key: str | None = None,
    rate_hz: int = 16000,
    preset: str = "captions",
    snapshots: bool = True,
    language: str | None = None,
    max_buffer_s: float = 60.0,
    open_timeout_s: float = 10.0,
    backoff: Backoff | None = None,
) -> AsyncIterator[Stream]:
    """Open a stream; leaving the block closes it, finished or not.

    Args:
        url: `ws://host:port`; `http(s)` and a missing path are completed.
        api_key: The server's key, None for an open server.
        rate_hz: Rate of the audio that will be sent: 8000, 16000, 24000 or 48000.
        preset: `captions` keeps the context of earlier utterances, `agent` is quickest.
        snapshots: Whether `Hypothesis` events come.
        language: ISO-639-1 code, None to let the model find out.
        max_buffer_s: Most unconfirmed audio kept for a reconnect, seconds; `send` waits beyond it.
        open_timeout_s: Longest wait for one connection, seconds.
        backoff: Waits between tries to reconnect.

    Raises:
        UsageError: An argument is wrong.
        ConnectError: The server cannot be reached, or refuses.
    """
    options = SessionOptions(rate_hz, preset, language, snapshots, max_buffer_s)
    endpoint = Endpoint.parse(url, api_key)
    stream = Stream(endpoint, Session(options), open_timeout_s, backoff or Backoff())
    try:
        await stream.open()
        yield stream
    finally:
        await stream.aclose()


class Stream:
    """One speaker's audio out, events in; made by `connect`.

    Sending and iterating may go on in different tasks. A lost connection is resumed behind the
    caller's back for as long as the server keeps the session; when that fails, `send`, `finish` and
    the iteration raise the reason.
    """

    def __init__(
        self, endpoint: Endpoint, session: Session, open_timeout_s: float, backoff: Backoff
    ) -> None:
        self._endpoint = endpoint
        self._session = session
        self._open_timeout_s = open_timeout_s
        self._backoff = backoff
        self._delays: Iterator[float] = backoff.delays()
        self._inbox = Inbox(_MAX_UNREAD_EVENTS)
        self._sending = asyncio.Lock()
        self._outgoing = asyncio.Event()  # there may be something to send
        self._progress = asyncio.Event()  # room in the backlog, configured, or ended
        self._task: asyncio.Task[None] | None = None

    @property
    def rate_hz(self) -> int:
        """Sample rate of the stream."""
        return self._session.options.rate_hz

    @property
    def info(self) -> Raw:
        """The server's effective configuration, as it came."""
        return self._session.info

    @property
    def unacknowledged_samples(self) -> int:
        """Samples given to `send` that the server has not confirmed yet."""
        return self._session.backlog.end_at - self._session.backlog.acked_at

    async def open(self) -> None:
        """Connect and wait until the server took the configuration; `connect` does this.

        Raises:
            ConnectError: The server cannot be reached, refuses, or does not answer in time.
        """
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        try:
            # Once for the connection, once for the server's answer to the configuration.
            async with asyncio.timeout(2 * self._open_timeout_s):
                while not self._session.is_configured:
                    await self._next_progress()
        except TimeoutError as error:
            raise ConnectError("the server did not take the configuration in time") from error

    async def aclose(self) -> None:
        """Close the connection; what was not finished is given up. `connect` does this."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def send(self, pcm: Buffer) -> None:
        """Send mono 16-bit audio; wait while too much of it is unconfirmed.

        Args:
            pcm: Little-endian bytes, or a one-dimensional int16 array.

        Raises:
            AudioError: Not 16-bit samples.
            UsageError: The stream is finished.
            ClientError: The stream ended with it.
        """
        data = to_s16(pcm)
        backlog = self._session.backlog
        async with self._sending:
            while data:
                self._inbox.check()
                if self._session.is_finishing or self._inbox.has_ended:
                    raise UsageError("no audio can be sent after finish or on a closed stream")
                if backlog.room:
                    fitting = backlog.room * SAMPLE_BYTES
                    backlog.append(data[:fitting])
                    data = data[fitting:]
                    self._outgoing.set()
                else:
                    await self._next_progress()

    async def send_file(self, path: str | os.PathLike[str], realtime: bool = True) -> None:
        """Send a PCM WAV file of the stream's rate.

        Args:
            path: 8 to 32 bits, any number of channels; they are mixed.
            realtime: Whether to send at the speed of speech or as fast as the server takes it.

        Raises:
            AudioError: Not a PCM WAV file, or of another rate.
            ClientError: The stream ended with it.
        """
        source = WaveFile.inspect(path)
        if source.rate_hz != self.rate_hz:
            raise AudioError(
                f"{path} has {source.rate_hz} Hz, the stream {self.rate_hz} Hz: "
                f"connect with rate_hz={source.rate_hz}"
            )
        if realtime:
            async for block in at_speech_speed(source.blocks(), self.rate_hz):
                await self.send(block)
        else:
            for block in source.blocks():
                await self.send(block)

    async def merge_speakers(self, speaker: str, into: str) -> None:
        """Say that `speaker` is the same person as `into`; returns at once.

        The answer is the event `Relabel`, or a `ServerError` whose `param` is `speaker` or `into`.
        While the connection is away the request is kept. After the last events none is answered.

        Raises:
            UsageError: The stream is closed.
            ClientError: The stream ended with it.
        """
        self._inbox.check()
        if self._inbox.has_ended:
            raise UsageError("no speakers can be merged on a closed stream")
        self._session.merge_speakers(speaker, into)
        self._outgoing.set()

    async def finish(self) -> None:
        """Say that no more audio comes; the remaining events follow, `Finished` last.

        Raises:
            ClientError: The stream ended with it.
        """
        async with self._sending:
            self._inbox.check()
            self._session.finish()
            self._outgoing.set()

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        event = await self._inbox.get()
        if event is None:
            raise StopAsyncIteration
        return event

    async def _next_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()
        self._inbox.check()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._inbox.end(None if task.cancelled() else task.exception())
        self._progress.set()

    async def _run(self) -> None:
        """Keep a connection until the stream is finished."""
        while not self._session.is_finished:
            socket = await self._open_socket()
            try:
                await self._exchange(socket)
            except OutOfStep as missing:
                _LOG.warning("reconnecting: %s", missing)
                socket.transport.abort()
            except ConnectionClosed as closed:
                self._lost_connection(closed)
            finally:
                await socket.close()

    async def _open_socket(self) -> ClientConnection:
        """Dial until the session is open, within the grace time once there is a session."""
        clock = asyncio.get_running_loop().time
        is_new = self._session.token is None
        deadline = clock() + (self._open_timeout_s if is_new else self._session.grace_s)
        while True:
            await asyncio.sleep(min(next(self._delays), max(0.0, deadline - clock())))
            try:
                return await self._try_socket(min(self._open_timeout_s, deadline - clock()))
            except ConnectError as error:
                if not error.retryable or (is_new and not isinstance(error, _Dropped)):
                    raise
                if clock() >= deadline:
                    if is_new:
                        raise
                    raise self._session.lost(
                        f"not resumed within {self._session.grace_s:g} s: {error.message}"
                    ) from error
                _LOG.info("reconnecting: %s", error.message)
                wait_s = error.retry_after_s if isinstance(error, AtCapacity) else 0.0
                await asyncio.sleep(min(wait_s, max(0.0, deadline - clock())))

    async def _try_socket(self, timeout_s: float) -> ClientConnection:
        """Dial once and read until the session is open."""
        socket = await self._endpoint.dial(self._session.connecting(), max(timeout_s, 0.001))
        try:
            async with asyncio.timeout(timeout_s):
                while not self._session.is_open:
                    self._take(await socket.recv())
        except ConnectionClosed as closed:
            self._lost_connection(closed)
            raise _Dropped("the connection broke while the session opened") from closed
        except (OutOfStep, TimeoutError) as error:
            socket.transport.abort()
            raise _Dropped(f"the session did not open: {str(error) or 'no answer'}") from error
        except BaseException:
            await socket.close()
            raise
        return socket

    async def _exchange(self, socket: ClientConnection) -> None:
        """Send and receive on an open connection until it ends or the stream is finished."""
        tasks = [
            asyncio.create_task(self._read(socket)),
            asyncio.create_task(self._write(socket)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _read(self, socket: ClientConnection) -> None:
        while not self._session.is_finished:
            self._take(await socket.recv())

    async def _write(self, socket: ClientConnection) -> None:
        while not self._session.is_finished:
            frame = self._session.next_frame()
            if frame is None:
                self._outgoing.clear()
                await self._outgoing.wait()
                continue
            try:
                await socket.send(frame)
            except ConnectionClosed:
                return  # the reader ends too, after the events that still wait to be read

    def _take(self, message: str | bytes) -> None:
        seq = self._session.last_seq
        event = self._session.receive(message)
        if self._session.last_seq > seq:
            self._delays = self._backoff.delays()
        if event is not None:
            self._inbox.put(event)
        self._outgoing.set()
        self._progress.set()

    def _lost_connection(self, closed: ConnectionClosed) -> None:
        """Raise what ends the stream, or return to connect again."""
        close = closed.rcvd
        error = self._session.closed(close.code if close else None, close.reason if close else "")
        if error is not None:
            raise error from closed
        _LOG.info("connection lost: %s", closed)
