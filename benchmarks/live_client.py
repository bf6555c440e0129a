"""A client that speaks a recording in real time and notes when text comes.

The capture time of a sample is when a microphone would have delivered it: a client that is late
itself makes its measurements worse, never better.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from conditions import RATE_HZ
from live_audio import Recording
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from moss_stream.audio.pcm import encode_s16le

FRAME_SAMPLES = 640
"""Samples in a message: 40 ms."""
_FINISH_S = 60.0
"""How long a client waits for the rest of its text, seconds."""


@dataclass
class Measurements:
    """What clients saw; seconds."""

    partial_ages_s: list[float] = field(default_factory=list)
    """Age of the newest audio behind the text shown, at every frame sent while somebody speaks."""
    final_delays_s: list[float] = field(default_factory=list)
    """From `speech_stopped` to `completed`."""
    speech_delays_s: list[float] = field(default_factory=list)
    """From the end of speech to `completed`."""
    first_words_s: list[float] = field(default_factory=list)
    """From the start of speech to the first text of its utterance."""
    num_refreshes: int = 0
    """Snapshots that came."""
    failures: list[str] = field(default_factory=list)

    def add(self, other: Measurements) -> None:
        """Take in what another client saw."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Client:
    """One stream.

    Args:
        recording: What it says.
    """

    def __init__(self, recording: Recording) -> None:
        self.seen = Measurements()
        self._recording = recording
        self._start_s = 0.0
        self._sent = 0
        self._has_finished = False
        self._covered_s: float | None = None
        """Position up to which the text on screen goes; None while nobody speaks."""
        self._onsets_s: dict[str, float] = {}
        """Items without any text so far, with the position of their first speech."""
        self._stopped: dict[str, tuple[float, float]] = {}
        """Ended items without final text: when that was told, and the position of their end."""

    async def run(self, url: str, wait_s: float) -> Measurements:
        """Wait, speak, and read to the end."""
        await asyncio.sleep(wait_s)
        try:
            async with connect(url, max_size=None, compression=None) as socket:
                await self._configure(socket)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._speak(socket))
                    tasks.create_task(self._listen(socket))
        except* (WebSocketException, OSError, TimeoutError) as errors:
            self.seen.failures += [f"{type(e).__name__}: {e}" for e in errors.exceptions]
        self.seen.failures += [f"no final for {item}" for item in self._stopped]
        return self.seen

    async def _configure(self, socket: ClientConnection) -> None:
        session = {
            "audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE_HZ}}},
            "moss": {"snapshots": True},
        }
        await socket.send(json.dumps({"type": "session.update", "session": session}))
        while json.loads(await socket.recv())["type"] != "session.updated":
            pass

    async def _speak(self, socket: ClientConnection) -> None:
        samples = self._recording.samples
        loop = asyncio.get_running_loop()
        self._start_s = loop.time()
        for start in range(0, len(samples), FRAME_SAMPLES):
            frame = samples[start : start + FRAME_SAMPLES]
            due_s = self._start_s + (start + len(frame)) / RATE_HZ
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            await socket.send(encode_s16le(frame))
            self._sent = start + len(frame)
            if self._covered_s is not None:
                self.seen.partial_ages_s.append(self._age_s(self._covered_s))
        self._has_finished = True
        self._covered_s = None
        await socket.send(json.dumps({"type": "moss.finish"}))

    async def _listen(self, socket: ClientConnection) -> None:
        async with asyncio.timeout(len(self._recording.samples) / RATE_HZ + _FINISH_S):
            async for message in socket:
                self._take(json.loads(message))

    def _take(self, event: dict[str, Any]) -> None:
        item = event.get("item_id", "")
        kind = event["type"].removeprefix("conversation.item.input_audio_transcription.")
        match kind:
            case "input_audio_buffer.speech_started":
                self._onsets_s[item] = self._recording.onset_s(event["audio_start_ms"] / 1000)
            case "moss.hypothesis":
                self.seen.num_refreshes += 1
                if event["committed_text"] or event["partial_text"]:
                    self._note_first_word(item)
                    if item not in self._stopped and not self._has_finished:
                        self._covered_s = self._sent / RATE_HZ - event["lag_ms"] / 1000
            case "input_audio_buffer.speech_stopped":
                self._covered_s = None
                # What ends with the stream has had no silence in which to be decoded.
                if not self._has_finished:
                    now_s = asyncio.get_running_loop().time()
                    self._stopped[item] = now_s, event["audio_end_ms"] / 1000
            case "completed":
                self._note_first_word(item)
                self._note_final(item)
            case "failed" | "error" | "moss.gap":
                self.seen.failures.append(f"{kind}: {event.get('error')}")
                self._stopped.pop(item, None)

    def _note_first_word(self, item: str) -> None:
        if item in self._onsets_s:
            self.seen.first_words_s.append(self._age_s(self._onsets_s.pop(item)))

    def _note_final(self, item: str) -> None:
        if item in self._stopped:
            stopped_s, end_s = self._stopped.pop(item)
            self.seen.final_delays_s.append(asyncio.get_running_loop().time() - stopped_s)
            self.seen.speech_delays_s.append(self._age_s(self._recording.speech_end_s(end_s)))

    def _age_s(self, position_s: float) -> float:
        """How long ago a position of the recording was captured."""
        return asyncio.get_running_loop().time() - self._start_s - position_s


async def speak(url: str, recordings: list[Recording]) -> Measurements:
    """Run a client for each recording, their starts apart; returns what all saw together."""
    # Starts in step would make all refreshes due at the same moment.
    waits_s = [index * 0.37 % 1.0 for index in range(len(recordings))]
    clients = [Client(recording) for recording in recordings]
    seen = await asyncio.gather(
        *(client.run(url, wait_s) for client, wait_s in zip(clients, waits_s, strict=True))
    )
    total = Measurements()
    for one in seen:
        total.add(one)
    return total
