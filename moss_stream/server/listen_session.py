"""A client of `/v1/listen` as long as its socket lasts: audio in, results out.

Each channel that is transcribed by itself is a live stream of its own. The session ends for good
with its socket: Deepgram's protocol has no way to come back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from moss_stream.audio.container import Block
from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.audio.samples import MAX_AMPLITUDE
from moss_stream.errors import ClientError, ConfigError, TooSlow, UnsupportedAudio
from moss_stream.live.config import to_seconds
from moss_stream.live.events import Event, Finished
from moss_stream.server.audio_input import Converter, Samples
from moss_stream.server.config import ServerConfig
from moss_stream.server.delays import Delays
from moss_stream.server.event_log import EventLog
from moss_stream.server.hub import Hub
from moss_stream.server.listen_audio import BareAudio, ContainerAudio, Source
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.protocols.deepgram import (
    CloseStream,
    Command,
    Configure,
    Deepgram,
    Finalize,
    KeepAlive,
)
from moss_stream.server.protocols.deepgram_query import ListenOptions
from moss_stream.server.protocols.deepgram_results import RequestInfo
from moss_stream.server.session import BROKEN, EXPIRED, NORMAL, Close
from moss_stream.server.stream import LiveStream, StreamOptions

NET_0001 = Close(1011, "NET-0001: neither audio nor a message came in time", may_return=False)
"""What Deepgram's clients know an idle socket by."""
DATA_0000 = 1008
"""Close code for audio that cannot be decoded; its reason begins with DATA-0000."""


class ListenSession:
    """The server's side of one socket.

    Args:
        hub: What all streams share.
        config: Limits.
        identity: Names the session.
        info: What the client is told of it.
        options: What the client wants.
    """

    def __init__(
        self,
        hub: Hub,
        config: ServerConfig,
        identity: Identity,
        info: RequestInfo,
        options: ListenOptions,
    ) -> None:
        self.identity = identity
        # Nobody comes back for messages that were sent: no more are kept than may wait.
        self.log = EventLog(2 * config.max_unsent_events, config.max_unsent_events)
        self.close = NORMAL
        """How to close the socket once the log is sent and complete."""
        self._hub = hub
        self._config = config
        self._options = options
        self._protocol = Deepgram(info, options)
        self._sha256 = hashlib.sha256()
        self._num_bad = 0
        self._num_finished = 0
        self._is_finishing = False
        self._takes_audio = True
        self._has_ended = False
        self._has_warned_of_channels = False
        self._ends_s = time.monotonic() + config.max_session_s
        stream_options = StreamOptions(options.live, options.keywords)
        self._channels = [
            Channel(self, index, hub, stream_options) for index in range(options.num_streams)
        ]
        self._source: Source = (
            ContainerAudio(options.container, self)
            if options.encoding is None
            else BareAudio(options.encoding, options.rate_hz, options.channels, self)
        )

    # From the socket.

    @property
    def idle_timeout_s(self) -> float:
        """See `connection.Carried`."""
        return self._config.listen_idle_s

    def idle(self) -> None:
        """See `connection.Carried`: what was heard still gets its text."""
        self.finish(NET_0001)

    async def take(self, message: str | bytes) -> None:
        """Carry out a client's message; waits while there is no room for its audio or its results.

        Raises:
            ClientError: Too many messages in a row made no sense.
        """
        await self.log.room()
        if self._is_finishing:
            return
        if isinstance(message, bytes):
            await self._hear(message)
            return
        try:
            await self._obey(self._protocol.read(message))
            self._num_bad = 0
        except (ClientError, ConfigError) as error:
            self._num_bad += 1
            if self._num_bad > self._config.max_bad_messages:
                raise
            self._send([self._protocol.refuse(message, error)])

    def finish(self, close: Close) -> None:
        """End the audio here; the socket is closed when the rest of the text is sent."""
        if not self._is_finishing:
            self._is_finishing = True
            self.close = close
            self._source.end()

    def end(self) -> None:
        """Let go of everything but the log; what is not told yet is lost."""
        if self._has_ended:
            return
        self._has_ended = True
        self._takes_audio = False
        self._source.stop()
        for channel in self._channels:
            channel.stream.close()
            self._hub.metrics.session_closed()
        self.log.complete()

    # From the source of audio.

    async def heard(self, block: Block) -> bool:
        """See `listen_audio.Sink`."""
        # A block of a container may be longer than all that a stream holds.
        for start in range(0, block.channels.shape[1], block.rate_hz):
            for channel in self._channels:
                await channel.stream.room(2 * MODEL_RATE_HZ)  # a second and what the filter held
            if not self._takes_audio:
                return False
            piece = self._divided(block.channels[:, start : start + block.rate_hz])
            for channel, samples in zip(self._channels, piece, strict=True):
                channel.take(samples, block.rate_hz)
        return True

    def ended(self, error: Exception | None) -> None:
        """See `listen_audio.Sink`."""
        if not self._takes_audio:
            return
        self._takes_audio = False
        self._is_finishing = True
        if error is not None and self.close is NORMAL:
            self.close = BROKEN
            if isinstance(error, UnsupportedAudio):
                self.close = Close(DATA_0000, f"DATA-0000: {error.message}", may_return=False)
                hint = "bare samples need the parameters encoding and sample_rate"
                self.warn(error.code, f"{error.message}; {hint}")
        for channel in self._channels:
            channel.flush()
            channel.stream.finish()

    def warn(self, code: str, message: str) -> None:
        """See `listen_audio.Sink`."""
        self._protocol.warn(code, message)

    # From the channels.

    def told(self, index: int, event: Event) -> None:
        """A channel's live session says something."""
        self._send(self._protocol.tell(index, event))
        if not isinstance(event, Finished):
            return
        self._num_finished += 1
        if self._num_finished == len(self._channels):
            duration_s = max(to_seconds(c.stream.session.received_at) for c in self._channels)
            self._send([self._protocol.metadata(self._sha256.hexdigest(), duration_s)])
            self.end()

    def broke(self, error: BaseException) -> None:
        """A channel, and with it the session, cannot go on."""
        self.close = Close(1013, "too slow") if isinstance(error, TooSlow) else BROKEN
        self.end()

    def ticked(self, index: int, now_s: float) -> None:
        """Do what is due by time on a channel."""
        examined_at = self._channels[index].stream.session.examined_at
        self._send(self._protocol.advance(index, examined_at))
        if self._takes_audio and self._protocol.is_overdue(index):
            self._commit(index, is_finalize=False)
        if now_s >= self._ends_s and self._takes_audio:
            message = f"the longest session is {self._config.max_session_s:g} s"
            self.warn("session_expired", message)
            self.close = EXPIRED
            self._source.stop()

    # How it works.

    async def _hear(self, data: bytes) -> None:
        self._num_bad = 0
        if not data:
            self.finish(NORMAL)  # an empty message is how older clients end a stream
            return
        self._sha256.update(data)
        await self._source.feed(data)

    async def _obey(self, command: Command) -> None:
        match command:
            case KeepAlive():
                pass  # that it came is all
            case Finalize():
                await self._finalize(command.channel)
            case CloseStream():
                self.finish(NORMAL)
            case Configure():
                self._configure(command)

    async def _finalize(self, asked: int | None) -> None:
        await self._source.settle()
        if not self._takes_audio:
            return
        for index in range(len(self._channels)) if asked is None else [asked]:
            self._commit(index, is_finalize=True)

    def _commit(self, index: int, *, is_finalize: bool) -> None:
        self._protocol.committing(index, is_finalize=is_finalize)
        self._channels[index].flush()
        self._channels[index].stream.commit()

    def _configure(self, change: Configure) -> None:
        if change.keywords is not None:
            self._hub.check_keywords(change.keywords)
            for channel in self._channels:
                channel.stream.configure(StreamOptions(self._options.live, change.keywords))

    def _divided(self, channels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What each stream gets of the audio's channels: [streams, n]."""
        if not self._options.is_multichannel:
            mixed: npt.NDArray[np.float32] = channels.mean(axis=0, keepdims=True)
            return mixed
        wanted = len(self._channels)
        if len(channels) == wanted:
            return channels
        if not self._has_warned_of_channels:
            self._has_warned_of_channels = True
            self.warn("channels_mismatch", f"the audio has {len(channels)} channels, not {wanted}")
        divided = np.zeros((wanted, channels.shape[1]), np.float32)
        divided[: len(channels)] = channels[:wanted]
        return divided

    def _send(self, messages: Iterable[dict[str, Any]]) -> None:
        try:
            for message in messages:
                if not self.log.is_complete:
                    self.log.append(message)
        except TooSlow as error:
            self.broke(error)


class Channel:
    """One live stream of a session, and what is around it.

    Args:
        session: Whose it is.
        index: Its number in that.
        hub: What all streams share.
        options: How to listen.
    """

    def __init__(
        self, session: ListenSession, index: int, hub: Hub, options: StreamOptions
    ) -> None:
        self._session = session
        self._index = index
        self._metrics = hub.metrics
        self._delays = Delays(hub.metrics)
        self._converter: Converter | None = None
        self.stream = LiveStream(hub, options, f"{session.identity.session_id}_{index}", self)
        hub.metrics.session_opened()

    def take(self, samples: Samples, rate_hz: int) -> None:
        """Take the next audio; there must be room for it."""
        if self._converter is None or self._converter.rate_hz != rate_hz:
            self.flush()  # the rate can change where a container was joined from several
            self._converter = Converter(rate_hz)
        self._metrics.observe_audio(len(samples) / rate_hz, "live")
        self._receive(self._converter.feed(samples))

    def flush(self) -> None:
        """Take what the filter holds back, so that all audio received is in the stream."""
        if self._converter is not None:
            self._receive(self._converter.flush())

    def _receive(self, samples: Samples) -> None:
        # A filter overshoots what it was fed, and that was as loud as is allowed.
        self.stream.receive(np.clip(samples, -MAX_AMPLITUDE, MAX_AMPLITUDE))
        self._delays.received(self.stream.session.received_at, time.monotonic())

    # From the stream.

    def told(self, event: Event) -> None:
        """See `stream.Listener`."""
        self._delays.observe(event)
        self._session.told(self._index, event)

    def broke(self, error: BaseException) -> None:
        """See `stream.Listener`."""
        self._session.broke(error)

    def ticked(self, now_s: float) -> None:
        """See `stream.Listener`."""
        self._session.ticked(self._index, now_s)
