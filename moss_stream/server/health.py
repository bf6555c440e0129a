"""Is the process there, and does it take work: `/healthz` and `/readyz`."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


def routes(why_not_ready: Callable[[], str | None]) -> list[Route]:
    """Routes for probes; neither needs a key.

    Args:
        why_not_ready: Says why no new work is taken, such as `draining`; None when it is.
    """

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        reason = why_not_ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    return [Route("/healthz", healthz), Route("/readyz", readyz)]
