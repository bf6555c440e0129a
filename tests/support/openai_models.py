"""Stands in for OpenAI's language model and voice where a test runs an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.http import serving

from moss_stream.audio.pcm import encode_s16le

ANSWER = "That is good to hear."


class Models:
    """What they were asked."""

    def __init__(self) -> None:
        self.url = ""
        """Base address, `/v1` included."""
        self.heard: list[str] = []
        """The user's last words in each request for an answer."""
        self.spoken: list[str] = []
        """Texts to speak."""

    async def answer(self, request: Request) -> Response:
        asked = await request.json()
        self.heard.append(_last_words(asked["messages"]))
        chunks = [_chunk(asked["model"], {"role": "assistant", "content": ANSWER}, None)]
        chunks.append(_chunk(asked["model"], {}, "stop"))
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        return Response(f"{body}data: [DONE]\n\n", media_type="text/event-stream")

    async def speak(self, request: Request) -> Response:
        asked = await request.json()
        assert asked["response_format"] == "pcm", asked
        self.spoken.append(asked["input"])
        tone = 0.1 * np.sin(np.arange(12_000, dtype=np.float32) / 10)  # half a second
        pcm = encode_s16le(tone)
        return StreamingResponse(iter([pcm]), media_type="audio/pcm")


def _last_words(messages: list[dict[str, Any]]) -> str:
    """What the user said last; nothing when an agent asks for another reason."""
    contents = [message["content"] for message in messages if message["role"] == "user"]
    if not contents or isinstance(contents[-1], str):
        return "".join(contents[-1:])
    return " ".join(part["text"] for part in contents[-1])


def _chunk(model: str, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": [choice],
    }


@contextmanager
def models() -> Iterator[Models]:
    made = Models()
    routes = [
        Route("/v1/chat/completions", made.answer, methods=["POST"]),
        Route("/v1/audio/speech", made.speak, methods=["POST"]),
    ]
    with serving(Starlette(routes=routes)) as address:
        made.url = f"{address}/v1"
        yield made
