"""Speech that goes on for longer than an utterance may: where it is split, and what is shown."""

from dataclasses import replace

from support.live import CODEC, RATE, World, audio, probability, say, tiles

from moss_stream.live.config import LiveConfig
from moss_stream.live.events import DecodeKind, Final, Hypothesis, SpeechStopped
from moss_stream.live.session import LiveSession

AGENT = LiveConfig.agent()


def world(words, config=AGENT, **options) -> World:
    return World(LiveSession(config, CODEC), words, **options)


def test_long_speech_is_split_without_losing_a_sample() -> None:
    words = [word for i in range(30) for word in say(1.0 + 1.8 * i, "a b c d e f")]
    w = world(words)
    w.feed_until(57)
    w.finish()
    stops = w.all(SpeechStopped)
    assert [stop.is_split for stop in stops] == [True, False]
    assert stops[1].start_at == stops[0].end_at
    assert stops[0].end_at - stops[0].start_at <= AGENT.max_utterance_s * 16000
    assert len(w.all(Final)) == 2


def test_final_of_speech_that_is_split_is_ready_when_it_is() -> None:
    words = [word for i in range(20) for word in say(1.0 + 1.9 * i, "a b c d e f")]
    w = world(words, latency_s=lambda: 0.2)
    w.feed_until(36)
    split = w.all(SpeechStopped)[0]
    final = w.all(Final)[0]
    assert split.is_split
    at = w.events.index(split)
    assert w.events[at + 1 : at + 3].count(final) == 1
    assert not [r for r in w.of_kind(DecodeKind.FINAL) if r.utterance_id == 1]
    assert [r.end_at for r in w.of_kind(DecodeKind.EAGER) if r.utterance_id == 1] == [split.end_at]
    # What was decoded in advance ends before what is on the screen, and takes nothing away.
    shown = [h.end_at for h in w.all(Hypothesis) if h.utterance_id == 1]
    assert shown == sorted(shown)
    w.finish()
    assert tiles(w.session)


def test_last_bit_of_a_stream_is_no_place_to_split_it() -> None:
    config = replace(AGENT, max_utterance_s=(93 * 512 + 90) / RATE, split_search_s=1.0)
    w = world(say(0.0, "a b c d e f g h i j k l"), config)
    w.take(w.session.receive(audio(0, 93 * 512 + 100), 1.0))
    w.take(w.session.probabilities(0, [0.9] * 93, 1.0))
    w.take(w.session.finish(1.0))
    w.take(w.session.probabilities(93, [0.5], 1.0))
    w.answer()
    assert w.session.is_finished
    assert len(w.all(Final)) == 2
    assert tiles(w.session)


def test_text_on_the_screen_never_goes_back() -> None:
    """Text up to a pause is shown; then speech goes on, to be split in that pause."""
    config = replace(AGENT, max_utterance_s=5.0, split_search_s=2.5, refresh_s=1.5)
    words = say(1.0, "a b c d e f g h i") + say(4.0, "j k l m n o p q r s t u v w")
    w = world(words, config)
    quietest = 3.75 * RATE // 512
    while w.session.received_at < 9 * RATE:
        start = w.session.received_at
        w.now_s = (start + 512) / RATE
        w.take(w.session.receive(audio(start, start + 512), w.now_s))
        score = 0.01 if start // 512 == quietest else probability(words, start // 512)
        w.take(w.session.probabilities(start // 512, [score], w.now_s))
        w.answer()
    w.finish()
    split = w.all(SpeechStopped)[0]
    assert split.is_split
    assert split.end_at // 512 == quietest
    shown = [h.end_at for h in w.all(Hypothesis) if h.utterance_id == 1]
    assert shown == sorted(shown)
