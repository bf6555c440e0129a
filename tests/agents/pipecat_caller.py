"""Call an agent of Pipecat on its socket and tell what it answers: pipecat_caller.py URL."""

from __future__ import annotations

import asyncio
import sys

from microphone import RATE_HZ, microphone, tell
from pipecat.frames.frames import InputAudioRawFrame, OutputAudioRawFrame
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from websockets.asyncio.client import ClientConnection, connect

SERIALIZER = ProtobufFrameSerializer()


async def listen(socket: ClientConnection) -> None:
    async for message in socket:
        frame = await SERIALIZER.deserialize(message)
        if isinstance(frame, InputAudioRawFrame):
            tell("voice", num_bytes=len(frame.audio))


async def main(url: str) -> None:
    async with connect(url) as socket:
        tell("connected")
        listening = asyncio.create_task(listen(socket))
        async for pcm in microphone():
            frame = OutputAudioRawFrame(pcm, RATE_HZ, 1)
            await socket.send(await SERIALIZER.serialize(frame))
        listening.cancel()


asyncio.run(main(*sys.argv[1:]))
