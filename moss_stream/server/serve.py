"""Runs the application on uvicorn until it is told to stop, and then lets everybody finish."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from types import FrameType

import uvicorn

from moss_stream.errors import ConfigError
from moss_stream.server.app import Backend, create_app
from moss_stream.server.auth import check_bind
from moss_stream.server.config import ServerConfig

logger = logging.getLogger(__name__)

_BACKLOG = 2048
"""Connections that wait to be accepted, as many as uvicorn allows."""
_LEAVE_S = 5
"""How long HTTP requests under way may take once the sessions are closed, seconds."""


class DrainingServer(uvicorn.Server):
    """A server that closes its sessions with their last text before it closes its sockets.

    The first signal drains, a second one stops at once.
    """

    def __init__(self, config: ServerConfig, backend: Backend) -> None:
        self.app = create_app(config, backend)
        logging.getLogger("uvicorn.error").addFilter(_is_true)
        self._drain: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                self.app,
                host=config.host,
                port=config.port,
                loop="auto",  # uvloop where it is installed
                ws="websockets-sansio",
                ws_max_size=config.max_message_bytes,
                ws_ping_interval=config.ping_interval_s,
                ws_ping_timeout=config.ping_interval_s,
                ws_per_message_deflate=False,  # audio does not shrink, and bombs cannot grow
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LEAVE_S,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn; called in the main thread between any two steps."""
        if self._drain is not None or self._loop is None:
            super().handle_exit(sig, frame)
            return
        logger.info("draining signal=%s", signal.Signals(sig).name)
        self._loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        """Let nobody in, give everybody the rest of their text, then stop."""
        if self._drain is None:
            self._drain = asyncio.create_task(self._drain_and_stop())

    async def _drain_and_stop(self) -> None:
        try:
            await self.app.state.registry.drain()
            await self.app.state.house.drain()  # the last finals are told to viewers too
        finally:
            self.should_exit = True


def _is_true(record: logging.LogRecord) -> bool:
    """Whether a message is right: uvicorn takes each refused handshake for a forgotten one."""
    return "returned without completing handshake" not in record.getMessage()


def take_address(config: ServerConfig) -> list[socket.socket]:
    """Take the address to listen on, so that one which cannot be had is known at once.

    Returns:
        A socket for each address the host has, all on one port. They listen: whoever connects
        waits until `run`, and nobody else gets the address meanwhile.

    Raises:
        ConfigError: The address is open to a network and there is no key, or it cannot be had.
    """
    check_bind(config.host, config.api_keys, config.allow_open)
    sockets: list[socket.socket] = []
    port = config.port
    try:
        found = socket.getaddrinfo(
            config.host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                sockets.append(socket.socket(family, kind, protocol))
            except OSError:  # a machine without IPv6, and a host that has such an address too
                if len(found) == 1:
                    raise
                continue
            _listen(sockets[-1], (address[0], port, *address[2:]))
            port = sockets[-1].getsockname()[1]
    except (OSError, UnicodeError) as error:
        for taken in sockets:
            taken.close()
        raise _unavailable(config, error) from error
    return sockets


def _listen(taken: socket.socket, address: tuple[object, ...]) -> None:
    if os.name == "posix":  # for connections that linger; elsewhere a port would be shared by it
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if taken.family == socket.AF_INET6:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    taken.bind(address)
    taken.listen(_BACKLOG)


def _unavailable(config: ServerConfig, error: Exception) -> ConfigError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    of_port = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
    return ConfigError(
        f"cannot listen on host {config.host!r}, port {config.port}: {reason}",
        field="port" if of_port else "host",
    )


def run(config: ServerConfig, backend: Backend, sockets: list[socket.socket]) -> None:
    """Serve on what `take_address` gave until SIGTERM or SIGINT."""
    # uvicorn logs the query of every socket, which may hold a key.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    DrainingServer(config, backend).run(sockets)
