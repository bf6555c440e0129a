"""Who may use the server: API keys, short-lived client secrets for browsers, and pages' origins.

A client secret is stateless: it carries its expiry and its session options under a MAC, so every
process with the same signing key can check it and none has to remember it. It opens live sessions
and nothing else. Without API keys everybody is let in, which `check_bind` allows on loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from moss_stream.errors import ConfigError, Forbidden, InvalidMessage, Unauthorized
from moss_stream.server.problems import error_response

KEY_SUBPROTOCOL: Final = "openai-insecure-api-key."
"""What browsers put before a key, as they cannot set headers on a WebSocket."""
SCHEMES: Final = ("bearer", "token")
"""What a key follows, in the header and, as Deepgram's clients have it, among the subprotocols."""
SECRET_PREFIX: Final = "ek_"
SECRET_LIFETIME_S: Final = 600
MIN_SECRET_LIFETIME_S: Final = 10
MAX_SECRET_LIFETIME_S: Final = 7200
MAX_SESSION_BYTES: Final = 4096
"""Most session options in a client secret, which has to fit in one header line."""
MIN_KEY_CHARS: Final = 8
PROTECTED: Final = ("/v1/", "/metrics")
"""Paths over HTTP that need a key; the page and the probes do not."""
ROOM_PATHS: Final = ("/v1/rooms/", "/v1/captions/")
"""Protected paths whose routes take a room's tokens as well, and ask for them themselves."""

_KEY = re.compile(rf"[A-Za-z0-9._~-]{{{MIN_KEY_CHARS},256}}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_MAC_BYTES = 16
_EXPIRY_BYTES = 8
_NONCE_BYTES = 8


def load_keys(path: Path) -> tuple[str, ...]:
    """Read API keys from a file: one a line; empty lines and lines that start with # do not count.

    Raises:
        ConfigError: It cannot be read, holds no key, or a line is not a key; never quotes a line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the API keys in {str(path)!r} cannot be read: {error}", field="api_key_file"
        ) from error
    keys = []
    for number, line in enumerate((line.strip() for line in lines), 1):
        if not line or line.startswith("#"):
            continue
        if not _KEY.fullmatch(line):
            raise ConfigError(
                f"line {number} of {str(path)!r} is not a key: {MIN_KEY_CHARS} to 256 letters, "
                "digits and .~_- are",
                field="api_key_file",
            )
        keys.append(line)
    if not keys:
        raise ConfigError(f"{str(path)!r} holds no API key", field="api_key_file")
    return tuple(keys)


def check_bind(host: str, keys: Collection[str], allow_insecure: bool) -> None:
    """Refuse to let a whole network in without a key.

    Raises:
        ConfigError: `host` is reached from other machines, and there are no keys.
    """
    if not (keys or allow_insecure or _is_loopback(host)):
        raise ConfigError(
            f"host is {host!r}, which other machines reach, and there is no API key", field="host"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Grant:
    """What a credential allows."""

    is_ephemeral: bool = False
    """Whether it is a client secret: good for live sessions alone."""
    session: Mapping[str, Any] | None = None
    """Session options a client secret was made with."""


class Authenticator:
    """Checks credentials and origins, and makes client secrets.

    Args:
        keys: API keys; none lets everybody in.
        origins: Origins of pages that are let in besides the server's own; `*` lets in all.
        secret: Signs client secrets; None for one that lasts as long as the process.
        clock: Seconds since 1970.

    Raises:
        ConfigError: An origin is not of the form `scheme://host[:port]`.
    """

    def __init__(
        self,
        keys: Collection[str] = (),
        origins: Collection[str] = (),
        secret: bytes | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"origin is {origin!r}, expected scheme://host[:port] or *",
                    field="allowed_origins",
                )
        self._digests = [_digest(key) for key in keys]
        self._origins = frozenset(origins)
        self._secret = secret or secrets.token_bytes(32)
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether everybody is let in."""
        return not self._digests

    def authenticate(self, connection: HTTPConnection) -> Grant:
        """Find out what a request or a WebSocket may do.

        The key comes as `Authorization: Bearer KEY` or `Token KEY`, as `?token=KEY`, or as the
        subprotocol `openai-insecure-api-key.KEY` or the one after `token` or `bearer`.

        Raises:
            Unauthorized: There is no key, or it is not known, or a client secret has expired.
        """
        return self.admit(credential_of(connection))

    def admit(self, credential: str | None) -> Grant:
        """Find out what a key or a client secret allows, wherever it came from.

        Raises:
            Unauthorized: It is None, or not known, or a client secret that has expired.
        """
        if credential is not None and credential.startswith(SECRET_PREFIX):
            return self._open_secret(credential)
        if not self._digests:
            return Grant()
        if credential is None:
            raise Unauthorized("an API key is needed: Authorization: Bearer KEY")
        digest = _digest(credential)
        # All are compared, so the time taken says nothing about which is near.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("the API key is not known")
        return Grant()

    def check_origin(self, connection: HTTPConnection) -> None:
        """Refuse pages of other sites: a browser lets any page knock at any address it reaches.

        Raises:
            Forbidden: The page's origin is neither the server's own nor allowed.
        """
        origin = connection.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        host = connection.headers.get("host", "")
        # A name may be made to point here by whoever owns it; a key is what such a page lacks.
        if origin.partition("://")[2] == host and (self._digests or _is_address(host)):
            return
        raise Forbidden(f"origin {origin!r} is not allowed", field="origin")

    def issue_secret(self, session: Mapping[str, Any], lifetime_s: int) -> tuple[str, int]:
        """Make a client secret.

        Args:
            session: Options of the sessions it opens.
            lifetime_s: How long it can be used, seconds.

        Returns:
            The secret, and when it expires, seconds since 1970.

        Raises:
            InvalidMessage: The lifetime is out of bounds, or the options are too long.
        """
        low, high = MIN_SECRET_LIFETIME_S, MAX_SECRET_LIFETIME_S
        if isinstance(lifetime_s, bool) or not isinstance(lifetime_s, int):
            raise InvalidMessage(
                f"seconds is {lifetime_s!r}, expected a whole number", field="expires_after.seconds"
            )
        if not low <= lifetime_s <= high:
            raise InvalidMessage(
                f"seconds is {lifetime_s}, allowed are {low} to {high}",
                field="expires_after.seconds",
            )
        options = orjson.dumps(session)
        if len(options) > MAX_SESSION_BYTES:
            raise InvalidMessage(
                f"session has {len(options)} bytes, at most {MAX_SESSION_BYTES} are allowed",
                field="session",
            )
        expires_at = int(self._clock()) + lifetime_s
        payload = expires_at.to_bytes(_EXPIRY_BYTES) + secrets.token_bytes(_NONCE_BYTES) + options
        text = urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")
        return SECRET_PREFIX + text, expires_at

    def _open_secret(self, text: str) -> Grant:
        encoded = text.removeprefix(SECRET_PREFIX)
        try:
            data = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        except (Base64Error, ValueError):
            data = b""
        mac, payload = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            raise Unauthorized("the client secret is not known")
        if int.from_bytes(payload[:_EXPIRY_BYTES]) <= self._clock():
            raise Unauthorized("the client secret has expired")
        return Grant(
            is_ephemeral=True, session=orjson.loads(payload[_EXPIRY_BYTES + _NONCE_BYTES :])
        )

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._secret, payload, "sha256")[:_MAC_BYTES]


class RequireKey:
    """ASGI middleware: over HTTP, `PROTECTED` paths need an API key and a page that is let in.

    WebSockets pass; their route asks the `Authenticator` itself, before it accepts.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer why not."""
        if scope["type"] == "http" and scope["path"].startswith(PROTECTED):
            connection = HTTPConnection(scope)
            try:
                self._authenticator.check_origin(connection)
                is_room = scope["path"].startswith(ROOM_PATHS)
                if not is_room and self._authenticator.authenticate(connection).is_ephemeral:
                    raise Forbidden("a client secret opens live sessions only; use an API key")
            except (Unauthorized, Forbidden) as error:
                await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def credential_of(connection: HTTPConnection) -> str | None:
    """The key, token or client secret that comes with a request or a WebSocket, if one does."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() in SCHEMES:
        return key.strip()
    if "token" in connection.query_params:
        return connection.query_params["token"]
    offered: list[str] = connection.scope.get("subprotocols", [])
    for name, following in zip_longest(offered, offered[1:]):
        if name.startswith(KEY_SUBPROTOCOL):
            return name.removeprefix(KEY_SUBPROTOCOL)
        if name in SCHEMES:
            return following
    return None


def _digest(key: str) -> bytes:
    """Bring keys to one length, as comparing takes time by length."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _is_address(host: str) -> bool:
    """Whether a Host header is an IP address or localhost: no other name can be made to be so."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
