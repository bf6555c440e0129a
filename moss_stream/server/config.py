"""Options of the server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moss_stream.config import check_range
from moss_stream.errors import ConfigError
from moss_stream.live.config import LiveConfig

PRESETS = {"agent": LiveConfig.agent, "captions": LiveConfig.captions}
"""Live options by the name of their use."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where the server listens, whom it serves and how much it takes on.

    Raises:
        ConfigError: A value is outside its bounds, or two contradict each other.
    """

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 for any free one."""
    tls_cert: Path | None = None
    """Certificate chain, PEM; with `tls_key`."""
    tls_key: Path | None = None
    """Private key, PEM; with `tls_cert`."""
    preset: str = "captions"
    """Live options of sessions that name none: one of `PRESETS`."""
    api_keys: tuple[str, ...] = ()
    """Keys that are let in; none lets everybody in, on loopback."""
    allow_open: bool = False
    """Whether to listen beyond loopback without a key."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that are let in besides the server's own; `*` lets in all."""
    webhook_allow: tuple[str, ...] = ()
    """Hosts, as HOST or HOST:PORT, that events of phone calls may be sent to."""
    max_sessions: int = 64
    """Most live sessions, those waiting for their client to come back included."""
    max_message_bytes: int = 20 << 20
    """Largest message on a socket, bytes: 15 MiB of audio fit in base64."""
    max_bad_messages: int = 20
    """Messages in a row that are not JSON before the socket is closed."""
    grace_s: float = 30.0
    """How long a session waits for a client that lost its socket, seconds; 0 never waits."""
    idle_timeout_s: float = 300.0
    """Longest a connected client may send nothing, seconds."""
    listen_idle_s: float = 10.0
    """The same on `/v1/listen`, where clients know it, seconds."""
    max_session_s: float = 4 * 3600.0
    """Longest session, seconds."""
    max_unsent_events: int = 256
    """Events waiting for a slow client before its audio is not read any more."""
    replay_events: int = 2048
    """Last events kept for a client that comes back; not fewer than `max_unsent_events`."""
    send_timeout_s: float = 30.0
    """Longest a client may take to read one event, seconds."""
    ping_interval_s: float = 20.0
    """Time between pings; a client that misses two is gone, seconds."""
    drain_s: float = 20.0
    """Longest the server waits for finals when it is told to stop, seconds."""
    max_file_bytes: int = 200 << 20
    """Largest upload, bytes."""
    max_file_s: float = 2 * 3600.0
    """Longest recording uploaded, seconds."""
    max_file_requests: int = 16
    """Uploads worked on at the same time; more are refused for the moment."""
    database: str = "sqlite://"
    """Where rooms are kept, as SQLAlchemy writes it; this one lasts as long as the server."""
    room_retention_days: float = 30.0
    """How long a room is kept after its last change, days; 0 for ever."""
    max_rooms: int = 10_000
    """Most rooms in the database."""
    max_viewers: int = 2000
    """Most viewers of all rooms."""
    max_viewer_messages: int = 256
    """Messages that may wait for one viewer before it is dropped."""

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)
        check_range("max_sessions", self.max_sessions, 1, 100_000)
        check_range("max_message_bytes", self.max_message_bytes, 1 << 10, 1 << 30)
        check_range("max_bad_messages", self.max_bad_messages, 1, 1_000_000)
        check_range("grace_s", self.grace_s, 0, 3600)
        check_range("idle_timeout_s", self.idle_timeout_s, 1, 86_400)
        check_range("listen_idle_s", self.listen_idle_s, 0.1, 86_400)
        check_range("max_session_s", self.max_session_s, 10, 7 * 86_400)
        check_range("max_unsent_events", self.max_unsent_events, 8, 1 << 20)
        check_range("replay_events", self.replay_events, self.max_unsent_events, 1 << 20)
        check_range("send_timeout_s", self.send_timeout_s, 0.1, 3600)
        check_range("ping_interval_s", self.ping_interval_s, 1, 3600)
        check_range("drain_s", self.drain_s, 0, 3600)
        check_range("max_file_bytes", self.max_file_bytes, 1 << 10, 1 << 40)
        check_range("max_file_s", self.max_file_s, 1, 86_400)
        check_range("max_file_requests", self.max_file_requests, 1, 1024)
        check_range("room_retention_days", self.room_retention_days, 0, 36_500)
        check_range("max_rooms", self.max_rooms, 1, 10_000_000)
        check_range("max_viewers", self.max_viewers, 1, 1_000_000)
        check_range("max_viewer_messages", self.max_viewer_messages, 8, 1 << 20)
        if self.preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise ConfigError(f"preset is {self.preset!r}, allowed are {known}", field="preset")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key go together", field="tls_key")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("an API key is empty", field="api_keys")
