"""What holds for a session whatever is said and however it arrives."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.live import CODEC, Word, World, committed_only_grows, resolved, say, tiles

from moss_stream.errors import EngineStopped, RequestFailed
from moss_stream.live.config import LiveConfig
from moss_stream.live.events import SpeechStarted, SpeechStopped
from moss_stream.live.ledger import Outcome
from moss_stream.live.session import LiveSession

AGENT = LiveConfig(max_utterance_s=6.0, split_search_s=1.0)
CAPTIONS = replace(AGENT, context_s=10.0, anchor_s=3.0, max_anchors=3)
configs = st.sampled_from([AGENT, CAPTIONS])


@st.composite
def speech(draw: st.DrawFn) -> tuple[list[Word], float]:
    """Turns of one to three speakers with pauses of all lengths, and the length of the stream."""
    words: list[Word] = []
    at = draw(st.floats(0, 2))
    for index in range(draw(st.integers(1, 6))):
        turn = " ".join(f"w{index}x{i}" for i in range(draw(st.integers(1, 9))))
        words += say(at, turn, draw(st.sampled_from("ABC")), draw(st.sampled_from([0.2, 0.37])))
        at = words[-1].end_s + draw(st.floats(0.05, 3))
    return words, at


def fixed_endpoints(config: LiveConfig) -> LiveConfig:
    """Endpoints that do not depend on when a text came."""
    return replace(config, endpoint_min_s=0.6, endpoint_s=0.6, endpoint_max_s=0.6)


def run(world: World, end_s: float, seed: int) -> None:
    """Feed the stream in random chunks, scored in random batches, answered at random times."""
    rng = random.Random(seed)
    world.latency_s = lambda: rng.choice([0.0, 0.05, 0.4, 2.0])
    total = round(end_s * 16000)
    while (left := total - world.session.received_at) > 0:
        size = rng.choice([1, 100, 512, 1600, 5000, 40000])
        world.feed(min(left, size + rng.randrange(size)), batch=rng.choice([1, 3, 1000]))
    world.finish()


@settings(max_examples=60, deadline=None)
@given(speech(), configs, st.integers(0, 2**32))
def test_finals_do_not_depend_on_how_the_audio_arrives(
    spoken: tuple[list[Word], float], config: LiveConfig, seed: int
) -> None:
    words, end_s = spoken
    steady = World(LiveSession(fixed_endpoints(config), CODEC), words)
    steady.feed_until(end_s)
    steady.finish()
    shaken = World(LiveSession(fixed_endpoints(config), CODEC), words)
    run(shaken, end_s, seed)
    assert shaken.finals() == steady.finals()
    assert [e.end_at for e in shaken.all(SpeechStopped)] == [
        e.end_at for e in steady.all(SpeechStopped)
    ]


@settings(max_examples=60, deadline=None)
@given(speech(), configs, st.integers(0, 2**32))
def test_every_sample_is_accounted_for_and_every_word_is_heard(
    spoken: tuple[list[Word], float], config: LiveConfig, seed: int
) -> None:
    words, end_s = spoken
    world = World(LiveSession(config, CODEC), words)
    take = world.take

    def checked(outputs: list) -> None:
        take(outputs)
        assert tiles(world.session)

    world.take = checked
    run(world, end_s, seed)
    assert world.session.is_finished
    totals = world.session.totals()
    assert totals[Outcome.PENDING] == totals[Outcome.GAP] == 0
    finals = world.finals()
    assert all(a[2] <= b[1] for a, b in zip(finals, finals[1:], strict=False))
    # A word that a split cuts is misheard in both parts.
    splits = [event.end_at / 16000 for event in world.all(SpeechStopped) if event.is_split]
    text = " ".join(final[3] for final in finals).split()
    for word in words:
        if not any(word.start_s - 0.1 < at < word.end_s + 0.1 for at in splits):
            assert text.count(word.text) == 1


@settings(max_examples=60, deadline=None)
@given(speech(), configs, st.integers(0, 2**32), st.sampled_from([0.0, 0.3]))
def test_each_utterance_ends_once_whatever_fails_or_is_commanded(
    spoken: tuple[list[Word], float], config: LiveConfig, seed: int, failure_rate: float
) -> None:
    words, end_s = spoken
    rng = random.Random(seed)
    world = World(LiveSession(config, CODEC), words)
    world.faults = lambda request: (
        rng.choice([EngineStopped("restart"), RequestFailed("no")])
        if rng.random() < failure_rate
        else None
    )
    cleared = 0
    while world.session.received_at < end_s * 16000:
        world.feed(rng.choice([700, 8000]))
        if rng.random() < 0.05:
            command = rng.choice([world.session.commit, world.session.clear])
            cleared += command == world.session.clear
            world.take(command(world.now_s))
        assert tiles(world.session)
    world.finish()
    assert world.session.is_finished
    ended = list(resolved(world.events))
    started = [event.utterance_id for event in world.all(SpeechStarted)]
    stopped = [event.utterance_id for event in world.all(SpeechStopped)]
    assert sorted(ended) == stopped == sorted(set(stopped))
    assert len(started) - cleared <= len(stopped) <= len(started)
    assert committed_only_grows(world.events)
    assert world.session.totals()[Outcome.PENDING] == 0
