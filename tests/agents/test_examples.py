"""The agents of the README, with stand-ins for the language model and the voice alone."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clips import load_clip
from support.environments import Program, program, python_with, service
from support.openai_models import ANSWER, Models, models
from support.realtime import PATIENCE_S, Running, make_backend, running
from support.words import normal_words

from moss_stream.audio.pcm import encode_s16le
from moss_stream.model.checkpoint import Model

HERE = Path(__file__).parent
README = (HERE.parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```py\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SAID = "The conference will begin when the leader arrives."
TRIES = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(mini: Model) -> Iterator[Running]:
    with make_backend(mini) as backend, running(backend) as served:
        yield served


@pytest.fixture
def stand_ins() -> Iterator[Models]:
    with models() as made:
        yield made


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("clip") / "clip.pcm"
    path.write_bytes(encode_s16le(load_clip("asterisk_human_000")))
    return str(path)


def example(framework: str, folder: Path, **places: str) -> Path:
    """The README's agent as a file, with the ports that are free here."""
    (code,) = (code for code in EXAMPLES if f"from {framework}." in code)
    for place, ours in places.items():
        assert place in code
        code = code.replace(place, ours)
    path = folder / "agent.py"
    path.write_text(code)
    return path


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return str(listening.getsockname()[1])


async def until_open(port: str) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("localhost", int(port))
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


async def talk(caller: Program, clip: str, stand_ins: Models) -> None:
    """Speak until the language model gets to read it and the answer is heard.

    On a busy machine an agent may lose patience with a text and answer without it.
    """
    for _ in range(TRIES):
        await caller.order(clip)
        try:
            async with asyncio.timeout(PATIENCE_S / 2):
                while not any(normal_words(SAID) in normal_words(t) for t in stand_ins.heard):
                    await caller.until("voice")
            return
        except TimeoutError:
            continue
    raise AssertionError(f"the model read {stand_ins.heard}")


def test_pipecat_agent_answers(
    server: Running, stand_ins: Models, clip: str, tmp_path: Path
) -> None:
    python = python_with(HERE / "pipecat.txt")
    port = free_port()
    places = {"127.0.0.1:8000": f"127.0.0.1:{server.port}", "8765": port}
    script = example("pipecat", tmp_path, **places)

    async def play() -> None:
        keys = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": stand_ins.url}
        async with service(python, script, **keys):
            await until_open(port)
            url = f"ws://localhost:{port}"
            async with program(python, HERE / "pipecat_caller.py", url) as caller:
                await talk(caller, clip, stand_ins)

    asyncio.run(play())
    assert ANSWER in stand_ins.spoken


def test_livekit_agent_answers(
    server: Running, stand_ins: Models, clip: str, tmp_path: Path
) -> None:
    python = python_with(HERE / "livekit.txt")
    script = example("livekit", tmp_path, **{"127.0.0.1:8000": f"127.0.0.1:{server.port}"})

    async def play() -> None:
        keys = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": stand_ins.url}
        caller = HERE / "livekit_caller.py"
        async with program(python, caller, str(script), **keys) as call:
            await talk(call, clip, stand_ins)

    asyncio.run(play())
    assert ANSWER in stand_ins.spoken
