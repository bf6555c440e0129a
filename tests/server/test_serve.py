"""The command from its start to its end: the address it takes, what it says, how it stops."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from moss_stream.errors import ConfigError
from moss_stream.server.config import ServerConfig
from moss_stream.server.serve import take_address

LIMIT_S = 60
COMMAND = "import sys; from moss_stream.cli import main; sys.exit(main())"


def start(directory: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", "--dtype", "float32", *options],
        env=os.environ | {"XDG_STATE_HOME": str(directory)},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def test_free_port_is_said_and_served_until_the_signal(tmp_path: Path) -> None:
    process = start(tmp_path, "--port", "0")
    try:
        line = next(line for line in process.stderr if "mini on" in line)
        address = re.search(r"http://127\.0\.0\.1:[1-9][0-9]*", line)[0]
        # Who connects waits until somebody is let in.
        assert httpx.get(f"{address}/readyz", timeout=LIMIT_S).status_code == 200
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert rest.splitlines()[-1] == "moss-stream: stopped"


def test_taken_port_is_told_before_the_model_is_loaded(tmp_path: Path, taken: int) -> None:
    # A model that does not exist would be told first, were it looked for.
    process = start(tmp_path, "--port", str(taken), "--model", "/nonexistent")
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert said.strip().endswith(f"port {taken}: Address already in use")
    assert len(said.strip().splitlines()) == 1


def test_all_addresses_of_a_host_share_one_port() -> None:
    sockets = take_address(ServerConfig(host="localhost", port=0))
    try:
        assert len({listening.getsockname()[1] for listening in sockets}) == 1
    finally:
        for listening in sockets:
            listening.close()


def test_port_that_cannot_be_had_names_the_field(taken: int) -> None:
    with pytest.raises(ConfigError) as refused:
        take_address(ServerConfig(port=taken))
    assert refused.value.field == "port"


def test_address_is_nobody_elses_from_then_on() -> None:
    [first] = take_address(ServerConfig(port=0))
    port = first.getsockname()[1]
    with first, pytest.raises(ConfigError, match=f"port {port}: Address already in use"):
        take_address(ServerConfig(port=port))


def test_empty_host_is_every_address() -> None:
    sockets = take_address(ServerConfig(host="", port=0, allow_open=True))
    try:
        assert {listening.getsockname()[0] for listening in sockets} & {"0.0.0.0", "::"}
    finally:
        for listening in sockets:
            listening.close()


@pytest.mark.parametrize("host", ["x" * 70, "a..b", "nowhere.invalid", "203.0.113.1"])
def test_host_that_cannot_be_had_names_the_field(host: str) -> None:
    with pytest.raises(ConfigError) as refused:
        take_address(ServerConfig(host=host, allow_open=True))
    assert refused.value.field == "host"


def test_addresses_of_a_family_the_machine_lacks_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (family, socket.SOCK_STREAM, 6, "", address)
        for family, address in [
            (socket.AF_INET6, ("::1", 0, 0, 0)),
            (socket.AF_INET, ("127.0.0.1", 0)),
        ]
    ]
    create = socket.create_server

    def without_ipv6(address: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return create(address, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    [only] = take_address(ServerConfig(host="localhost", port=0))
    with only:
        assert only.getsockname()[0] == "127.0.0.1"
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found[:1])
    with pytest.raises(ConfigError, match="not supported") as refused:
        take_address(ServerConfig(host="::1", port=0))
    assert refused.value.field == "host"
