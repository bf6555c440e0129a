from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.webhook import Receiver, receiving

from moss_stream.errors import ClientError, ConfigError, Forbidden, InvalidMessage
from moss_stream.server.webhook import MAX_WAITING, Webhook, check_address, parse_place


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def deliver(url: str, *events: Any, retries: int = 3) -> None:
    async def play() -> None:
        webhook = Webhook(httpx.URL(url), retry_delays_s=[0.0] * retries)
        for event in events:
            webhook.put(event)
        delivery = asyncio.create_task(webhook.deliver())
        await webhook.finish()
        await delivery

    asyncio.run(play())


def test_webhook_delivers_in_order(receiver: Receiver) -> None:
    deliver(f"{receiver.url}/hook", *({"sequence": k} for k in range(20)))

    assert receiver.events == [{"sequence": k} for k in range(20)]


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_webhook_tries_again(receiver: Receiver, status: int) -> None:
    receiver.answers = [status, status]
    deliver(f"{receiver.url}/hook", {"sequence": 1}, {"sequence": 2})

    assert receiver.events == [{"sequence": 1}, {"sequence": 2}]
    assert len(receiver.paths) == 4


@pytest.mark.parametrize("status", [302, 307, 400, 404])
def test_webhook_takes_no_for_an_answer(
    receiver: Receiver, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answers = [status]
    deliver(f"{receiver.url}/hook", {"sequence": 1}, {"sequence": 2})

    assert receiver.events == [{"sequence": 2}]
    assert receiver.paths == ["/hook", "/hook"]  # a redirect is not followed
    assert f"status={status}" in caplog.text


def test_webhook_gives_up_and_goes_on(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.answers = [500] * 4
    deliver(f"{receiver.url}/hook", {"sequence": 1}, {"sequence": 2}, retries=3)

    assert receiver.events == [{"sequence": 2}]
    assert "given up host=127.0.0.1 reason=HTTP 500" in caplog.text


def test_webhook_survives_an_address_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    deliver("http://127.0.0.1:1/hook", {"sequence": 1}, retries=1)

    assert "reason=ConnectError" in caplog.text


def test_webhook_drops_what_does_not_fit(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Later ones are dropped, so that the hole shows in the numbers."""
    events = [{"sequence": k} for k in range(MAX_WAITING + 3)]
    deliver(f"{receiver.url}/hook", *events)

    assert receiver.events == events[:MAX_WAITING]
    assert caplog.text.count("dropped") == 3


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("https://hooks.example.org/a?b=c", "hooks.example.org"),
        ("https://HOOKS.example.org:443/", "hooks.example.org"),
        ("http://hooks.example.org/", "Hooks.Example.Org"),
        ("http://10.0.0.7:8080/", "10.0.0.7:8080"),
        ("https://[::1]:8443/", "[::1]:8443"),
        ("https://bücher.example/", "bücher.example"),
    ],
)
def test_address_on_an_allowed_host_passes(address: str, allowed: str) -> None:
    assert check_address(address, [parse_place(allowed)]) == httpx.URL(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://hooks.example.org.evil.example/",
        "https://evil.example/?hooks.example.org",
        "https://evil.example#hooks.example.org",
        "https://hooks.example.org:8443/",
        "https://hooks.example.org:99999/",
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "http://localhost/",
        "https://sub.hooks.example.org/",
    ],
)
def test_address_elsewhere_is_refused(address: str) -> None:
    with pytest.raises(Forbidden):
        check_address(address, [parse_place("hooks.example.org")])


@pytest.mark.parametrize(
    "address",
    [
        "", "hooks.example.org", "/hook", "ftp://hooks.example.org/", "file:///etc/passwd",
        "https://user:pass@hooks.example.org/", "https://hooks.example.org@evil.example/",
        "https://", "https://\0/", "javascript:alert(1)", "http://xn--/",
    ],
)  # fmt: skip
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(InvalidMessage):
        check_address(address, [parse_place("hooks.example.org")])


@given(st.text() | st.text().map("https://{}".format) | st.text().map("http://a@{}/".format))
def test_no_text_is_an_allowed_address_by_accident(text: str) -> None:
    with pytest.raises(ClientError):
        check_address(text, [parse_place("hooks.example.org")])


@pytest.mark.parametrize(
    "place",
    ["", "https://a.example", "a.example/x", "u@a.example", "a:b", "a?b", "a b", "a:0", "a:99999"],
)
def test_malformed_place_is_a_configuration_error(place: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST or HOST:PORT"):
        parse_place(place)


def test_events_are_sent_as_json(receiver: Receiver) -> None:
    deliver(f"{receiver.url}/hook", {"text": "Schöne Grüße"})

    assert json.dumps(receiver.events) == json.dumps([{"text": "Schöne Grüße"}])
