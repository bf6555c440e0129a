"""Talk with an agent of LiveKit and tell what it answers: livekit_caller.py AGENT.

The agent's file is imported, and its conversation gets this program's microphone and speaker in
place of a room's.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys

from livekit import rtc
from livekit.agents import utils
from livekit.agents.voice import io
from microphone import RATE_HZ, microphone, tell


class Microphone(io.AudioInput):
    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._frames = microphone()
        self.is_off = asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        try:
            frame = await anext(self._frames)
        except StopAsyncIteration:
            self.is_off.set()
            raise
        return rtc.AudioFrame(frame, RATE_HZ, 1, len(frame) // 2)


class Speaker(io.AudioOutput):
    """Plays everything at once."""

    def __init__(self) -> None:
        capabilities = io.AudioOutputCapabilities(pause=False)
        super().__init__(label="speaker", capabilities=capabilities)
        self._played_s = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self._played_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._played_s:
            tell("voice", duration_s=self._played_s)
            self.on_playback_finished(playback_position=self._played_s, interrupted=False)
        self._played_s = 0.0

    def clear_buffer(self) -> None:
        self.flush()


async def main(path: str) -> None:
    specification = importlib.util.spec_from_file_location("agent", path)
    agent = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(agent)
    async with utils.http_context.open():
        session = agent.conversation()
        heard = Microphone()
        session.input.audio, session.output.audio = heard, Speaker()
        await session.start(agent.Assistant())
        await heard.is_off.wait()
        await session.aclose()


asyncio.run(main(*sys.argv[1:]))
