import asyncio

import pytest


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback sockets must not leave through a proxy of the machine that runs the tests."""
    for name in ("http_proxy", "https_proxy", "socks_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let recordings be sent at once; return the waits that were asked for, seconds."""
    asked: list[float] = []

    async def pass_at_once(delay: float) -> None:
        asked.append(delay)
        await asyncio.sleep(0)

    monkeypatch.setattr("moss_stream_client.pacing.sleep", pass_at_once)
    return asked
