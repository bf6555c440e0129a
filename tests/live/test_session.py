from dataclasses import replace

import numpy as np
import pytest
from support.live import CODEC, World, audio, committed_only_grows, say, tiles

from moss_stream.errors import (
    ConfigError,
    EngineStopped,
    OutOfOrder,
    QueueFull,
    RequestFailed,
    StateError,
    UnsupportedAudio,
)
from moss_stream.live.config import LiveConfig
from moss_stream.live.events import (
    CancelDecode,
    CommitDone,
    DecodeKind,
    DecodeRequest,
    Failed,
    Final,
    Finished,
    Gap,
    Hypothesis,
    SessionWarning,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.live.ledger import Outcome
from moss_stream.live.session import LiveSession
from moss_stream.live.utterance import EARLIER_HYPOTHESES

AGENT = LiveConfig.agent()
CAPTIONS = LiveConfig.captions()
HELLO = say(1.0, "hello there my friend.")
LONG = say(1.0, "this is a rather longer piece of speech that goes on and on for a good while")


def world(words=HELLO, config=AGENT, **options) -> World:
    return World(LiveSession(config, CODEC), words, **options)


def test_session_gives_each_utterance_its_events_in_order() -> None:
    w = world()
    w.feed_until(4)
    w.finish()
    kinds = [type(event) for event in w.events if not isinstance(event, Hypothesis)]
    assert kinds == [SpeechStarted, SpeechStopped, Final, Finished]
    (final,) = w.all(Final)
    assert final.text == "hello there my friend."
    assert final.segments[0].start_s == pytest.approx(1.0, abs=0.01)
    assert final.segments[0].end_s == pytest.approx(2.2, abs=0.01)


def test_pre_roll_belongs_to_the_utterance() -> None:
    w = world()
    w.feed_until(4)
    start = w.all(SpeechStarted)[0].start_at
    assert 0.3 <= 1.0 - start / 16000 <= AGENT.pre_roll_s + 0.032
    samples = w.requests[0].windows[0].samples
    np.testing.assert_array_equal(samples, audio(start, start + len(samples)))


def test_refresh_offers_the_last_text_as_draft_and_forces_what_is_committed() -> None:
    w = world(LONG)
    w.feed_until(6)
    requests = w.of_kind(DecodeKind.REFRESH)
    assert [request.draft == () for request in requests[:2]] == [True, False]
    assert any(request.forced for request in requests)
    assert committed_only_grows(w.events)
    assert w.all(Hypothesis)[-1].committed_text.startswith("this is a rather")


def test_refresh_offers_texts_before_the_last_too() -> None:
    w = world(LONG)
    w.feed_until(8)
    requests = w.of_kind(DecodeKind.REFRESH)
    told = [request.forced + request.draft for request in requests[1:]]  # the text before each
    for at, request in enumerate(requests[1:]):
        assert request.earlier == tuple(reversed(told[max(at - EARLIER_HYPOTHESES, 0) : at]))
    assert len(requests[-1].earlier) == EARLIER_HYPOTHESES


def test_hypothesis_text_is_committed_plus_partial() -> None:
    w = world(LONG)
    w.feed_until(6)
    for event in w.all(Hypothesis):
        words = (event.committed_text + event.partial_text).replace("~", "").split()
        assert all(a.text.startswith(b) for a, b in zip(LONG, words, strict=False))
        assert len(event.committed_segments) == bool(event.committed_text)


def test_refreshes_come_less_often_under_load() -> None:
    counts = []
    for load in (1, 3):
        w = world(LONG)
        w.session.set_load(load)
        w.feed_until(5.5)
        counts.append(len(w.of_kind(DecodeKind.REFRESH)))
    assert counts[0] == 6
    assert counts[1] == 2
    with pytest.raises(ConfigError):
        w.session.set_load(0.5)


def test_refresh_that_has_not_started_is_replaced_and_one_that_has_is_waited_for() -> None:
    for has_started, refreshes in ((False, 5), (True, 1)):
        w = world(LONG, latency_s=lambda: 100.0)
        w.feed_until(2)
        if has_started:
            w.session.started(w.requests[0].request_id)
        w.feed_until(5)
        assert len(w.of_kind(DecodeKind.REFRESH)) == refreshes
        assert len(w.cancelled) == refreshes - 1


def test_eager_final_is_ready_at_the_endpoint() -> None:
    w = world(latency_s=lambda: 0.1)
    w.feed_until(4)
    assert len(w.of_kind(DecodeKind.EAGER)) == 1
    assert w.of_kind(DecodeKind.FINAL) == []
    stopped, final = w.events[-2:]
    assert isinstance(stopped, SpeechStopped) and isinstance(final, Final)


def test_eager_final_that_is_late_is_waited_for() -> None:
    w = world(latency_s=lambda: 1.0)
    w.feed_until(5)
    assert w.of_kind(DecodeKind.FINAL) == []
    assert len(w.all(Final)) == 1


@pytest.mark.parametrize("latency_s", [0.0, 0.3])
def test_eager_final_is_dropped_when_speech_resumes(latency_s: float) -> None:
    words = say(1.0, "one two three four five") + say(2.85, "six seven.")
    w = world(words, latency_s=lambda: latency_s)
    w.feed_until(6)
    w.finish()
    eager = w.of_kind(DecodeKind.EAGER)
    assert len(eager) == 2
    assert w.of_kind(DecodeKind.FINAL) == []
    assert [final.text for final in w.all(Final)] == ["one two three four five six seven."]


def test_final_is_decoded_after_the_endpoint_when_eager_is_off() -> None:
    w = world(config=replace(AGENT, eager_final=False))
    w.feed_until(4)
    assert w.of_kind(DecodeKind.EAGER) == []
    assert len(w.of_kind(DecodeKind.FINAL)) == 1
    assert len(w.all(Final)) == 1


def test_final_decides_committed_text_anew_and_says_so() -> None:
    w = world(LONG)
    w.feed_until(5)
    assert w.all(Hypothesis)[-1].committed_text
    w.decoder.words = [replace(word, text="other") for word in LONG]
    w.decoder.ids = lambda request, base: (
        request.forced
        + tuple(
            [] if request.kind is DecodeKind.REFRESH else CODEC.encode(w.decoder.markup(request))
        )
    )
    w.feed_until(9)
    (final,) = w.all(Final)
    assert final.is_revised
    assert set(final.text.split()) == {"other"}


def test_agent_decodes_each_utterance_alone_and_at_once() -> None:
    words = say(1.0, "one two.") + say(4.0, "three four.")
    w = world(words, latency_s=lambda: 3.0)
    w.feed_until(6)
    starts = {request.utterance_id for request in w.requests}
    assert starts == {1, 2}
    assert all(not request.forced for request in w.requests)


def test_manual_commit_ends_the_utterance_where_the_audio_stands() -> None:
    w = world(LONG, config=AGENT.with_manual_endpoints())
    w.feed_until(3.01)
    w.take(w.session.commit(w.now_s))
    w.feed_until(9)
    w.take(w.session.commit(w.now_s))
    w.answer()
    assert [event.utterance_id for event in w.all(CommitDone)] == [1, 2]
    finals = w.all(Final)
    assert finals[0].end_at == 48160 == finals[1].start_at
    assert tiles(w.session)


def test_manual_commit_waits_for_its_frames() -> None:
    w = world(config=AGENT.with_manual_endpoints())
    w.take(w.session.receive(audio(0, 32000), 2.0))
    w.take(w.session.commit(2.0))
    assert w.all(CommitDone) == []
    w.examine()
    assert w.all(CommitDone) == [CommitDone(1, 32000)]


def test_commit_without_speech_ends_nothing() -> None:
    w = world()
    w.feed_until(4)
    w.take(w.session.commit(w.now_s))
    assert w.all(CommitDone) == [CommitDone(None, 64000)]
    assert len(w.all(SpeechStopped)) == 1


def test_clear_drops_the_open_utterance_and_reports_the_gap() -> None:
    w = world(LONG)
    w.feed_until(3)
    w.take(w.session.clear(w.now_s))
    (gap,) = w.all(Gap)
    assert (gap.start_at, gap.end_at) == (w.all(SpeechStarted)[0].start_at, 48000)
    w.feed_until(9)
    w.finish()
    assert [final.start_at for final in w.all(Final)] == [48000]
    assert tiles(w.session)
    assert w.session.totals()[Outcome.GAP] == gap.end_at - gap.start_at


def test_failed_final_becomes_a_gap_and_the_session_goes_on() -> None:
    words = say(1.0, "one two.") + say(5.0, "three four.")
    for config in (AGENT, CAPTIONS):
        w = world(
            words,
            config=config,
            faults=lambda r: RequestFailed("no") if r.utterance_id == 1 else None,
        )
        w.feed_until(8)
        w.finish()
        assert [event.utterance_id for event in w.all(Failed)] == [1]
        assert [final.text for final in w.all(Final)] == ["three four."]
        (gap,) = w.all(Gap)
        assert w.session.totals()[Outcome.GAP] == gap.end_at - gap.start_at
        assert w.session.totals()[Outcome.PENDING] == 0


def test_final_is_tried_again_when_the_engine_restarts() -> None:
    w = world(faults=lambda r: EngineStopped("restart") if r.request_id < 6 else None)
    w.feed_until(4)
    w.finish()
    assert w.all(Failed) == []
    assert [final.text for final in w.all(Final)] == ["hello there my friend."]
    assert {warning.code for warning in w.all(SessionWarning)} >= {"final_retried"}


def test_final_is_given_up_after_the_allowed_attempts() -> None:
    w = world(faults=lambda r: EngineStopped("down"))
    w.feed_until(4)
    w.finish()
    assert len(w.all(Failed)) == 1
    retried = [warning for warning in w.all(SessionWarning) if warning.code == "final_retried"]
    assert len(retried) == AGENT.max_attempts - 1


def test_text_of_less_than_the_speech_does_not_shorten_the_endpoint() -> None:
    config = replace(AGENT, eager_final=False)
    w = world(say(1.0, "one two three four five"), config=config, latency_s=lambda: 0.5)
    w.decoder.ids = lambda request, base: tuple(CODEC.encode("[0.40][S01]Stop.[1.00]"))
    w.feed_until(2.9)
    heard = w.all(Hypothesis)[-1]
    w.feed_until(5)
    (stopped,) = w.all(SpeechStopped)
    assert heard.end_at < stopped.speech_end_at
    assert stopped.decided_at - stopped.speech_end_at >= config.endpoint_s * 16000


def test_final_warns_of_speech_without_words() -> None:
    w = world()
    w.decoder.words = []
    w.feed_until(4)
    (final,) = w.all(Final)
    assert final.text == ""
    assert [warning.code for warning in final.warnings] == ["no_text"]


def test_final_warns_when_the_text_ends_early() -> None:
    w = world(LONG)
    w.decoder.words = LONG[:3]
    w.feed_until(9)
    (final,) = w.all(Final)
    assert [warning.code for warning in final.warnings] == ["text_ends_early"]


def test_tick_brings_text_for_the_last_audio_when_no_more_comes() -> None:
    w = world(LONG)
    w.feed_until(3.0)
    before = w.session.decoded_at
    w.now_s += 2.0
    w.take(w.session.tick(w.now_s))
    w.answer()
    assert w.session.decoded_at == w.session.examined_at > before


def test_finish_gives_speech_that_still_goes_on() -> None:
    w = world(LONG)
    w.feed_until(3.33)
    w.finish()
    assert w.session.is_finished
    (final,) = w.all(Final)
    assert final.end_at == w.session.received_at
    with pytest.raises(OutOfOrder):
        w.session.receive(audio(0, 10), 9.0)
    with pytest.raises(OutOfOrder):
        w.session.finish(9.0)


def test_finish_waits_for_the_last_partial_frame() -> None:
    w = world()
    w.take(w.session.receive(audio(0, 100), 0.0))
    w.take(w.session.finish(0.0))
    assert not w.session.is_finished
    frames = w.session.pending_frames()
    assert frames.samples.shape == (1, 512)
    assert not frames.samples[0, 100:].any()
    w.examine()
    assert w.session.is_finished
    assert tiles(w.session)


def test_finish_of_an_empty_stream_is_finished_at_once() -> None:
    w = world()
    w.finish()
    assert w.events == [Finished(0)]


def test_audio_beyond_the_buffer_is_refused_and_nothing_is_lost() -> None:
    w = world()
    full = round(AGENT.max_buffer_s * 16000)
    with pytest.raises(QueueFull):
        w.session.receive(audio(0, full + 1), 0.0)
    assert w.session.received_at == 0
    w.session.receive(audio(0, full), 0.0)
    assert w.session.room == 0
    w.examine()
    w.answer()
    assert w.session.room > full // 2


def test_session_refuses_what_is_no_audio() -> None:
    with pytest.raises(UnsupportedAudio):
        world().session.receive(np.array([np.nan], np.float32), 0.0)


def test_session_refuses_probabilities_of_frames_it_did_not_name() -> None:
    session = world().session
    session.receive(audio(0, 1024), 0.0)
    with pytest.raises(StateError):
        session.probabilities(1, [0.1], 0.0)
    with pytest.raises(StateError):
        session.probabilities(0, [0.1] * 3, 0.0)


def test_answers_to_cancelled_requests_are_ignored() -> None:
    session = world().session
    assert session.hypothesis(99, [], 0.0) == []
    assert session.failed(99, RequestFailed("late"), 0.0) == []


def test_answer_must_begin_with_the_forced_tokens() -> None:
    w = world(say(1.0, "one two.") + say(5.0, "three four."), config=CAPTIONS)
    w.feed_until(4)
    w.latency_s = lambda: 100.0
    w.feed_until(7)
    (_, request) = w.late[-1]
    assert request.forced
    with pytest.raises(StateError):
        w.session.hypothesis(request.request_id, [1, 2], 7.0)


def test_requests_and_cancels_name_the_same_ids() -> None:
    words = say(1.0, "one two three four five") + say(2.85, "six seven.")
    session = LiveSession(AGENT, CODEC)
    w = World(session, words, latency_s=lambda: 100.0)
    seen: list[int] = []
    take = w.take

    def record(outputs):
        for output in outputs:
            if isinstance(output, CancelDecode):
                assert output.request_id in seen
            if isinstance(output, DecodeRequest):
                seen.append(output.request_id)
        take(outputs)

    w.take = record
    w.feed_until(5)
    assert len(set(seen)) == len(seen) > 2
