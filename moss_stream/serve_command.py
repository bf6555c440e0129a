"""The command `moss-stream serve`: options to a configuration, parts to a backend, and go."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from moss_stream.cli_options import (
    DeviceOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    number,
    one_of,
)
from moss_stream.server.config import PRESETS, ServerConfig

HostOption = Annotated[
    str, typer.Option("--host", envvar="MOSS_STREAM_HOST", help="Address to listen on.")
]
PortOption = Annotated[
    int,
    typer.Option(
        "--port", envvar="MOSS_STREAM_PORT", parser=number(int, 0, 65535), metavar="N",
        help="Port to listen on; 0 for a free one.",
    ),
]  # fmt: skip
PresetOption = Annotated[
    str,
    typer.Option(
        "--preset", parser=one_of(tuple(PRESETS)), metavar="NAME", help=f"{', '.join(PRESETS)}."
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file", envvar="MOSS_STREAM_API_KEY_FILE", metavar="PATH",
        help="API keys that are let in, one a line.",
    ),
]  # fmt: skip
OpenOption = Annotated[
    bool, typer.Option("--allow-open", help="Listen beyond this machine without an API key.")
]
OriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-origin", metavar="ORIGIN",
        help="A page that may connect, such as https://example.org; several times for several.",
    ),
]  # fmt: skip
WebhookOption = Annotated[
    list[str] | None,
    typer.Option(
        "--webhook-allow", metavar="HOST[:PORT]",
        help="A host that events of phone calls may go to; several times for several.",
    ),
]  # fmt: skip
SessionsOption = Annotated[
    int,
    typer.Option(
        "--max-sessions", parser=number(int, 1, 100_000), metavar="N", help="Most live sessions."
    ),
]
GraceOption = Annotated[
    float,
    typer.Option(
        "--grace", parser=number(float, 0, 3600), metavar="SECONDS",
        help="How long a session waits for a client that lost its connection.",
    ),
]  # fmt: skip
IdleOption = Annotated[
    float,
    typer.Option(
        "--idle-timeout", parser=number(float, 1, 86_400), metavar="SECONDS",
        help="Longest a client may send nothing.",
    ),
]  # fmt: skip
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", envvar="MOSS_STREAM_DATABASE", metavar="URL",
        help="Where rooms are kept, as SQLAlchemy writes it; a file in the state directory.",
    ),
]  # fmt: skip
RetentionOption = Annotated[
    float,
    typer.Option(
        "--room-retention", parser=number(float, 0, 36_500), metavar="DAYS",
        help="How long a room is kept after its last change; 0 for ever.",
    ),
]  # fmt: skip
CertOption = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="PATH", help="Certificate chain, PEM.")
]
KeyOption = Annotated[
    Path | None, typer.Option("--tls-key", metavar="PATH", help="Its private key, PEM.")
]

_DEFAULTS = ServerConfig()


def serve(
    host: HostOption = _DEFAULTS.host,
    port: PortOption = _DEFAULTS.port,
    model: ModelOption = "mini",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    threads: ThreadsOption = None,
    preset: PresetOption = _DEFAULTS.preset,
    api_key_file: KeyFileOption = None,
    allow_open: OpenOption = False,
    allow_origin: OriginOption = None,
    webhook_allow: WebhookOption = None,
    max_sessions: SessionsOption = _DEFAULTS.max_sessions,
    grace_s: GraceOption = _DEFAULTS.grace_s,
    idle_timeout_s: IdleOption = _DEFAULTS.idle_timeout_s,
    database: DatabaseOption = None,
    room_retention_days: RetentionOption = _DEFAULTS.room_retention_days,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
) -> None:
    """Serve live captions and transcriptions of files over HTTP and WebSockets."""
    from moss_stream.server.app import Backend  # imports torch
    from moss_stream.server.auth import load_keys
    from moss_stream.server.hub import model_threads
    from moss_stream.server.serve import run, take_address
    from moss_stream.transcriber import Transcriber

    config = ServerConfig(
        host=host,
        port=port,
        tls_cert=tls_cert,
        tls_key=tls_key,
        preset=preset,
        api_keys=() if api_key_file is None else load_keys(api_key_file),
        allow_open=allow_open,
        allowed_origins=tuple(allow_origin or ()),
        webhook_allow=tuple(webhook_allow or ()),
        max_sessions=max_sessions,
        grace_s=grace_s,
        idle_timeout_s=idle_timeout_s,
        database=default_database() if database is None else database,
        room_retention_days=room_retention_days,
    )
    sockets = take_address(config)  # before the model is loaded
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with Transcriber(model, device, dtype, threads=threads or model_threads()) as transcriber:
        backend = Backend(
            name=model,
            model=transcriber.model,
            engine=transcriber.engine,
            vad=transcriber.vad,
            recordings=transcriber,
        )
        scheme = "http" if tls_cert is None else "https"
        taken = sockets[0].getsockname()[1]
        typer.echo(f"moss-stream: {model} on {scheme}://{host}:{taken}", err=True)
        run(config, backend, sockets)
    typer.echo("moss-stream: stopped", err=True)


def default_database() -> str:
    """Address of a SQLite file in the user's state directory, so that rooms survive a restart."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return f"sqlite:///{Path(state) / 'moss-stream' / 'rooms.sqlite3'}"
