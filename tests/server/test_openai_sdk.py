"""The unmodified OpenAI SDK against the server."""

from __future__ import annotations

import asyncio
import base64

import numpy as np
import pytest
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running

from moss_stream.audio.pcm import encode_s16le
from moss_stream.audio.resample import resample

openai = pytest.importorskip("openai")

SPEECH = load_clip("mix_duo_002")[: 16_000 * 2]
CLIP = np.concatenate((SPEECH, np.zeros(16_000, np.float32)))
WORDS = "Thank God for that."


async def transcribed(server: Running, turn_detection: dict | None) -> tuple[list, str]:
    """Send a clip as the SDK does; returns the types of its typed events, and the transcript."""
    client = openai.AsyncOpenAI(api_key="none", base_url=f"{server.http}/v1")
    data = encode_s16le(resample(CLIP, 16_000, 24_000))
    kinds = []
    async with (
        client,
        asyncio.timeout(PATIENCE_S),
        client.realtime.connect(extra_query={"intent": "transcription"}) as connection,
    ):
        await connection.session.update(
            session={
                "type": "transcription",
                "audio": {
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 24_000},
                        "transcription": {"model": "gpt-4o-transcribe", "language": "en"},
                        "turn_detection": turn_detection,
                    }
                },
            }
        )
        for start in range(0, len(data), 4_800):
            chunk = base64.b64encode(data[start : start + 4_800]).decode()
            await connection.input_audio_buffer.append(audio=chunk)
        if turn_detection is None:
            await connection.input_audio_buffer.commit()
        async for event in connection:
            kinds.append(type(event).__name__)
            assert event.type != "error", event
            if event.type == "conversation.item.input_audio_transcription.completed":
                return kinds, event.transcript
    raise AssertionError("the connection ended")


@pytest.mark.parametrize(
    "turn_detection",
    [
        {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 350},
        {"type": "semantic_vad", "eagerness": "high"},
        None,
    ],
    ids=["server_vad", "semantic_vad", "manual"],
)
def test_sdk_gets_a_transcript(server: Running, turn_detection: dict | None) -> None:
    kinds, transcript = asyncio.run(transcribed(server, turn_detection))

    assert transcript == WORDS
    assert kinds[:2] == ["SessionCreatedEvent", "SessionUpdatedEvent"]
    assert "InputAudioBufferCommittedEvent" in kinds
    assert ("InputAudioBufferSpeechStartedEvent" in kinds) is (turn_detection is not None)
