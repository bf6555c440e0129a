"""Tells events to a web address of a client's: in order, again where that helps, in bounds.

An address that a client names is asked by this server, from inside its network. So only hosts that
the operator has allowed are, no redirect is followed and no proxy of the environment is used.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

import httpx
import orjson

from moss_stream.errors import ConfigError, Forbidden, InvalidMessage

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 512
"""Events that wait for an address that does not answer; later ones are dropped."""
RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Waits before an event is sent again, seconds; after the last it is given up."""
TIMEOUT_S: Final = 10.0
"""Longest an address may take to answer, seconds."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PLACE = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(:(?P<port>[0-9]{1,5}))?")
_MAX_PORT = 65_535
_RETRYABLE = frozenset({408, 425, 429})


Place = tuple[str, int | None]
"""A host and its port; None stands for the usual ones of http and https."""


def parse_place(text: str) -> Place:
    """Read `HOST` or `HOST:PORT`.

    Raises:
        ConfigError: It is neither.
    """
    match = _PLACE.fullmatch(text)
    port = int(match["port"]) if match and match["port"] else None
    if match is None or port == 0 or (port or 0) > _MAX_PORT:
        raise ConfigError(
            f"webhook_allow is {text!r}, expected HOST or HOST:PORT", field="webhook_allow"
        )
    return httpx.URL(f"http://{match['host']}").host, port


def check_address(text: str, allowed: Collection[Place]) -> httpx.URL:
    """Find out whether events may go to an address.

    Args:
        text: The address.
        allowed: Where they may go.

    Raises:
        InvalidMessage: It is no http or https address, or holds a user.
        Forbidden: Its host and port are not among the allowed ones.
    """
    try:
        url = httpx.URL(text)
        host, port = url.host, url.port
    except (httpx.InvalidURL, ValueError) as error:  # the latter of names that IDNA cannot encode
        raise InvalidMessage(f"webhook is no address: {error}", field="webhook") from error
    if url.scheme not in _DEFAULT_PORTS or not host or url.userinfo:
        raise InvalidMessage("webhook is no address of the form https://HOST/PATH", field="webhook")
    usual = _DEFAULT_PORTS[url.scheme]
    port = usual if port is None else port
    if (host, port) not in {(host, allowed_port or usual) for host, allowed_port in allowed}:
        raise Forbidden(
            f"webhook is on {host}:{port}, which this server does not call",
            field="webhook",
        )
    return url


class Webhook:
    """Delivers the events of one client. Run `deliver` in a task.

    Args:
        url: Where they go.
        retry_delays_s: Waits before an event is sent again.
    """

    def __init__(self, url: httpx.URL, retry_delays_s: Collection[float] = RETRY_DELAYS_S) -> None:
        self._url = url
        self._retry_delays_s = retry_delays_s
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)

    def put(self, event: Mapping[str, Any]) -> None:
        """Add an event; dropped when too many wait, which leaves a hole in its numbers."""
        try:
            self._waiting.put_nowait(orjson.dumps(event))
        except asyncio.QueueFull:
            logger.warning("webhook event dropped host=%s waiting=%d", self._url.host, MAX_WAITING)

    async def finish(self) -> None:
        """No event follows; waits while too many are there."""
        await self._waiting.put(None)

    async def deliver(self) -> None:
        """Send events until none follows."""
        headers = {"Content-Type": "application/json"}
        async with httpx.AsyncClient(
            headers=headers, timeout=TIMEOUT_S, follow_redirects=False, trust_env=False
        ) as client:
            while (body := await self._waiting.get()) is not None:
                await self._send(client, body)

    async def _send(self, client: httpx.AsyncClient, body: bytes) -> None:
        """Send one event, some times if need be; its loss is logged."""
        problem = await self._try(client, body)
        for delay_s in self._retry_delays_s:
            if problem is None:
                return
            await asyncio.sleep(delay_s)
            problem = await self._try(client, body)
        if problem is not None:
            logger.warning("webhook event given up host=%s reason=%s", self._url.host, problem)

    async def _try(self, client: httpx.AsyncClient, body: bytes) -> str | None:
        """Send one event once; returns why it should be sent again, None when not."""
        try:
            answer = await client.post(self._url, content=body)
        except httpx.HTTPError as error:
            return type(error).__name__
        if answer.status_code in _RETRYABLE or answer.status_code >= 500:
            return f"HTTP {answer.status_code}"
        if not answer.is_success:
            logger.warning(
                "webhook event refused host=%s status=%d", self._url.host, answer.status_code
            )
        return None
