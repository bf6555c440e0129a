"""Earlier speech before an utterance: what stays, what starts anew, and who is who."""

from dataclasses import replace

import numpy as np
import pytest
from support.live import CODEC, World, say

from moss_stream.errors import RequestFailed
from moss_stream.live.config import LiveConfig
from moss_stream.live.events import DecodeKind, Final, Relabel, SessionWarning
from moss_stream.live.session import LiveSession
from moss_stream.transcript.markup import parse_markup

CAPTIONS = LiveConfig.captions()
REBASING = replace(CAPTIONS, context_s=12.0, anchor_s=4.0, max_anchors=3)


def world(words, config=CAPTIONS, **options) -> World:
    return World(LiveSession(config, CODEC), words, **options)


def test_captions_put_earlier_speech_before_the_utterance() -> None:
    words = say(1.0, "one two.") + say(5.0, "three four.", "B") + say(9.0, "five six.", "A")
    w = world(words)
    w.feed_until(12)
    w.finish()
    finals = w.all(Final)
    assert [final.text for final in finals] == ["one two.", "three four.", "five six."]
    assert [final.segments[0].speaker for final in finals] == ["S01", "S02", "S01"]
    assert finals[1].segments[0].start_s == pytest.approx(5.0, abs=0.02)
    last = [request for request in w.requests if request.utterance_id == 3][0]
    forced = CODEC.decode(last.forced)
    assert "one two." in forced and "three four." in forced


def test_captions_wait_for_the_final_before() -> None:
    words = say(1.0, "one two.") + say(4.0, "three four.")
    w = world(words, latency_s=lambda: 100.0)
    w.feed_until(7)
    assert {request.utterance_id for request in w.requests} == {1}
    w.now_s = 200.0
    w.answer()
    w.finish()
    assert [final.utterance_id for final in w.all(Final)] == [1, 2]


def test_closed_windows_of_the_context_stay_the_same() -> None:
    words = [word for i in range(12) for word in say(1.0 + 6 * i, "a b c d e f g h i j.")]
    w = world(words)
    w.feed_until(75)
    later = [request for request in w.requests if len(request.windows) > 1]
    assert later
    first = later[0].windows[0]
    assert first.is_closed and len(first.samples) == 480000
    for request in later:
        np.testing.assert_array_equal(request.windows[0].samples, first.samples)


def test_speakers_keep_their_names_across_new_origins() -> None:
    order = "ABBABBAABABABBBAAB"
    words = [
        word
        for i, speaker in enumerate(order)
        for word in say(1.0 + 5 * i, f"w{i} b c d e f.", speaker)
    ]
    w = world(words, config=REBASING)
    w.feed_until(95)
    w.finish()
    names = {"A": "S01", "B": "S02"}
    finals = w.all(Final)
    assert [final.segments[0].speaker for final in finals] == [names[s] for s in order]
    assert [final.text.split()[0] for final in finals] == [f"w{i}" for i in range(len(order))]
    for request in w.of_kind(DecodeKind.EAGER):
        known = parse_markup(CODEC.decode(request.forced))
        assert known.repairs == ()
        ends = [0.0] + [segment.end_s for segment in known.segments]
        assert all(a <= s.start_s + 0.01 for a, s in zip(ends, known.segments, strict=False))
    assert max(sum(len(x.samples) for x in r.windows) for r in w.requests) < 24 * 16000


def test_session_says_when_a_speaker_cannot_be_carried_over() -> None:
    words = say(1.0, "no.", "B") + [w for i in range(6) for w in say(4 + 5 * i, "a b c d e f g.")]
    w = world(words, config=REBASING)
    w.feed_until(35)
    warnings = [event for event in w.all(SessionWarning) if event.code == "speaker_dropped"]
    assert len(warnings) == 1
    assert warnings[0].message.startswith("S01")


def test_merged_speakers_are_told_and_renamed() -> None:
    words = say(1.0, "one two.") + say(5.0, "three four.", "B") + say(9.0, "five.", "B")
    w = world(words)
    w.feed_until(8)
    w.take(w.session.merge_speakers("S02", "S01"))
    w.feed_until(12)
    w.finish()
    assert w.all(Relabel) == [Relabel("S02", "S01")]
    assert [f.segments[0].speaker for f in w.all(Final)] == ["S01", "S02", "S01"]


def test_context_starts_anew_after_a_broken_output() -> None:
    words = say(1.0, "one two.") + say(5.0, "three four.")
    w = world(words)
    answer = w.decoder.ids
    w.decoder.ids = lambda r, base: answer(r, base)[:-3] if r.utterance_id == 1 else answer(r, base)
    w.feed_until(8)
    w.finish()
    first, second = w.all(Final)
    assert first.warnings
    assert second.text == "three four."
    assert all(not r.forced for r in w.of_kind(DecodeKind.EAGER))


def test_speaker_of_a_broken_output_is_not_taken_for_the_next_one() -> None:
    words = say(1.0, "a b c d e.") + say(5.0, "f.", "B") + say(9.0, "g h.", "C")
    w = world(words)
    answer = w.decoder.ids
    w.decoder.ids = lambda r, base: answer(r, base)[:-3] if r.utterance_id == 2 else answer(r, base)
    w.feed_until(12)
    w.finish()
    assert [final.segments[0].speaker for final in w.all(Final)] == ["S01", "S02", "S03"]


def test_context_starts_anew_after_a_failure() -> None:
    words = say(1.0, "too short.") + say(5.0, "three four.") + say(9.0, "five.")
    w = world(
        words,
        faults=lambda r: RequestFailed("no") if r.utterance_id == 2 else None,
    )
    w.feed_until(12)
    w.finish()
    forced = {r.utterance_id: CODEC.decode(r.forced) for r in w.of_kind(DecodeKind.EAGER)}
    assert "short" in forced[2]
    assert forced[3] == ""
