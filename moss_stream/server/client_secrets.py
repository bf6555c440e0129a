"""`POST /v1/realtime/client_secrets`: a key of a few minutes that a web page may hold."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moss_stream.errors import InvalidMessage
from moss_stream.server.auth import SECRET_LIFETIME_S, Authenticator
from moss_stream.server.bodies import read_object

Session = Mapping[str, Any]


def routes(
    authenticator: Authenticator, effective_session: Callable[[Session], Session] = dict
) -> list[Route]:
    """Route that makes client secrets; `RequireKey` sees to who may ask.

    Args:
        authenticator: Makes the secrets.
        effective_session: Checks session options and completes them for the answer; raises
            `ClientError` for bad ones.
    """

    async def create(request: Request) -> Response:
        body = await read_object(request)
        session = _object(body, "session")
        if session.setdefault("type", "transcription") != "transcription":
            raise InvalidMessage(
                f"session.type is {session['type']!r}, served is transcription",
                field="session.type",
            )
        shown = effective_session(session)
        lifetime_s = _object(body, "expires_after").get("seconds", SECRET_LIFETIME_S)
        value, expires_at = authenticator.issue_secret(session, lifetime_s)
        described = {
            "id": f"sess_{secrets.token_hex(12)}",
            "object": "realtime.transcription_session",
            "expires_at": expires_at,
            **shown,
        }
        return JSONResponse({"value": value, "expires_at": expires_at, "session": described})

    return [Route("/v1/realtime/client_secrets", create, methods=["POST"])]


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidMessage(f"{name} is not an object", field=name)
    return dict(value)
