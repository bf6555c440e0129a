"""Contracts 4 and 5: whatever the network and the client do, nothing is lost and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from support.clips import load_clip
from support.faults import BLUNDERS, BREAKS, MAX_MESSAGE_BYTES, SAMPLE_BYTES, Final, Story, Unlucky
from support.realtime import Running, make_backend, running

from moss_stream.audio.pcm import encode_s16le
from moss_stream.live.ledger import Outcome
from moss_stream.model.checkpoint import Model
from moss_stream.server.stream import LiveStream

SIDE_BY_SIDE = 16
RUNS = 192
PAUSE = np.zeros(9_600, np.float32)
SPEECH = [load_clip("asterisk_human_003"), load_clip("mix_duo_002")[: 16_000 * 2]]
PCM = encode_s16le(np.concatenate([part for clip in SPEECH for part in (clip, PAUSE)]))

Accounts = dict[str, dict[Outcome, int]]


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    """What became of the samples of each session that is over."""
    kept: Accounts = {}
    close = LiveStream.close

    def closing(stream: LiveStream) -> None:
        kept[stream._stream_id] = stream.session.totals()
        close(stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LiveStream, "close", closing)
        yield kept


@pytest.fixture(scope="module")
def server(mini: Model, accounts: Accounts) -> Iterator[Running]:
    with make_backend(mini) as backend:
        with running(backend, max_message_bytes=MAX_MESSAGE_BYTES) as server:
            yield server
            assert server.sessions_end()
        backend.engine.check_idle()


@pytest.fixture(scope="module")
def undisturbed(server: Running) -> list[Final]:
    return asyncio.run(Unlucky(server, PCM).play()).finals()


def check(story: Story, undisturbed: list[Final], accounts: Accounts) -> None:
    assert story.finals() == undisturbed
    assert story.told_only_what_is_final()
    assert story.of("moss.gap") == []
    (finished,) = story.of("moss.finished")
    assert finished is story.events[-1]
    assert finished["received_samples"] == len(PCM) // SAMPLE_BYTES
    account = accounts[story.events[0]["session"]["id"]]
    assert account[Outcome.PENDING] == account[Outcome.GAP] == 0
    assert account[Outcome.TRANSCRIPT] > 0


def test_undisturbed_run_has_the_words(undisturbed: list[Final]) -> None:
    assert [final.transcript for final in undisturbed] == [
        "To listen to it.",
        "Thank God for that.",
    ]


@pytest.mark.parametrize("first_seed", range(0, RUNS, SIDE_BY_SIDE))
def test_disturbed_runs_equal_the_undisturbed(
    server: Running, undisturbed: list[Final], accounts: Accounts, first_seed: int
) -> None:
    async def play() -> None:
        seeds = range(first_seed, first_seed + SIDE_BY_SIDE)
        clients = [Unlucky(server, PCM, seed, (*BREAKS, *BLUNDERS)) for seed in seeds]
        outcomes = await asyncio.gather(*(c.play() for c in clients), return_exceptions=True)
        for seed, client, outcome in zip(seeds, clients, outcomes, strict=True):
            assert isinstance(outcome, Story), f"seed {seed}: {client.past}: {outcome!r}"
            check(outcome, undisturbed, accounts)

    asyncio.run(play())
