from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from support.realtime import Client, running
from websockets.asyncio.client import connect

from moss_stream.server.app import Backend

OPENSSL = shutil.which("openssl")


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    if OPENSSL is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [OPENSSL, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "1", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_server_speaks_tls(backend: Backend, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate

    async def play(url: str) -> list[str]:
        context = ssl.create_default_context(cafile=cert)
        client = Client(await connect(url.replace("ws://", "wss://"), ssl=context))
        await client.send("moss.finish")
        assert await client.rest() == 1000
        return client.kinds()

    with running(backend, tls_cert=cert, tls_key=key) as server:
        assert asyncio.run(play(server.url)) == ["session.created", "moss.finished"]
