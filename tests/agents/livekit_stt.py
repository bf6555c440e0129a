"""Speak to a plugin of LiveKit Agents and tell what it makes of it: livekit_stt.py DOOR URL."""

from __future__ import annotations

import asyncio
import sys

from livekit import rtc
from livekit.agents import stt, utils
from livekit.plugins import deepgram, openai
from microphone import RATE_HZ, microphone, tell

KINDS = {
    stt.SpeechEventType.START_OF_SPEECH: "speech",
    stt.SpeechEventType.INTERIM_TRANSCRIPT: "interim",
    stt.SpeechEventType.FINAL_TRANSCRIPT: "final",
    stt.SpeechEventType.END_OF_SPEECH: "pause",
    stt.SpeechEventType.RECOGNITION_USAGE: "usage",
}


def plugin(door: str, url: str) -> stt.STT:
    match door:
        case "openai":
            return openai.STT(base_url=f"{url}/v1", api_key="none", use_realtime=True)
        case "openai-commit":  # a model that leaves it to LiveKit's VAD to end turns
            return openai.STT(base_url=f"{url}/v1", api_key="none", model="gpt-realtime-whisper")
        case "deepgram":
            return deepgram.STT(base_url=f"{url}/v1/listen", api_key="none")
    raise ValueError(door)


async def feed(stream: stt.RecognizeStream) -> None:
    async for frame in microphone():
        stream.push_frame(rtc.AudioFrame(frame, RATE_HZ, 1, len(frame) // 2))


async def listen(stream: stt.RecognizeStream) -> None:
    async for event in stream:
        text = event.alternatives[0].text if event.alternatives else ""
        tell(KINDS[event.type], text=text)


async def main(door: str, url: str) -> None:
    async with utils.http_context.open():
        heard = plugin(door, url)
        heard.on("error", lambda error: tell("error", text=repr(error.error)))
        stream = heard.stream()
        listening = asyncio.create_task(listen(stream))
        await feed(stream)
        await stream.aclose()
        listening.cancel()
        await heard.aclose()


asyncio.run(main(*sys.argv[1:]))
