"""The whole server as one ASGI application."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from moss_stream.captions.house import House, HouseRules
from moss_stream.captions.store import Store
from moss_stream.engine.engine import Engine
from moss_stream.model.checkpoint import Model
from moss_stream.model.vad import Vad
from moss_stream.server import client_secrets, files, health, models
from moss_stream.server.auth import Authenticator, RequireKey
from moss_stream.server.captions import Captions
from moss_stream.server.config import ServerConfig
from moss_stream.server.files import FileTranscriber
from moss_stream.server.hub import Hub
from moss_stream.server.listen import Listen
from moss_stream.server.metrics import Metrics
from moss_stream.server.microphones import Microphones
from moss_stream.server.problems import EXCEPTION_HANDLERS
from moss_stream.server.protocols.settings import Settings
from moss_stream.server.realtime import Realtime
from moss_stream.server.registry import Registry
from moss_stream.server.room_door import RoomDoor
from moss_stream.server.twilio import Twilio
from moss_stream.server.uploads import FileLimits

STATIC = Path(__file__).parent / "static"
"""The caption page as it is built."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the server runs on; whoever made it closes it."""

    name: str
    """What clients call the model."""
    model: Model
    engine: Engine
    vad: Vad
    recordings: FileTranscriber
    """Transcribes whole recordings on the same engine."""


def create_app(config: ServerConfig, backend: Backend) -> Starlette:
    """Build the application; `app.state` has its sessions in `registry` and its rooms in `house`.

    Raises:
        ConfigError: An origin, the host of a webhook or the database's address is malformed.
    """
    metrics = Metrics(backend.engine.stats)
    authenticator = Authenticator(config.api_keys, config.allowed_origins)
    hub = Hub(backend.model, backend.engine, backend.vad, metrics)
    registry = Registry(hub, config, backend.name)
    house = _house(config)
    door = RoomDoor(house, authenticator)
    microphones = Microphones(door, registry, hub, config)

    def effective_session(session: Mapping[str, Any]) -> Mapping[str, Any]:
        settings, _ = Settings(config.preset).updated(dict(session), has_audio=False)
        hub.check_keywords(settings.keywords)
        return settings.wire(backend.name)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        hub.start()
        house.start()
        try:
            yield
        finally:
            await registry.drain()
            await house.drain()
            await hub.stop()
            await house.close()

    limits = FileLimits(
        max_bytes=config.max_file_bytes,
        max_audio_s=config.max_file_s,
        max_requests=config.max_file_requests,
    )
    routes: list[BaseRoute] = [
        *Realtime(registry, authenticator, microphones, config).routes(),
        *Captions(door, authenticator, metrics).routes(),
        *Listen(registry, hub, authenticator, config, backend.name).routes(),
        *Twilio(registry, microphones, authenticator, config).routes(),
        *client_secrets.routes(authenticator, effective_session),
        *files.routes(backend.recordings, limits, model=backend.name, metrics=metrics),
        *models.routes(backend.name, int(time.time())),
        *health.routes(lambda: "draining" if registry.is_draining else backend.engine.why_stopped),
        *metrics.routes(),
    ]
    if STATIC.is_dir():
        routes.append(Mount("/", StaticFiles(directory=STATIC, html=True)))
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequireKey, authenticator=authenticator)],
        exception_handlers=EXCEPTION_HANDLERS,
        lifespan=lifespan,
    )
    app.state.registry = registry
    app.state.house = house
    return app


def _house(config: ServerConfig) -> House:
    rules = HouseRules(
        max_rooms=config.max_rooms,
        max_viewers=config.max_viewers,
        max_waiting=config.max_viewer_messages,
        retention_days=config.room_retention_days,
    )
    return House(Store(config.database), rules)
