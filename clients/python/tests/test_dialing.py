from __future__ import annotations

import itertools

import pytest

from moss_stream_client import Backoff
from moss_stream_client.dialing import Endpoint


@pytest.mark.parametrize(
    ("url", "completed"),
    [
        ("ws://host:8000", "ws://host:8000/v1/realtime"),
        ("https://host/", "wss://host/v1/realtime"),
        ("wss://host/other/realtime?model=x", "wss://host/other/realtime?model=x"),
    ],
)
def test_endpoint_completes_an_address(url: str, completed: str) -> None:
    assert Endpoint.parse(url, None).url == completed


def test_backoff_starts_at_once_then_grows_to_its_cap() -> None:
    delays = list(itertools.islice(Backoff(base_s=1.0, cap_s=4.0).delays(), 6))
    assert delays[0] == 0
    for delay, top in zip(delays[1:], [1, 2, 4, 4, 4], strict=True):
        assert top / 2 <= delay <= top
