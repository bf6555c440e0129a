"""One client's session, across the sockets it may come on: audio in, numbered events out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.errors import ClientError, ConfigError, InvalidMessage, OutOfOrder, TooSlow
from moss_stream.live.events import Event, Finished
from moss_stream.server.audio_input import AudioInput, InputMeter
from moss_stream.server.config import ServerConfig
from moss_stream.server.delays import Delays
from moss_stream.server.event_log import EventLog
from moss_stream.server.hub import Hub
from moss_stream.server.protocols.commands import (
    Append,
    Clear,
    Command,
    Commit,
    Configure,
    Finish,
    Identity,
    Merge,
    Progress,
)
from moss_stream.server.protocols.openai_realtime import OpenAIRealtime
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.stream import LiveStream, StreamOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Close:
    """How a socket is closed."""

    code: int
    reason: str = ""
    may_return: bool = True
    """Whether the client may come back on another socket, if only for events that were lost."""


NORMAL = Close(1000)
EXPIRED = Close(1001, "the session has reached its longest duration")
BROKEN = Close(1011, "internal error", may_return=False)
IDLE = Close(4408, "nothing came for too long", may_return=False)


class Session:
    """The server's side of one stream.

    Args:
        hub: What all streams share.
        config: Limits.
        identity: Id, token and what else is told to the client.
        settings: What it starts with.
    """

    def __init__(
        self, hub: Hub, config: ServerConfig, identity: Identity, settings: Settings
    ) -> None:
        self.identity = identity
        self.log = EventLog(config.replay_events, config.max_unsent_events)
        self.close = NORMAL
        """How to close the socket once the log is sent and complete."""
        self._hub = hub
        self._config = config
        self._metrics = hub.metrics
        self._input = _audio_input(settings)
        self._meter = InputMeter(settings.format.rate_hz)
        self._delays = Delays(hub.metrics)
        self._num_bad = 0
        self._is_finishing = False
        self._has_ended = False
        self._ends_s = time.monotonic() + config.max_session_s
        self._stream = LiveStream(hub, _options(settings), identity.session_id, self)
        self._protocol = OpenAIRealtime(
            identity, settings, self._progress, lambda at: self._input.to_input(at)
        )
        self._send([self._protocol.created()])
        self._metrics.session_opened()

    # From the socket.

    @property
    def idle_timeout_s(self) -> float:
        """See `connection.Carried`."""
        return self._config.idle_timeout_s

    def idle(self) -> Close:
        """See `connection.Carried`."""
        return IDLE

    async def take(self, message: str | bytes) -> None:
        """Carry out a client's message; waits while there is no room for its audio or its events.

        Raises:
            InvalidMessage: Too many messages in a row made no sense.
        """
        await self.log.room()
        try:
            if isinstance(message, bytes):
                command: Command | None = self._protocol.hear(message)
            else:
                command = self._read(message)
            self._num_bad = 0
            if command is not None:
                await self._obey(command)
        except ClientError as error:
            if self._num_bad >= self._config.max_bad_messages:
                raise
            self._send([self._protocol.refuse(error)])

    def resume(self, last_seq: int) -> dict[str, Any] | None:
        """Prepare for a new socket, whose client has the events up to `last_seq`.

        Returns:
            The first message to send; None when what the client missed is not kept any more.
        """
        replayed = self.log.rewind(last_seq)
        if replayed is None:
            return None
        self._input.drop_half_sample()
        return self._protocol.resumed(replayed)

    def finish(self, close: Close) -> None:
        """End the audio here; the socket is closed when the rest of the text is sent."""
        self.close = close
        if not (self._is_finishing or self._has_ended):
            self._is_finishing = True
            self._stream.receive(self._input.flush())
            self._stream.finish()

    def end(self) -> None:
        """Let go of everything but the events; what is not told yet is lost."""
        if self._has_ended:
            return
        self._has_ended = True
        self._stream.close()
        self.log.complete()
        self._metrics.session_closed()

    def arriving(self, end_s: float) -> None:
        """A message has come with the audio up to this time of the stream, seconds."""

    # From the stream.

    def told(self, event: Event) -> None:
        """See `stream.Listener`."""
        self._delays.observe(event)
        self._send(self._protocol.tell(event))
        if isinstance(event, Finished):
            self.end()

    def broke(self, error: BaseException) -> None:
        """See `stream.Listener`."""
        self.close = Close(1013, "too slow") if isinstance(error, TooSlow) else BROKEN
        self.end()

    def ticked(self, now_s: float) -> None:
        """See `stream.Listener`."""
        self._send(self._protocol.advance(now_s))
        if now_s >= self._ends_s and not self._is_finishing:
            message = f"the longest session is {self._config.max_session_s:g} s"
            self._send([self._protocol.warning("session_expired", message)])
            self.finish(EXPIRED)

    # How it works.

    def _read(self, text: str) -> Command | None:
        try:
            answer = self._protocol.read(text)
        except InvalidMessage:
            self._num_bad += 1
            raise
        if isinstance(answer, dict):
            self._send([answer])
            return None
        return answer

    async def _obey(self, command: Command) -> None:
        match command:
            case Append():
                await self._append(command.data)
            case Commit():
                self._stream.receive(self._input.flush())
                self._stream.commit()
            case Clear():
                self._stream.receive(self._input.flush())
                self._stream.clear()
                self._send([self._protocol.cleared()])
            case Finish():
                self.finish(NORMAL)
            case Configure():
                self._configure(command)
            case Merge():
                self._stream.merge_speakers(command.speaker, command.into)

    async def _append(self, data: bytes) -> None:
        """Feed audio in pieces, each when there is room for it.

        Raises:
            OutOfOrder: The client has said that there is no more.
        """
        if self._is_finishing and self.close is NORMAL:
            raise OutOfOrder("audio came after the end of the stream")
        num_new = len(data) // self._input.encoding.sample_bytes
        if num_new and not self._is_finishing:
            self.arriving((self._input.num_samples + num_new) / self._input.rate_hz)
        view = memoryview(data)
        for start in range(0, len(data), self._input.piece_bytes):
            if start:
                await asyncio.sleep(0)  # others get their turn
            await self._stream.room(2 * MODEL_RATE_HZ)  # a piece and what the filter held back
            # What comes after the server has ended the audio is not counted as received.
            if self._is_finishing or self._has_ended:
                return
            before = self._input.num_samples
            samples = self._input.feed(bytes(view[start : start + self._input.piece_bytes]))
            self._stream.receive(samples)
            now_s = time.monotonic()
            self._delays.received(self._stream.session.received_at, now_s)
            num_input = self._input.num_samples - before
            self._metrics.observe_audio(num_input / self._input.rate_hz, "live")
            for code, message in self._meter.observe(samples, num_input, now_s):
                self._send([self._protocol.warning(code, message)])

    def _configure(self, change: Configure) -> None:
        settings = change.settings
        try:
            self._hub.check_keywords(settings.keywords)
        except ConfigError as error:
            raise InvalidMessage(error.message, field=error.field) from error
        self._stream.configure(_options(settings))
        if settings.format != self._protocol.settings.format:
            self._input = _audio_input(settings)
            self._meter = InputMeter(settings.format.rate_hz)
        self._send(self._protocol.configured(change))

    def _progress(self) -> Progress:
        session = self._stream.session
        return Progress(
            received_samples=self._input.num_samples,
            received_at=session.received_at,
            examined_at=session.examined_at,
            decoded_at=session.decoded_at,
            is_degraded=self._stream.load > 1,
        )

    def _send(self, messages: Iterable[dict[str, Any]]) -> None:
        try:
            for message in messages:
                if not self.log.is_complete:
                    self.log.append(message)
        except TooSlow as error:
            self.broke(error)


def _audio_input(settings: Settings) -> AudioInput:
    return AudioInput(settings.format.encoding, settings.format.rate_hz)


def _options(settings: Settings) -> StreamOptions:
    return StreamOptions(settings.live, settings.keywords)
