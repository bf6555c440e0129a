"""Contract 3: the final text of an utterance equals the offline transcript of its samples.

Each live final is made with drafts, committed text, eager decodes and caches; the offline one by a
fresh engine from nothing but the samples, and with a context from those before it and their text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from support.clips import clip_references, load_clip
from support.engine import make_request
from support.engine import running as running_engine
from support.faults import SILENCE_MS, Unlucky
from support.realtime import make_backend, running

from moss_stream.audio.pcm import encode_s16le
from moss_stream.engine.delivery import AsyncHandle
from moss_stream.engine.engine import Engine
from moss_stream.live.config import VAD_FRAME_SAMPLES, LiveConfig, to_seconds
from moss_stream.live.events import DecodeKind, DecodeRequest, Event, Final, Finished
from moss_stream.model.checkpoint import Model
from moss_stream.model.vad import load_vad
from moss_stream.recordings.request import output_budget
from moss_stream.server.hub import Hub
from moss_stream.server.metrics import Metrics
from moss_stream.server.stream import LiveStream, StreamOptions
from moss_stream.transcript.markup import parse_markup

Samples = npt.NDArray[np.float32]

CLIPS = [reference["audio"].removesuffix(".flac") for reference in clip_references()]
REFRESHED = ["seen_voice_000", "asterisk_human_003", "mix_duo_002", "mix_trio_001"]
"""Clips that are heard piece by piece, with many refreshes of each utterance."""
MAX_SAMPLES = 16_000 * 8
"""Of such a clip, for the sake of time."""


def exact(config: LiveConfig, silence_s: float) -> LiveConfig:
    """Endpoints after this silence, whatever the text says."""
    return replace(config, endpoint_min_s=silence_s, endpoint_s=silence_s, endpoint_max_s=silence_s)


AGENT = exact(LiveConfig.agent(), 0.4)
CAPTIONS = exact(LiveConfig.captions(), 0.4)


class Audience:
    """Hears what a stream tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Finished):
            self.end.set_result(None)

    def broke(self, error: BaseException) -> None:
        self.end.set_exception(error)

    def ticked(self, now_s: float) -> None:
        pass


class NotingHub(Hub):
    """Keeps what streams ask for."""

    asked: list[DecodeRequest]

    async def submit(
        self, asked: DecodeRequest, keywords: Sequence[str], stream_id: str
    ) -> tuple[AsyncHandle, bool]:
        self.asked.append(asked)
        return await super().submit(asked, keywords, stream_id)


@dataclass(frozen=True)
class Heard:
    """What one live stream told and asked."""

    events: list[Event]
    asked: list[DecodeRequest]

    def finals(self) -> list[Final]:
        own = [event for event in self.events if isinstance(event, Final)]
        return sorted(own, key=lambda final: final.utterance_id)

    def request(self, final: Final) -> DecodeRequest:
        """What the final answers."""
        return next(
            asked
            for asked in self.asked
            if (asked.utterance_id, asked.end_at) == (final.utterance_id, final.end_at)
            and asked.kind is not DecodeKind.REFRESH
        )


async def listen(hub: NotingHub, samples: Samples, config: LiveConfig, piece: int) -> Heard:
    """Let a live stream hear `samples`; it may catch up after each `piece` of them."""
    hub.asked = []
    audience = Audience()
    stream = LiveStream(hub, StreamOptions(config), "live", audience)
    for start in range(0, len(samples), piece):
        stream.receive(samples[start : start + piece])
        while not has_caught_up(hub, stream):  # noqa: ASYNC110, only to give it the time
            await asyncio.sleep(0.005)
    stream.finish()
    await audience.end
    stream.close()
    return Heard(audience.events, hub.asked)


def has_caught_up(hub: Hub, stream: LiveStream) -> bool:
    stats = hub.engine.stats()
    is_examined = stream.session.received_at - stream.session.examined_at < VAD_FRAME_SAMPLES
    return is_examined and stats.waiting == stats.active == 0


def live(model: Model, samples: Samples, config: LiveConfig, pieces: Sequence[int]) -> list[Heard]:
    """One stream after the other hears `samples`, each in pieces of another size."""

    async def play(engine: Engine) -> list[Heard]:
        hub = NotingHub(model, engine, load_vad(), Metrics(engine.stats))
        hub.start()
        try:
            return [await listen(hub, samples, config, piece) for piece in pieces]
        finally:
            await hub.stop()

    with running_engine(model) as engine:
        return asyncio.run(play(engine))


class Offline:
    """Transcribes on an engine that no stream uses."""

    def __init__(self, model: Model, engine: Engine) -> None:
        self._model = model
        self._engine = engine

    def token_ids(self, samples: Samples, new: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
        """The whole output for samples of which the last `new` have no known text yet."""
        budget = len(known) + output_budget(to_seconds(new))
        request = make_request(self._model, samples, max_new_tokens=budget, forced=known)
        return self._engine.submit(request).result(60).token_ids

    def words(self, token_ids: Sequence[int], num_samples: int) -> list[tuple[str, str]]:
        """Speakers and texts of an output."""
        markup = self._model.tokenizer.decode(token_ids)
        segments = parse_markup(markup, to_seconds(num_samples)).segments
        return [(segment.speaker, segment.text) for segment in segments]


@pytest.fixture(scope="module")
def offline(mini: Model) -> Iterator[Offline]:
    with running_engine(mini) as engine:
        yield Offline(mini, engine)


def told(final: Final) -> list[tuple[str, str]]:
    return [(segment.speaker, segment.text) for segment in final.segments]


@pytest.mark.parametrize("name", CLIPS)
def test_whole_clip_heard_at_once_equals_its_own_transcripts(
    mini: Model, offline: Offline, name: str
) -> None:
    samples = load_clip(name)
    (heard,) = live(mini, samples, AGENT, [len(samples)])
    assert bool(heard.finals()) != name.startswith("nospeech")
    for final in heard.finals():
        own = samples[final.start_at : final.end_at]
        assert told(final) == offline.words(offline.token_ids(own, len(own)), len(own))


@pytest.mark.parametrize("name", REFRESHED)
def test_each_utterance_equals_its_own_transcript(mini: Model, offline: Offline, name: str) -> None:
    samples = load_clip(name)[:MAX_SAMPLES]
    slow, fast = live(mini, samples, AGENT, [13_000, len(samples)])
    assert slow.finals()
    for final, again in zip(slow.finals(), fast.finals(), strict=True):
        assert told(final) == told(again)
        own = samples[final.start_at : final.end_at]
        assert told(final) == offline.words(offline.token_ids(own, len(own)), len(own))


def test_live_path_goes_through_refreshes(mini: Model) -> None:
    """Else these tests would say little."""
    (heard,) = live(mini, load_clip("seen_voice_000"), AGENT, [13_000])
    refreshes = [asked for asked in heard.asked if asked.kind is DecodeKind.REFRESH]
    assert any(refresh.forced and refresh.draft for refresh in refreshes)
    assert any(heard.request(final).draft for final in heard.finals())


def test_each_utterance_equals_the_transcript_with_all_before_it(
    mini: Model, offline: Offline
) -> None:
    clips = ["mix_trio_001", "mix_long_001", "seen_voice_000", "asterisk_human_003"]
    samples = np.concatenate([load_clip(name) for name in clips])
    (heard,) = live(mini, samples, CAPTIONS, [160_000])
    past, known = np.zeros(0, np.float32), ()
    for final in heard.finals():
        own = samples[final.start_at : final.end_at]
        past = np.concatenate((past, own))
        token_ids = offline.token_ids(past, len(own), known)
        own_ids, known = token_ids[len(known) :], token_ids
        assert told(final) == offline.words(own_ids, len(past))
    assert len(past) > mini.spec.audio.window_samples


def test_each_utterance_equals_the_transcript_behind_anchors(mini: Model, offline: Offline) -> None:
    """When a context is full a new one begins, behind some speech of each speaker."""
    config = replace(CAPTIONS, context_s=6.0, anchor_s=2.0, max_anchors=2)
    (heard,) = live(mini, load_clip("mix_long_001"), config, [40_000])
    anchored = 0
    for final in heard.finals():
        request = heard.request(final)
        past = np.concatenate([window.samples for window in request.windows])
        token_ids = offline.token_ids(past, final.end_at - final.start_at, request.forced)
        words = offline.words(token_ids[len(request.forced) :], len(past))
        assert [text for _, text in told(final)] == [text for _, text in words]
        anchored += len(past) < final.end_at and bool(request.forced)
    assert anchored


def test_silence_has_no_text(mini: Model) -> None:
    (heard,) = live(mini, load_clip("nospeech_002"), AGENT, [8_000])
    assert heard.finals() == []


def test_socket_tells_the_same(mini: Model) -> None:
    samples = load_clip("mix_duo_002")[:MAX_SAMPLES]
    config = exact(LiveConfig.agent(), SILENCE_MS / 1000)
    (heard,) = live(mini, samples, config, [len(samples)])
    with make_backend(mini) as backend, running(backend) as server:
        story = asyncio.run(Unlucky(server, encode_s16le(samples)).play())
    assert [final.transcript for final in story.finals()] == [f.text for f in heard.finals()]
