"""An app on a real port of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an app from a thread; yields its address, `http://127.0.0.1:PORT`."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            started.set()

    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none")
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(10)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
