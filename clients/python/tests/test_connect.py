"""How a stream begins, and why it does not."""

from __future__ import annotations

import asyncio

import pytest
from fake_server import fake_server

from moss_stream_client import (
    AtCapacity,
    Backoff,
    ConnectError,
    Refused,
    UsageError,
    connect,
)


def test_connect_sends_key_preset_language_and_path() -> None:
    async def main() -> None:
        async with (
            fake_server() as server,
            connect(server.url, api_key="secret", preset="agent", language="en", snapshots=False),
        ):
            request = server.requests[0]
            assert request.headers["Authorization"] == "Bearer secret"
            assert request.path == ("/v1/realtime?intent=transcription&preset=agent&language=en")
            assert server.session.wants == {"snapshots": False, "acks": True, "preset": "agent"}
            assert server.session.rate_hz == 16000

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, Refused), (403, Refused), (404, Refused), (503, AtCapacity), (500, ConnectError)],
)
def test_connect_says_why_the_server_refuses(status: int, error: type[ConnectError]) -> None:
    async def main() -> None:
        async with fake_server() as server:
            server.status = status
            with pytest.raises(error, match=str(status)) as caught:
                async with connect(server.url):
                    pass
            assert type(caught.value) is error
            assert len(server.requests) == 1

    asyncio.run(main())


@pytest.mark.parametrize(("code", "error"), [(1013, AtCapacity), (1008, Refused)])
def test_connect_says_why_the_server_closes(code: int, error: type[ConnectError]) -> None:
    async def main() -> None:
        async with fake_server() as server:
            server.closes_with = (code, "for a reason")
            with pytest.raises(error, match="for a reason"):
                async with connect(server.url):
                    pass

    asyncio.run(main())


def test_connect_fails_at_once_when_nobody_listens() -> None:
    async def main() -> None:
        async with fake_server() as server:
            url = server.url
        with pytest.raises(ConnectError, match="no connection"):
            async with connect(url):
                pass

    asyncio.run(main())


def test_connect_gives_up_on_a_server_that_never_answers() -> None:
    async def main() -> None:
        async with fake_server() as server:
            server.is_silent = True
            with pytest.raises(ConnectError, match="did not open: no answer|no connection"):
                async with connect(
                    server.url, open_timeout_s=0.05, backoff=Backoff(base_s=0.001, cap_s=0.004)
                ):
                    pass

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [({"rate_hz": 44100}, "rate_hz"), ({"preset": "best"}, "preset"), ({"max_buffer_s": 0}, "max")],
)
def test_connect_refuses_bad_options(arguments: dict[str, object], name: str) -> None:
    async def main() -> None:
        async with connect("ws://127.0.0.1:1", **arguments):  # type: ignore[arg-type]
            pass

    with pytest.raises(UsageError, match=name):
        asyncio.run(main())


def test_connect_refuses_a_url_of_no_server() -> None:
    async def main() -> None:
        async with connect("localhost:8000"):
            pass

    with pytest.raises(UsageError, match="url"):
        asyncio.run(main())
