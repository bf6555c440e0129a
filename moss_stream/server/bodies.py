"""JSON bodies of requests, under a limit."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.requests import Request

from moss_stream.errors import InvalidMessage, MessageTooLarge

MAX_BODY_BYTES: Final = 64 << 10


async def read_object(request: Request) -> dict[str, Any]:
    """Read a JSON object; an empty body is an empty object.

    Raises:
        InvalidMessage: It is no JSON object.
        MessageTooLarge: It has more than `MAX_BODY_BYTES`.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY_BYTES:
            raise MessageTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes", field="body")
    try:
        body = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError as error:
        raise InvalidMessage(f"the body is not JSON: {error}", field="body") from error
    if not isinstance(body, dict):
        raise InvalidMessage("the body is not a JSON object", field="body")
    return body
