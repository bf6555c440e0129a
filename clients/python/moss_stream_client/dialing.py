"""Opening sockets: where the endpoint is, what a refused handshake means, how long to wait."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from moss_stream_client.errors import AtCapacity, ConnectError, Refused, UsageError

_PATH = "/v1/realtime"
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_PING_S = 10.0
"""A link that answers no ping for this long counts as lost."""
_CLOSE_S = 1.0
_MAX_EVENT_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between tries to reconnect: none before the first, then doubling with jitter.

    Attributes:
        base_s: The second try's wait, seconds.
        cap_s: The longest wait, seconds.
    """

    base_s: float = 0.25
    cap_s: float = 5.0

    def delays(self) -> Iterator[float]:
        """Yield the waits, without end."""
        yield 0.0
        delay_s = self.base_s
        while True:
            # Many clients lose a server at the same moment: they must not come back as one.
            yield delay_s * random.uniform(0.5, 1.0)
            delay_s = min(2 * delay_s, self.cap_s)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's realtime address.

    Attributes:
        url: `ws(s)://` address with path and the caller's own query.
        api_key: Sent as a Bearer token, None for an open server.
    """

    url: str
    api_key: str | None

    @classmethod
    def parse(cls, url: str, api_key: str | None) -> Endpoint:
        """Complete an address: `http(s)` becomes `ws(s)`, no path becomes `/v1/realtime`.

        Raises:
            UsageError: Not an address of a server.
        """
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.netloc:
            raise UsageError(f"url must look like ws://host:port, got {url!r}")
        path = _PATH if parts.path in ("", "/") else parts.path
        return cls(
            urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, parts.query, "")), api_key
        )

    async def dial(self, query: Mapping[str, str], timeout_s: float) -> ClientConnection:
        """Open one socket.

        Raises:
            ConnectError: The server cannot be reached, or refuses.
        """
        parts = urlsplit(self.url)
        merged = urlencode(dict(parse_qsl(parts.query)) | dict(query))
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        try:
            return await open_socket(
                urlunsplit(parts._replace(query=merged)),
                additional_headers=headers,
                open_timeout=timeout_s,
                ping_interval=_PING_S,
                ping_timeout=_PING_S,
                close_timeout=_CLOSE_S,
                max_size=_MAX_EVENT_BYTES,
                compression=None,
            )
        except InvalidStatus as error:
            raise _refusal(error) from error
        except InvalidURI as error:
            raise UsageError(f"url is not usable: {self.url!r}") from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            said = str(error) or type(error).__name__
            raise ConnectError(f"no connection to {parts.netloc}: {said}") from error


def _refusal(error: InvalidStatus) -> ConnectError:
    """Say what an HTTP answer instead of a handshake means."""
    response = error.response
    status = response.status_code
    if status == 401:
        return Refused("the server wants another API key (HTTP 401)")
    if status == 403:
        return Refused("the server does not allow this origin or key (HTTP 403)")
    if status in (429, 503):
        return AtCapacity(
            f"the server has no room for another stream (HTTP {status})",
            retry_after_s=_seconds(response.headers.get("Retry-After")),
        )
    if status >= 500:
        return ConnectError(f"the server failed (HTTP {status})")
    return Refused(f"no realtime endpoint at this address (HTTP {status})")


def _seconds(retry_after: str | None) -> float:
    """Read a Retry-After header; it may also hold a date, which is not worth parsing."""
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else 1.0
