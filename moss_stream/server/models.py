"""The one model that is served, in the shape of OpenAI's list of models."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from moss_stream.errors import ModelNotFound

ALIASES: Final = (
    "whisper-1",
    "gpt-4o-transcribe",
    "gpt-4o-mini-transcribe",
    "gpt-4o-transcribe-diarize",
)
"""Names that clients have built in; they mean the loaded model."""


def check_model(name: str | None, loaded: str) -> None:
    """Refuse a model that is not served.

    Args:
        name: What the client asks for; None or empty for whatever there is.
        loaded: Name of the loaded model.

    Raises:
        ModelNotFound: It is neither the loaded model nor one of `ALIASES`; lists both.
    """
    if name and name not in (loaded, *ALIASES):
        allowed = ", ".join((loaded, *ALIASES))
        raise ModelNotFound(f"model is {name!r}, served are {allowed}", field="model")


def routes(loaded: str, created_s: int) -> list[Route]:
    """Routes `GET /v1/models` and `GET /v1/models/{id}`.

    Args:
        loaded: Name of the loaded model; an alias is answered under its own name.
        created_s: What to say it was created at, seconds since 1970.
    """

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created_s, "owned_by": "moss-stream"}

    async def list_models(_request: Request) -> Response:
        names = (loaded, *ALIASES)
        return JSONResponse({"object": "list", "data": [described(name) for name in names]})

    async def get_model(request: Request) -> Response:
        name = request.path_params["name"]
        check_model(name, loaded)
        return JSONResponse(described(name))

    return [Route("/v1/models", list_models), Route("/v1/models/{name:path}", get_model)]
