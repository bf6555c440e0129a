from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from support.http import serving

from moss_stream.errors import ConfigError, Forbidden, InvalidMessage, Unauthorized
from moss_stream.server import client_secrets, health, models
from moss_stream.server.auth import (
    MAX_SESSION_BYTES,
    Authenticator,
    RequireKey,
    check_bind,
    load_keys,
)
from moss_stream.server.problems import EXCEPTION_HANDLERS

KEY = "sk-local-0123456789"


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def connection(
    headers: dict[str, str] | None = None, query: str = "", subprotocols: tuple[str, ...] = ()
) -> HTTPConnection:
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    return HTTPConnection(
        {
            "type": "websocket",
            "path": "/",
            "headers": raw,
            "query_string": query.encode(),
            "subprotocols": list(subprotocols),
        }
    )


def bearer(key: str) -> HTTPConnection:
    return connection({"authorization": f"Bearer {key}"})


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    authenticator = Authenticator([KEY], ["https://app.example"])
    routes = [
        *models.routes("mini", 1),
        *client_secrets.routes(authenticator),
        *health.routes(lambda: None),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequireKey, authenticator)],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    with serving(app) as url:
        yield url


@pytest.mark.parametrize(
    "given_",
    [
        bearer(KEY),
        connection({"authorization": f"bearer  {KEY} "}),
        connection(query=f"token={KEY}"),
        connection(subprotocols=("realtime", f"openai-insecure-api-key.{KEY}")),
    ],
    ids=["header", "sloppy header", "query", "subprotocol"],
)
def test_key_is_found_wherever_clients_put_it(given_: HTTPConnection) -> None:
    assert not Authenticator(["other-key", KEY]).authenticate(given_).is_ephemeral


@pytest.mark.parametrize(
    "given_",
    [
        connection(),
        bearer("wrong-key"),
        bearer(""),
        bearer(KEY[:-1]),
        bearer("ek_"),
        bearer("ek_AAAA"),
        bearer("ek_ééé"),
        connection({"authorization": f"Basic {KEY}"}),
        connection(subprotocols=(KEY,)),
    ],
)
def test_without_a_known_key_nobody_is_let_in(given_: HTTPConnection) -> None:
    with pytest.raises(Unauthorized):
        Authenticator([KEY]).authenticate(given_)


def test_without_keys_everybody_is_let_in() -> None:
    assert Authenticator().authenticate(connection()).session is None


def test_secret_opens_what_it_was_made_for_until_it_expires() -> None:
    clock = Clock()
    authenticator = Authenticator([KEY], clock=clock)
    session = {"type": "transcription", "audio": {"input": {"format": {"type": "audio/pcmu"}}}}
    value, expires_at = authenticator.issue_secret(session, 10)

    grant = authenticator.authenticate(
        connection(subprotocols=(f"openai-insecure-api-key.{value}",))
    )

    assert (grant.is_ephemeral, grant.session) == (True, session)
    assert expires_at == clock.now_s + 10
    clock.now_s += 10
    with pytest.raises(Unauthorized, match="expired"):
        authenticator.authenticate(bearer(value))


def test_secret_is_good_wherever_it_was_signed_alike() -> None:
    one, other, stranger = (Authenticator([KEY], secret=s * 32) for s in (b"a", b"a", b"b"))
    value, _ = one.issue_secret({}, 600)

    assert other.authenticate(bearer(value)).is_ephemeral
    with pytest.raises(Unauthorized):
        stranger.authenticate(bearer(value))


@given(place=st.integers(0, 10_000), shift=st.integers(1, 63))
def test_secret_that_was_changed_is_refused(place: int, shift: int) -> None:
    authenticator = Authenticator([KEY])
    value, _ = authenticator.issue_secret({"type": "transcription"}, 600)
    at = 3 + place % (len(value) - 4)  # the last letter has bits without a meaning
    letters = string.ascii_letters + string.digits + "-_"
    other = letters[(letters.find(value[at]) + shift) % len(letters)]

    with pytest.raises(Unauthorized):
        authenticator.authenticate(bearer(value[:at] + other + value[at + 1 :]))


@pytest.mark.parametrize("lifetime", [9, 7201, -1, 60.5, "60", True, None])
def test_secret_lives_within_bounds(lifetime: Any) -> None:
    with pytest.raises(InvalidMessage, match="seconds is"):
        Authenticator([KEY]).issue_secret({}, lifetime)


def test_secret_holds_no_more_than_a_header_takes() -> None:
    with pytest.raises(InvalidMessage, match=f"at most {MAX_SESSION_BYTES}"):
        Authenticator([KEY]).issue_secret({"prompt": "x" * MAX_SESSION_BYTES}, 60)


@pytest.mark.parametrize(
    ("origin", "host", "keys", "allowed"),
    [
        (None, "captions.example", [], True),
        ("http://localhost:8000", "localhost:8000", [], True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", [], True),
        ("http://[::1]:8000", "[::1]:8000", [], True),
        ("https://app.example", "127.0.0.1:8000", [], True),
        ("https://evil.example", "127.0.0.1:8000", [], False),
        ("http://localhost:3000", "localhost:8000", [], False),
        ("http://rebound.example:8000", "rebound.example:8000", [], False),
        ("https://captions.example", "captions.example", [KEY], True),
        ("https://evil.example", "captions.example", [KEY], False),
        ("null", "127.0.0.1:8000", [], False),
        ("http://[", "[", [], False),
    ],
)
def test_origin_is_the_servers_own_or_allowed(
    origin: str | None, host: str, keys: list[str], allowed: bool
) -> None:
    authenticator = Authenticator(keys, ["https://app.example"])
    page = connection({"host": host} | ({"origin": origin} if origin else {}))

    if allowed:
        authenticator.check_origin(page)
    else:
        with pytest.raises(Forbidden):
            authenticator.check_origin(page)


def test_star_lets_in_every_origin() -> None:
    page = connection({"host": "a", "origin": "https://any.example"})

    Authenticator(origins=["*"]).check_origin(page)


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://a.example/x"])
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match="expected scheme"):
        Authenticator(origins=[origin])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    check_bind(host, (), False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "captions.example", ""])
def test_other_hosts_need_a_key_or_permission(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key"):
        check_bind(host, (), False)
    check_bind(host, [KEY], False)
    check_bind(host, (), True)


def test_keys_are_the_lines_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# office\n{KEY}\n\n  second-key-2 \n")

    assert load_keys(path) == (KEY, "second-key-2")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("# none\n", "holds no API key"),
        ("good-key-1\nshort\n", "line 2 of"),
        ("key with spaces\n", "line 1 of"),
        ("schlüssel-1\n", "line 1 of"),
        (None, "cannot be read"),
    ],
)
def test_bad_key_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=message) as caught:
        load_keys(path)
    assert "with spaces" not in str(caught.value)


def test_sdk_lists_models_with_a_key(base_url: str) -> None:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key=KEY, max_retries=0) as client:
        names = [model.id for model in client.models.list()]
        whisper = client.models.retrieve("whisper-1")
        with pytest.raises(openai.NotFoundError, match="served are mini"):
            client.models.retrieve("vendor/other")

    assert names[0] == "mini"
    assert (whisper.id, whisper.object) == ("whisper-1", "model")


def test_sdk_without_the_key_is_refused(base_url: str) -> None:
    with (
        openai.OpenAI(base_url=f"{base_url}/v1", api_key="wrong-key", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.models.list()

    assert caught.value.code == "invalid_api_key"
    assert caught.value.response.headers["WWW-Authenticate"] == "Bearer"


def test_sdk_makes_a_client_secret(base_url: str) -> None:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key=KEY, max_retries=0) as client:
        made = client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 60},
            session={"type": "transcription", "audio": {"input": {"turn_detection": None}}},
        )

    assert made.value.startswith("ek_")
    assert made.session.type == "transcription"
    assert made.session.id


def test_client_secret_makes_no_other(base_url: str) -> None:
    url = f"{base_url}/v1/realtime/client_secrets"
    made = httpx.post(url, headers={"Authorization": f"Bearer {KEY}"}).json()

    answer = httpx.post(url, headers={"Authorization": f"Bearer {made['value']}"})

    assert answer.status_code == 403
    assert made["session"]["type"] == "transcription"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"{", 400, "body"),
        (b"[]", 400, "body"),
        (b'{"session": 1}', 400, "session"),
        (b'{"session": {"type": "realtime"}}', 400, "session.type"),
        (b'{"expires_after": {"seconds": 5}}', 400, "expires_after.seconds"),
        (b" " * 70_000, 413, "body"),
    ],
)
def test_bad_client_secret_request_is_refused(
    base_url: str, body: bytes, status: int, param: str
) -> None:
    answer = httpx.post(
        f"{base_url}/v1/realtime/client_secrets",
        content=body,
        headers={"Authorization": f"Bearer {KEY}"},
    )

    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_page_of_another_site_is_refused_despite_its_key(base_url: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Origin": "https://evil.example"}

    answer = httpx.get(f"{base_url}/v1/models", headers=headers)

    assert answer.status_code == 403


def test_probes_need_no_key(base_url: str) -> None:
    assert httpx.get(f"{base_url}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{base_url}/readyz").status_code == 200
