"""`WS /v1/listen`: the door for clients of Deepgram's live protocol."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from importlib.metadata import version

from starlette.responses import JSONResponse, Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from moss_stream.errors import (
    CapacityError,
    ClientError,
    ConfigError,
    Forbidden,
    MossStreamError,
    Unauthorized,
)
from moss_stream.server.auth import SCHEMES, Authenticator
from moss_stream.server.config import ServerConfig
from moss_stream.server.connection import GONE, Connection, close_socket
from moss_stream.server.hub import Hub
from moss_stream.server.listen_session import ListenSession
from moss_stream.server.problems import error_headers
from moss_stream.server.protocols.deepgram_query import ListenOptions, read_query
from moss_stream.server.protocols.deepgram_results import RequestInfo
from moss_stream.server.registry import RESTARTING, Entry, Registry

REFUSALS: dict[type[MossStreamError], tuple[int, str]] = {
    Unauthorized: (401, "INVALID_AUTH"),
    Forbidden: (403, "INSUFFICIENT_PERMISSIONS"),
    ClientError: (400, "INVALID_QUERY_PARAMETER"),
    ConfigError: (400, "INVALID_QUERY_PARAMETER"),
    CapacityError: (429, "TOO_MANY_REQUESTS"),
    MossStreamError: (503, "SERVICE_UNAVAILABLE"),
}
"""HTTP status and `err_code` by error; one that is not listed has those of its nearest base."""


class Listen:
    """The endpoint.

    Args:
        registry: Keeps the sessions.
        hub: What they share.
        authenticator: Lets clients in.
        config: Limits.
        model: Name of the loaded model.
    """

    def __init__(
        self,
        registry: Registry,
        hub: Hub,
        authenticator: Authenticator,
        config: ServerConfig,
        model: str,
    ) -> None:
        self._registry = registry
        self._hub = hub
        self._authenticator = authenticator
        self._config = config
        self._model = model

    def routes(self) -> list[WebSocketRoute]:
        """Route `/v1/listen`."""
        return [WebSocketRoute("/v1/listen", self._endpoint)]

    async def _endpoint(self, websocket: WebSocket) -> None:
        request_id = str(uuid.uuid4())
        try:
            self._authenticator.check_origin(websocket)
            self._authenticator.authenticate(websocket)
            options = read_query(websocket.query_params.multi_items())
            self._hub.check_keywords(options.keywords)
            entry = self._admit(request_id, options)
        except MossStreamError as error:
            await websocket.send_denial_response(refusal(error, request_id))
            return
        try:
            await _accept(websocket, request_id)
        except BaseException:
            self._registry.remove(entry)
            raise
        await self._carry(websocket, entry)

    def _admit(self, request_id: str, options: ListenOptions) -> Entry[ListenSession]:
        info = RequestInfo(
            request_id=request_id,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            model=self._model,
            version=version("moss-stream"),
        )
        return self._registry.admit(
            lambda identity: ListenSession(self._hub, self._config, identity, info, options),
            options.num_streams,
        )

    async def _carry(self, websocket: WebSocket, entry: Entry[ListenSession]) -> None:
        carrier = Connection(websocket, entry.session, self._config)
        if not await self._registry.attach(entry, carrier):
            await close_socket(websocket, RESTARTING)
            return
        close = GONE
        try:
            close = await carrier.carry()
        finally:
            self._registry.detach(entry, carrier, may_return=False)
        await close_socket(websocket, close)


async def _accept(websocket: WebSocket, request_id: str) -> None:
    """Accept, with the scheme that a browser has put before its key among the subprotocols."""
    offered = websocket.scope.get("subprotocols", ())
    scheme = next((name for name in offered if name in SCHEMES), None)
    await websocket.accept(scheme, headers=[(b"dg-request-id", request_id.encode())])


def refusal(error: MossStreamError, request_id: str) -> Response:
    """The HTTP answer to a client that is not let in, as Deepgram's clients read it."""
    status, code = next(REFUSALS[kind] for kind in type(error).__mro__ if kind in REFUSALS)
    body = {"err_code": code, "err_msg": error.message, "request_id": request_id}
    # A header takes Latin-1 alone, and the message may quote what the client sent.
    said = error.message.encode("ascii", "backslashreplace").decode()
    headers = {"dg-request-id": request_id, "dg-error": said, **error_headers(error)}
    return JSONResponse(body, status, headers)
