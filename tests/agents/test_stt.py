"""The unmodified speech-to-text plugins of voice agent frameworks against the server.

Each runs in a process and an environment of its own, with a microphone that the test speaks into.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clips import clip_references, load_clip
from support.environments import Program, program, python_with
from support.realtime import PATIENCE_S, Running, make_backend, running
from support.words import normal_words

from moss_stream.audio.pcm import encode_s16le
from moss_stream.model.checkpoint import Model
from moss_stream.server.app import Backend

HERE = Path(__file__).parent
REFERENCES = {
    Path(line["audio"]).stem: " ".join(segment["text"] for segment in line["segments"])
    for line in clip_references()
}
LONG, SHORT = "unseen_flite_rms_000", "asterisk_human_003"
PAUSE = 24_000
SHORT_S = 2.5
"""More than any decode of the short one has, and less than the last one of the long one has."""
TRIES = 4
"""A machine that is busy may have the last text before any other."""
DOORS = ("openai", "openai-commit", "deepgram")
"""Ways in; by `openai-commit` a detector of the framework's own ends turns."""

# Building an environment takes a minute or two.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def backend(mini: Model) -> Iterator[Backend]:
    with make_backend(mini) as made:
        yield made


@pytest.fixture
def server(backend: Backend) -> Iterator[Running]:
    with running(backend, grace_s=0) as served:
        yield served
        assert served.sessions_end()
    backend.engine.check_idle()


@pytest.fixture(scope="module", params=["livekit", "pipecat"])
def framework(request: pytest.FixtureRequest) -> str:
    python_with(HERE / f"{request.param}.txt")
    return request.param


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that a microphone can be ordered to hear, each with a pause after it."""
    folder = tmp_path_factory.mktemp("clips")
    paths = {name: folder / f"{name}.pcm" for name in (LONG, SHORT)}
    for name, path in paths.items():
        path.write_bytes(encode_s16le(np.pad(load_clip(name), (0, PAUSE))))
    return {name: str(path) for name, path in paths.items()}


def agent(framework: str, door: str, server: Running) -> Any:
    python = python_with(HERE / f"{framework}.txt")
    return program(python, HERE / f"{framework}_stt.py", door, server.http)


async def until_said(heard: Program, name: str) -> str:
    """Read on until the last word of a clip is told for good; all that was told for good."""
    last = normal_words(REFERENCES[name]).split()[-1]
    while True:
        said = normal_words(" ".join(told["text"] for told in heard.of("final")))
        if said.endswith(last):
            return said
        await heard.until("final")


@pytest.mark.parametrize("door", DOORS)
def test_agent_hears_speech_as_it_grows_and_as_it_ends(
    framework: str, door: str, server: Running, clips: dict[str, str]
) -> None:
    async def play() -> tuple[Program, str]:
        async with agent(framework, door, server) as heard:
            for _ in range(TRIES):
                heard.told.clear()
                await heard.order(clips[LONG])
                said = await until_said(heard, LONG)
                if "pause" not in heard.kinds():
                    await heard.until("pause")
                if "interim" in heard.kinds():
                    break
            return heard, said

    heard, said = asyncio.run(play())
    assert said == normal_words(REFERENCES[LONG])
    kinds = heard.kinds()
    assert "error" not in kinds
    assert kinds.index("interim") < kinds.index("final")
    assert kinds.index("speech") < kinds.index("final")


@pytest.mark.parametrize("door", ["openai", "deepgram"])
def test_agent_survives_a_turn_that_cannot_be_decoded(
    framework: str, door: str, mini: Model, clips: dict[str, str]
) -> None:
    async def play(server: Running) -> Program:
        async with agent(framework, door, server) as heard:
            await heard.order(clips[SHORT])
            await heard.order(clips[LONG])
            await until_said(heard, LONG)
            return heard

    with make_backend(mini) as backend:
        encode = backend.engine._runner.encode

        def break_short(windows: Any, audio_tokens: Any) -> Any:
            if max(len(window.samples) for window in windows) < SHORT_S * 16_000:
                raise RuntimeError("broken")
            return encode(windows, audio_tokens)

        backend.engine._runner.encode = break_short  # type: ignore[method-assign]
        with running(backend, grace_s=0) as server:
            heard = asyncio.run(play(server))
        backend.engine.check_idle()
    said = normal_words(" ".join(told["text"] for told in heard.of("final")))
    assert said == normal_words(REFERENCES[LONG])


@pytest.mark.parametrize("door", ["openai", "deepgram"])
def test_agent_comes_back_after_a_broken_connection(
    framework: str, door: str, server: Running, clips: dict[str, str]
) -> None:
    async def play() -> str:
        async with agent(framework, door, server) as heard:
            await heard.order(clips[LONG])
            await until_said(heard, LONG)
            heard.told.clear()
            await cut_and_wait(server)
            await heard.order(clips[LONG])
            return await until_said(heard, LONG)

    assert asyncio.run(play()) == normal_words(REFERENCES[LONG])


async def cut_and_wait(server: Running) -> None:
    """Break every connection, and wait until there is one again."""
    loop, is_back = asyncio.get_running_loop(), asyncio.Event()
    attach = server.registry.attach

    async def tell(*arguments: Any) -> bool:
        attached = await attach(*arguments)
        loop.call_soon_threadsafe(is_back.set)
        return attached

    server.registry.attach = tell
    for connection in list(server.server.server_state.connections):
        server.server._loop.call_soon_threadsafe(connection.transport.abort)
    async with asyncio.timeout(PATIENCE_S):
        await is_back.wait()
