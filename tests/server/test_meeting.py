"""A meeting from beginning to end, on server processes that are restarted under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.captions import Board
from support.clips import load_clip
from support.realtime import Client
from support.rooms import Meeting, Reader

TAIL = np.zeros(16_000, np.float32)
DUO = load_clip("mix_duo_002")
FIRST = np.concatenate((DUO[: 16_000 * 2], TAIL))
WHOLE = np.concatenate((DUO, TAIL))
MONO = np.concatenate((load_clip("mix_mono_001")[: 16_000 * 6], TAIL))
SEGMENT = "conversation.item.input_audio_transcription.segment"
COMPLETED = "conversation.item.input_audio_transcription.completed"
START_S = 60
_COMMAND = "import sys; from moss_stream.cli import main; sys.exit(main())"


class Server:
    """A server process that can be started again on the same port and database."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.http = f"http://127.0.0.1:{self.port}"
        self._log = (directory / "server.log").open("a")
        self._environment = os.environ | {"XDG_STATE_HOME": str(directory)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it takes work."""
        options = ("--port", str(self.port), "--dtype", "float32", "--preset", "agent")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "serve", *options],
            env=self._environment, stdout=self._log, stderr=self._log,
        )  # fmt: skip
        ends_s = time.monotonic() + START_S
        while True:
            assert self._process.poll() is None, "the server did not start"
            assert time.monotonic() < ends_s
            try:
                if httpx.get(f"{self.http}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def stop(self, how: signal.Signals) -> None:
        """Stop it and wait until it is gone."""
        self._process.send_signal(how)
        self._process.wait(START_S)

    def close(self) -> None:
        """Leave nothing behind."""
        self._process.kill()
        self._process.wait()
        self._log.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.close()


async def until_received(client: Client, samples: np.ndarray) -> None:
    """Send audio, and wait until the server has all of it."""
    await client.append(samples)
    before = client.of("moss.ack")[-1]["received_samples"] if client.of("moss.ack") else 0
    wanted = before + len(samples) * 3 // 2
    while (await client.until("moss.ack"))["received_samples"] < wanted:
        pass


async def finish(client: Client, samples: np.ndarray) -> None:
    await client.append(samples)
    await client.send("moss.finish")
    assert await client.rest() == 1000


def told(*clients: Client) -> list[str]:
    """What publishers were told was said."""
    return [event["text"] for client in clients for event in client.of(SEGMENT)]


async def first_half(meeting: Meeting) -> list[Client]:
    """Ana speaks, loses her connection and speaks on; the desk speaks and ends."""
    ana = await meeting.microphone("Ana")
    token = (await ana.next())["session"]["moss"]["resume_token"]
    await ana.update(moss={"acks": True})
    await ana.append(FIRST)
    await ana.until(COMPLETED)
    await until_received(ana, MONO[:40_000])
    ana.socket.transport.abort()
    desk = await meeting.microphone("Desk", shared="1")
    await finish(desk, WHOLE)
    again = await meeting.microphone("Ana", resume=token, last_seq=str(ana.seqs()[-1]))
    resumed = await again.next()
    await again.append(MONO[resumed["received_samples"] * 2 // 3 - len(FIRST) :])
    await again.until(COMPLETED)
    return [ana, again, desk]


async def come_back(meeting: Meeting, boards: list[Board]) -> list[Reader]:
    """Everybody reads on from the last revision on the board."""
    readers = [await meeting.viewer(since=board.revision) for board in boards[:5]]
    readers += [await meeting.listener(board.revision) for board in boards[5:]]
    for reader, board in zip(readers, boards, strict=True):
        for message in reader.board.messages:
            board.take(message)
        reader.board = board
    return readers


async def meet(server: Server) -> None:
    async with Meeting(server.http, title="Weekly") as meeting:
        readers = [await meeting.viewer() for _ in range(5)]
        readers += [await meeting.listener() for _ in range(4)]
        ana, again, desk = await first_half(meeting)
        meeting.rename("S02", "Bea")
        readers.append(await meeting.listener())  # the late one
        await until_received(again, FIRST[:16_000])

        await asyncio.to_thread(server.stop, signal.SIGTERM)
        assert await again.rest() == 1012
        assert [await reader.rest() for reader in readers] == [1012] * 10
        boards = [reader.board for reader in readers]
        assert len({board.revision for board in boards}) == 1
        assert all(board.partials == {} for board in boards)
        await asyncio.to_thread(server.start)

        readers = await come_back(meeting, boards)
        ana_later = await meeting.microphone("Ana")
        await finish(ana_later, FIRST[16_000:])
        desk_later = await meeting.microphone("Desk", shared="1")
        await finish(desk_later, WHOLE)
        revision = meeting.request("GET").json()["revision"]
        for reader in readers:
            await reader.reach(revision)
        exported = json.loads(meeting.export("json"))
        check(exported, readers, told(ana, again, ana_later), told(desk, desk_later))

        await asyncio.to_thread(server.stop, signal.SIGKILL)
        await asyncio.to_thread(server.start)
        assert json.loads(meeting.export("json")) == exported
        late = await meeting.viewer()
        await late.next()
        assert late.board.entries == boards[0].entries
        back = await meeting.viewer(since=revision)
        assert (await back.next())["type"] == "room.resumed"


def check(exported: dict, readers: list[Reader], ana: list[str], desk: list[str]) -> None:
    """Everybody has the same transcript, and it has all that publishers were told."""
    lines = exported["segments"]
    for participant, texts in (("Ana", ana), ("Desk", desk)):
        kept = [line["text"] for line in lines if line["participant"] == participant]
        # Audio comes faster than it was spoken, so what is said after a restart may sort earlier.
        assert sorted(kept) == sorted(texts)
    assert all(line["complete"] for line in lines)
    assert {line["name"] for line in lines} >= {"Ana", "S01", "Bea"}
    assert not any(line["name"] == "S02" for line in lines)
    assert lines[0]["text"] == "Thank God for that."
    shown = [(line["name"], line["text"]) for line in lines]
    for reader in readers:
        assert sorted(reader.board.lines()) == sorted(shown)
        assert reader.board.entries == readers[0].board.entries
        assert reader.board.partials == {}


@pytest.mark.timeout(300)
def test_meeting_survives_lost_connections_and_restarts(server: Server) -> None:
    asyncio.run(meet(server))
