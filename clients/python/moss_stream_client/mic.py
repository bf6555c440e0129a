"""`moss-stream-mic`: live captions in a terminal, from the microphone or a WAV file."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import aclosing, suppress
from typing import TextIO

from moss_stream_client.audio import WaveFile
from moss_stream_client.captions import FinalLines, LiveScreen
from moss_stream_client.errors import ClientError
from moss_stream_client.microphone import microphone
from moss_stream_client.stream import Stream, connect

_MICROPHONE_HZ = 16000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 for an error, 130 when interrupted twice."""
    args = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    status = 0
    try:
        asyncio.run(_run(args, sys.stdout))
    except* ClientError as errors:
        print(f"moss-stream-mic: {errors.exceptions[0]}", file=sys.stderr)
        status = 1
    except* KeyboardInterrupt:
        status = 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moss-stream-mic",
        description="Live captions in the terminal. Ctrl-C stops listening and prints the rest.",
    )
    parser.add_argument("--url", default="ws://127.0.0.1:8000", help="server (default %(default)s)")
    parser.add_argument(
        "--api-key",
        default=os.environ.get("MOSS_STREAM_API_KEY"),
        help="the server's key; better in the environment as MOSS_STREAM_API_KEY",
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--device", help="number or part of the name of the microphone")
    source.add_argument("--file", help="a PCM WAV file, sent at the speed of speech")
    return parser


async def _run(args: argparse.Namespace, out: TextIO) -> None:
    rate_hz = WaveFile.inspect(args.file).rate_hz if args.file else _MICROPHONE_HZ
    async with (
        connect(args.url, api_key=args.api_key, rate_hz=rate_hz, snapshots=out.isatty()) as stream,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(_speak(stream, args))
        await _show(stream, out)


async def _speak(stream: Stream, args: argparse.Namespace) -> None:
    """Send until the source ends or Ctrl-C, then finish; a second Ctrl-C interrupts as usual."""
    loop = asyncio.get_running_loop()
    source = asyncio.create_task(_send_source(stream, args))

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        source.cancel()

    with suppress(NotImplementedError):  # no signal handlers on Windows: Ctrl-C ends at once
        loop.add_signal_handler(signal.SIGINT, stop)
    try:
        await asyncio.wait([source])
    finally:
        source.cancel()
    if not source.cancelled():
        source.result()
    await stream.finish()


async def _send_source(stream: Stream, args: argparse.Namespace) -> None:
    if args.file:
        await stream.send_file(args.file)
        return
    device = int(args.device) if args.device and args.device.isdecimal() else args.device
    async with aclosing(microphone(_MICROPHONE_HZ, device)) as blocks:
        async for block in blocks:
            await stream.send(block)


async def _show(stream: Stream, out: TextIO) -> None:
    if not out.isatty():
        finals = FinalLines(stream.rate_hz)
        async for event in stream:
            for line in finals.feed(event):
                print(line, file=out, flush=True)
        return
    screen = LiveScreen(stream.rate_hz, shutil.get_terminal_size)
    try:
        async for event in stream:
            out.write(screen.feed(event))
            out.flush()
    finally:
        out.write(screen.erase())
        out.flush()


if __name__ == "__main__":
    sys.exit(main())
