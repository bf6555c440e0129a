"""Runs the application on uvicorn until it is told to stop, and then lets everybody finish."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
from types import FrameType
from typing import Any

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
    for family, address in _addresses(config):
        try:
            sockets.append(
                socket.create_server(
                    (address[0], port, *address[2:]), family=family, backlog=_BACKLOG
                )
            )
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # a machine without IPv6
                continue
            for taken in sockets:
                taken.close()
            field = "port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "host"
            raise _unavailable(config, field, os.strerror(error.errno or 0)) from error
        port = sockets[-1].getsockname()[1]
    if not sockets:
        raise _unavailable(config, "host", os.strerror(errno.EAFNOSUPPORT))
    return sockets


def _addresses(config: ServerConfig) -> dict[tuple[socket.AddressFamily, Any], None]:
    """Families and addresses of the host, each once and in their order."""
    try:
        found = socket.getaddrinfo(
            config.host or None, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise _unavailable(config, "host", str(error)) from error
    return dict.fromkeys((family, address) for family, _, _, _, address in found)


def _unavailable(config: ServerConfig, field: str, reason: str) -> ConfigError:
    where = f"host {config.host!r}, port {config.port}"
    return ConfigError(f"cannot listen on {where}: {reason}", field=field)


def run(config: ServerConfig, backend: Backend, sockets: list[socket.socket]) -> None:
    """Serve on what `take_address` gave until SIGTERM or SIGINT."""
    # uvicorn logs the query of every socket, which may hold a key.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    DrainingServer(config, backend).run(sockets)
