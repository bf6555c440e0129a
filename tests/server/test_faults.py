"""What breaks behind or before the server: it is told, it stays where it is, nothing leaks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.clips import load_clip
from support.faults import (
    BLUNDERS,
    BREAKS,
    MAX_MESSAGE_BYTES,
    TRANSCRIPTION,
    Final,
    Story,
    Unlucky,
)
from support.realtime import Running, make_backend, open_client, running

from moss_stream.audio.pcm import encode_s16le
from moss_stream.engine.engine import Engine
from moss_stream.errors import EngineStopped
from moss_stream.model.checkpoint import Model
from moss_stream.server.app import Backend

PAUSE = np.zeros(9_600, np.float32)
WORDS = load_clip("asterisk_human_003")
PCM = encode_s16le(np.concatenate([WORDS, PAUSE, load_clip("mix_duo_002")[:32_000], PAUSE]))
SIDE_BY_SIDE = 8


@pytest.fixture(scope="module")
def backend(mini: Model) -> Iterator[Backend]:
    with make_backend(mini) as made:
        yield made


@pytest.fixture
def server(backend: Backend) -> Iterator[Running]:
    with running(backend, max_message_bytes=MAX_MESSAGE_BYTES) as server:
        yield server
        assert server.sessions_end()
    assert backend.engine.stats().active == backend.engine.stats().waiting == 0
    backend.engine.check_idle()


def stories(server: Running, seeds: range, mishaps: tuple[str, ...] = ()) -> list[Story]:
    async def play() -> list[Story]:
        return await asyncio.gather(*(Unlucky(server, PCM, s, mishaps).play() for s in seeds))

    return asyncio.run(play())


@pytest.fixture(scope="module")
def undisturbed(backend: Backend) -> list[Final]:
    with running(backend) as server:
        return stories(server, range(1))[0].finals()


def now_and_then(call: Callable[..., Any], rate: float, error: Exception) -> Callable[..., Any]:
    rng = random.Random(7)

    def unreliable(*args: Any, **kwargs: Any) -> Any:
        if rng.random() < rate:
            raise error
        return call(*args, **kwargs)

    return unreliable


def check_told_or_reported(story: Story, undisturbed: list[Final]) -> None:
    """Every turn has the text it would have had, or it failed and its audio is a gap."""
    finals = story.finals()
    assert len(finals) == len(undisturbed)
    failed = [final for final in finals if final.transcript is None]
    for final, wanted in zip(finals, undisturbed, strict=True):
        assert final in failed or final == wanted
    assert len(story.of("moss.gap")) == len(failed)


@pytest.mark.parametrize(("part", "rate"), [("forward", 0.02), ("encode", 0.3)])
def test_what_a_failing_model_costs_is_reported(
    mini: Model, undisturbed: list[Final], part: str, rate: float
) -> None:
    with make_backend(mini) as backend:  # of its own: nothing is cached
        runner = backend.engine._runner
        setattr(runner, part, now_and_then(getattr(runner, part), rate, RuntimeError("broken")))
        with running(backend, max_message_bytes=MAX_MESSAGE_BYTES) as server:
            told = stories(server, range(SIDE_BY_SIDE), BLUNDERS)
        backend.engine.check_idle()
    for story in told:
        check_told_or_reported(story, undisturbed)
    failures = [event for story in told for event in story.of(f"{TRANSCRIPTION}.failed")]
    assert all(event["error"]["code"] == "request_failed" for event in failures)


def test_finals_are_tried_again_while_the_engine_takes_nothing(
    server: Running,
    backend: Backend,
    undisturbed: list[Final],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = backend.engine
    busy = now_and_then(engine.submit_async, 0.3, EngineStopped("not now"))
    monkeypatch.setattr(engine, "submit_async", busy)
    for story in stories(server, range(SIDE_BY_SIDE)):
        check_told_or_reported(story, undisturbed)


def test_an_engine_that_starts_over_loses_no_text(mini: Model, undisturbed: list[Final]) -> None:
    with make_backend(mini) as backend:
        engine = backend.engine
        forward, calls = engine._forward, itertools.count(1)

        def break_twice(*arguments: Any) -> None:
            if next(calls) in (3, 8):
                raise IndexError("a bug")
            forward(*arguments)

        engine._forward = break_twice  # type: ignore[method-assign]
        with running(backend, max_message_bytes=MAX_MESSAGE_BYTES) as server:
            told = stories(server, range(SIDE_BY_SIDE), BREAKS + BLUNDERS)
        assert next(calls) > 8
        engine.check_idle()
    assert all(story.finals() == undisturbed for story in told)


def test_clients_that_die_leave_nothing(backend: Backend) -> None:
    async def play(server: Running) -> None:
        await asyncio.gather(*(Unlucky(server, PCM, seed).die() for seed in range(24)))

    with running(backend, grace_s=0.2) as server:
        asyncio.run(play(server))
        assert server.sessions_end()
    backend.engine.check_idle()


def test_idle_timeout_frees_what_a_session_holds(backend: Backend) -> None:
    async def play(server: Running) -> None:
        client = await open_client(server, "&preset=captions")
        await client.append(WORDS)  # no silence after it, so the utterance stays open
        assert await client.rest() == 4408

    with running(backend, idle_timeout_s=1) as server:
        asyncio.run(play(server))
        assert server.sessions_end()
        assert backend.engine.stats().active == 0
    backend.engine.check_idle()


def test_dead_engine_ends_sessions_with_the_reason(mini: Model) -> None:
    """Nothing can be decoded any more, and every client is told."""

    async def play(server: Running, engine: Engine) -> Story:
        client = Unlucky(server, PCM)
        engine.close()
        return await client.play()

    with make_backend(mini) as backend, running(backend) as server:
        story = asyncio.run(play(server, backend.engine))
    finals = story.finals()
    assert finals and all(final.transcript is None for final in finals)
    assert len(story.of("moss.gap")) == len(finals)
