"""Errors as HTTP answers, in the shape OpenAI's clients read: the one place that maps them.

Errors of this package say what they found; anything else is a bug, is logged, and answers 500
without a detail.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from moss_stream.errors import (
    AudioTooLong,
    Cancelled,
    CapacityError,
    ClientError,
    ConfigError,
    EngineStopped,
    Forbidden,
    MessageTooLarge,
    MossStreamError,
    NotFound,
    QueueFull,
    StorageError,
    Unauthorized,
    UnsupportedAudio,
)

logger = logging.getLogger(__name__)

DRAIN_RETRY_S: Final = 5.0
"""When to try again after the engine stopped: another instance, or this one restarted."""


STATUS: Final[dict[type[MossStreamError], int]] = {
    Unauthorized: 401,
    Forbidden: 403,
    NotFound: 404,
    AudioTooLong: 413,
    MessageTooLarge: 413,
    UnsupportedAudio: 415,
    ClientError: 400,
    ConfigError: 400,
    QueueFull: 429,
    CapacityError: 503,
    EngineStopped: 503,
    StorageError: 503,
    Cancelled: 499,
    MossStreamError: 500,
}
"""HTTP status by class; a class that is not listed has that of its nearest base.
499 reaches nobody: it is what the metrics count when a client left before its answer."""


def status_of(error: MossStreamError) -> int:
    """HTTP status that tells of an error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def error_body(error: MossStreamError) -> dict[str, Any]:
    """The object `{"error": {"message", "type", "param", "code"}}`."""
    return _body(status_of(error), error.message, error.field, error.code)


def _body(status: int, message: str, param: str | None, code: str | None) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    if status == 429:
        kind = "rate_limit_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_headers(error: MossStreamError) -> dict[str, str]:
    """Headers of an error: how to log in, when to try again."""
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, CapacityError):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, EngineStopped):
        return {"Retry-After": str(math.ceil(DRAIN_RETRY_S))}
    return {}


def error_response(error: MossStreamError) -> Response:
    """The HTTP answer that tells of an error."""
    return JSONResponse(error_body(error), status_of(error), error_headers(error))


async def _on_own(request: Request, error: Exception) -> Response:
    assert isinstance(error, MossStreamError)
    if status_of(error) == 500:
        logger.error("request failed path=%s code=%s: %s", request.url.path, error.code, error)
    return error_response(error)


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(
        _body(error.status_code, message, None, code), error.status_code, error.headers
    )


async def _on_bug(_request: Request, _error: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server logs its traceback.
    return JSONResponse(_body(500, "the server failed; see its log", None, "internal_error"), 500)


EXCEPTION_HANDLERS: Final[dict[Any, Any]] = {
    MossStreamError: _on_own,
    HTTPException: _on_http,
    Exception: _on_bug,
}
"""For `Starlette(exception_handlers=...)`."""
