"""Speak to a service of Pipecat and tell what it makes of it: pipecat_stt.py DOOR URL."""

from __future__ import annotations

import asyncio
import sys

from microphone import RATE_HZ, microphone, tell
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.workers.runner import WorkerRunner

KINDS = {
    ProposedUserStartedSpeakingFrame: "speech",
    InterimTranscriptionFrame: "interim",
    TranscriptionFrame: "final",
    ProposedUserStoppedSpeakingFrame: "pause",
    VADUserStartedSpeakingFrame: "speech",
    VADUserStoppedSpeakingFrame: "pause",
    ErrorFrame: "error",
}


def ears(door: str, url: str) -> list[FrameProcessor]:
    """The service, behind Pipecat's own detector of speech where that ends turns."""
    address = url.replace("http", "ws", 1) + "/v1/realtime"
    vad = VADProcessor(vad_analyzer=SileroVADAnalyzer())
    match door:
        case "openai":
            return [OpenAIRealtimeSTTService(api_key="none", base_url=address, turn_detection=None)]
        case "openai-commit":
            return [vad, OpenAIRealtimeSTTService(api_key="none", base_url=address)]
        case "deepgram":
            return [vad, DeepgramSTTService(api_key="none", base_url=url)]
    raise ValueError(door)


class Teller(FrameProcessor):
    """Tells of the frames that pass."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if type(frame) in KINDS:
            tell(KINDS[type(frame)], text=getattr(frame, "text", getattr(frame, "error", "")))
        await self.push_frame(frame, direction)


async def feed(worker: PipelineWorker) -> None:
    async for frame in microphone():
        await worker.queue_frame(InputAudioRawFrame(frame, RATE_HZ, 1))
    await worker.queue_frame(EndFrame())


async def main(door: str, url: str) -> None:
    pipeline = Pipeline([Teller(), *ears(door, url), Teller()])
    worker = PipelineWorker(pipeline, params=PipelineParams(audio_in_sample_rate=RATE_HZ))
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await asyncio.gather(runner.run(), feed(worker))


asyncio.run(main(*sys.argv[1:]))
