"""All sessions of a server: who is let in, who may come back, and how everybody leaves.

attached  a socket carries the session
waiting   its socket is gone; it ends after the grace time unless its client comes back
over      all is told and nothing works for it any more; only its events are kept, for as long, as
          the last of them may have been lost with the socket
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from moss_stream.errors import EngineStopped, TooManyStreams
from moss_stream.server.config import ServerConfig
from moss_stream.server.connection import Carried
from moss_stream.server.hub import Hub
from moss_stream.server.protocols.commands import Identity
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.session import Close, Session

logger = logging.getLogger(__name__)

RESTARTING = Close(1012, "restarting: begin a new session", may_return=False)
TAKEN_OVER = Close(4409, "taken over by a newer connection")
RETRY_AFTER_S = 5.0


class Carrier(Protocol):
    """A socket that carries a session."""

    async def leave(self, close: Close) -> None:
        """Stop carrying it; returns when nothing of it is read or sent any more."""
        ...


S = TypeVar("S", bound=Carried)
"""A session of some protocol."""


@dataclass(slots=True, eq=False)
class Entry(Generic[S]):
    """A session and where it is."""

    session: S
    num_streams: int = 1
    """Live streams it works on: one for each channel of its audio."""
    carrier: Carrier | None = None
    expiry: asyncio.TimerHandle | None = None
    """Ends it while it waits."""
    moved: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while it goes from one socket to another."""

    def stay(self) -> None:
        """Do not end it for having waited."""
        if self.expiry is not None:
            self.expiry.cancel()
            self.expiry = None

    @property
    def is_over(self) -> bool:
        """Whether nothing but its events is left of it."""
        return self.carrier is None and self.session.log.is_complete


class Absent:
    """Reads in place of a client that is away while the server stops.

    Its session comes to its end like any other: the room it is in hears the rest of the text.

    Args:
        registry: Told when all is read.
        entry: The session.
    """

    def __init__(self, registry: Registry, entry: Entry[Any]) -> None:
        self._registry = registry
        self._entry = entry
        self._task = asyncio.create_task(self._read())

    async def leave(self, close: Close) -> None:
        """See `Carrier`. Whoever asks takes over."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _read(self) -> None:
        log = self._entry.session.log
        while await log.next() is not None:
            log.sent()
        self._registry.detach(self._entry, self, may_return=False)


class Registry:
    """The sessions of one server.

    Args:
        hub: What they share.
        config: Limits.
        model: Name of the loaded model.
    """

    def __init__(self, hub: Hub, config: ServerConfig, model: str) -> None:
        self._hub = hub
        self._config = config
        self._model = model
        self._entries: dict[str, Entry[Any]] = {}
        self._changed = asyncio.Event()
        self.is_draining = False
        """Whether nobody is let in any more."""

    def __len__(self) -> int:
        """Streams of the sessions that are attached or waiting."""
        return sum(entry.num_streams for entry in self._entries.values() if not entry.is_over)

    def open(self, settings: Settings) -> Entry[Session]:
        """Let a new client of the OpenAI Realtime protocol in; see `admit`."""
        return self.admit(lambda identity: Session(self._hub, self._config, identity, settings))

    def admit(self, begin: Callable[[Identity], S], num_streams: int = 1) -> Entry[S]:
        """Let a new client in.

        Args:
            begin: Makes its session.
            num_streams: Live streams of that.

        Raises:
            TooManyStreams: As many sessions as are allowed are open or waiting.
            EngineStopped: The server is about to stop.
        """
        try:
            if self.is_draining:
                raise EngineStopped("the server is restarting")
            if len(self) + num_streams > self._config.max_sessions:
                raise TooManyStreams(
                    f"{len(self)} sessions are open, no more are allowed",
                    field="max_sessions",
                    retry_after_s=RETRY_AFTER_S,
                )
        except (EngineStopped, TooManyStreams) as error:
            self._hub.metrics.session_refused(error.code)
            raise
        entry = Entry(begin(self._identity()), num_streams)
        self._entries[entry.session.identity.resume_token] = entry
        logger.info("session opened stream=%s", entry.session.identity.session_id)
        return entry

    def find(self, token: str) -> Entry[Session] | None:
        """The session a client wants back; None if there is none."""
        entry = self._entries.get(token)
        return entry if entry is not None and isinstance(entry.session, Session) else None

    async def attach(self, entry: Entry[Any], carrier: Carrier) -> bool:
        """Give a session to a socket, away from any other; False if it is over meanwhile."""
        async with entry.moved:
            left = None
            while entry.carrier not in (None, left):  # one may leave while the server stops
                left = entry.carrier
                await left.leave(TAKEN_OVER)
            if entry.session.identity.resume_token not in self._entries:
                return False
            entry.stay()
            entry.carrier = carrier
            return True

    def detach(self, entry: Entry[Any], carrier: Carrier, *, may_return: bool) -> None:
        """A socket is done with its session.

        Args:
            entry: The session.
            carrier: The socket; nothing happens if another one has taken over.
            may_return: Whether to keep the session for its client for a while.
        """
        if entry.carrier is not carrier:
            return
        entry.carrier = None
        if self.is_draining and may_return and not entry.is_over:
            entry.carrier = Absent(self, entry)
            return
        wait_s = self._config.grace_s
        if may_return and wait_s > 0 and not self.is_draining:
            loop = asyncio.get_running_loop()
            entry.expiry = loop.call_later(wait_s, self.remove, entry)
            over = [entry for entry in self._entries.values() if entry.is_over]
            for oldest in over[: -self._config.max_sessions]:
                self.remove(oldest)
        else:
            self.remove(entry)

    def remove(self, entry: Entry[Any]) -> None:
        """End a session for good."""
        if self._entries.pop(entry.session.identity.resume_token, None) is None:
            return
        entry.stay()
        entry.session.end()
        self._changed.set()
        logger.info("session closed stream=%s", entry.session.identity.session_id)

    async def drain(self) -> None:
        """Let nobody in, give everybody the rest of their text, and close."""
        self.is_draining = True
        for entry in list(self._entries.values()):
            if entry.is_over:
                self.remove(entry)
                continue
            if entry.carrier is None:
                entry.carrier = Absent(self, entry)
            entry.stay()
            try:
                entry.session.finish(RESTARTING)
            except Exception:  # one that breaks must not keep the others from their text
                logger.exception("not drained stream=%s", entry.session.identity.session_id)
                self.remove(entry)
        try:
            async with asyncio.timeout(self._config.drain_s):
                while self._entries:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("drain timed out sessions=%d", len(self._entries))
        for entry in list(self._entries.values()):
            if entry.carrier is not None:
                await entry.carrier.leave(RESTARTING)
            self.remove(entry)

    def _identity(self) -> Identity:
        config = self._config
        return Identity(
            session_id=f"sess_{secrets.token_hex(8)}",
            resume_token=secrets.token_urlsafe(24),
            grace_s=config.grace_s,
            model=self._model,
            expires_at=int(time.time() + config.max_session_s),
            limits={
                "max_message_bytes": config.max_message_bytes,
                "idle_timeout_s": config.idle_timeout_s,
                "max_session_s": config.max_session_s,
            },
        )
