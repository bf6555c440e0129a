from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.realtime import Running, make_backend, running

from moss_stream.model.checkpoint import Model
from moss_stream.server.app import Backend


@pytest.fixture(scope="session")
def backend(mini: Model) -> Iterator[Backend]:
    """The shipped checkpoint on an engine of its own; at the end it must be as it was."""
    with make_backend(mini) as made:
        yield made


@pytest.fixture(scope="module")
def server(backend: Backend) -> Iterator[Running]:
    """A server that several tests share."""
    with running(backend) as shared:
        yield shared
        assert shared.sessions_end()
    backend.engine.check_idle()
