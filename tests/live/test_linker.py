"""New speakers who are known ones: the model is asked, and what it says is told."""

from __future__ import annotations

from dataclasses import replace

from support.live import CODEC, FakeDecoder, World, committed_only_grows, say, tiles

from moss_stream.errors import EngineStopped, QueueFull, RequestFailed
from moss_stream.live.config import LiveConfig
from moss_stream.live.events import DecodeKind, Final, Relabel, SessionWarning
from moss_stream.live.session import LiveSession
from moss_stream.transcript.markup import parse_markup

CAPTIONS = LiveConfig.captions()
WORDS = [
    *say(1.0, "a b c d e."),
    *say(5.0, "f g h i j.", "A again"),
    *say(9.0, "k l m n o.", "A again"),
    *say(13.0, "p q r s t."),
]


def world(words=WORDS, *, same=("A again",), config=CAPTIONS, **options) -> World:
    """One whose model takes the speakers in `same` for A when it hears them side by side."""
    w = World(LiveSession(config, CODEC), words, **options)
    by_ear = FakeDecoder([replace(x, speaker="A") if x.speaker in same else x for x in words])
    usual = w.decoder.ids
    w.decoder.ids = lambda request, base: (
        by_ear.ids(request, base) if request.kind is DecodeKind.LINK else usual(request, base)
    )
    return w


def names(w: World) -> list[str]:
    return [final.segments[0].speaker for final in w.all(Final)]


def test_speaker_with_two_names_gets_one() -> None:
    w = world()
    w.feed_until(16)
    w.finish()
    assert w.all(Relabel) == [Relabel("S02", "S01")]
    assert names(w) == ["S01", "S02", "S01", "S01"]
    asked = w.of_kind(DecodeKind.LINK)
    known = [parse_markup(CODEC.decode(request.forced)).segments for request in asked]
    # Both ways: a model that errs seldom does so twice.
    assert [segment.text for (segment,) in known] == ["a b c d e.", "f g h i j."]
    assert all(len(request.windows) == 1 for request in asked)
    assert tiles(w.session)


def test_speakers_who_differ_keep_their_names() -> None:
    w = world(same=())
    w.feed_until(16)
    w.finish()
    assert w.all(Relabel) == []
    assert names(w) == ["S01", "S02", "S02", "S01"]
    assert len(w.of_kind(DecodeKind.LINK)) == 1


def test_names_do_not_depend_on_how_late_answers_come() -> None:
    finals = []
    for latency_s in (0.0, 0.3, 3.0):
        w = world(latency_s=lambda latency_s=latency_s: latency_s)
        w.feed_until(16)
        w.finish()
        assert committed_only_grows(w.events)
        finals.append((w.finals(), w.all(Relabel)))
    assert finals[0] == finals[1] == finals[2]


def test_speech_goes_on_when_nobody_can_be_compared() -> None:
    w = world(faults=lambda r: RequestFailed("no") if r.kind is DecodeKind.LINK else None)
    w.feed_until(16)
    w.finish()
    (warning,) = w.all(SessionWarning)
    assert warning.code == "speaker_not_compared"
    assert names(w) == ["S01", "S02", "S02", "S01"]


def test_speech_does_not_wait_for_an_engine_without_room() -> None:
    w = world(faults=lambda r: QueueFull("full") if r.kind is DecodeKind.LINK else None)
    w.feed_until(16)
    w.finish()
    assert len(w.of_kind(DecodeKind.LINK)) == 1
    assert len(w.all(Final)) == 4


def test_speaker_who_comes_back_after_many_others_is_known() -> None:
    words = [x for i in range(8) for x in say(1.0 + 4 * i, "a b c d e f.", f"P{i}")]
    words += say(33.0, "g h i j k l.", "A again") + say(37.0, "m n o p q.", "A again")
    words[:6] = say(1.0, "a b c d e f.")
    w = world(words, config=replace(CAPTIONS, context_s=24.0, anchor_s=2.0, max_anchors=4))
    w.feed_until(41)
    w.finish()
    (relabel,) = w.all(Relabel)
    assert relabel.replaced_by == names(w)[0]
    assert names(w)[-2:] == [relabel.speaker, names(w)[0]]


def test_speakers_who_take_turns_are_compared_once() -> None:
    words = [x for i in range(28) for x in say(1.0 + 3 * i, "a b c d e.", f"P{i % 7}")]
    w = world(words, same=(), config=replace(CAPTIONS, context_s=1000.0))
    w.feed_until(90)
    w.finish()
    assert len(w.of_kind(DecodeKind.LINK)) == 6 * 7 / 2
    assert len(w.all(Final)) == 28


def test_question_is_asked_again_when_the_engine_restarts() -> None:
    failures = iter([EngineStopped("restarting")])
    w = world(faults=lambda r: next(failures, None) if r.kind is DecodeKind.LINK else None)
    w.feed_until(16)
    w.finish()
    assert w.all(Relabel) == [Relabel("S02", "S01")]
    assert w.all(SessionWarning) == []


def test_answer_about_speakers_that_somebody_has_merged_is_passed_over() -> None:
    w = world(latency_s=lambda: 0.5)
    while not w.of_kind(DecodeKind.LINK):
        w.feed(1600)
    w.take(w.session.merge_speakers("S02", "S01"))
    w.feed_until(16)
    w.finish()
    assert w.all(Relabel) == [Relabel("S02", "S01")]
    assert names(w) == ["S01", "S02", "S01", "S01"]


def test_agents_compare_nobody() -> None:
    w = World(LiveSession(LiveConfig.agent(), CODEC), WORDS)
    w.feed_until(16)
    w.finish()
    assert w.of_kind(DecodeKind.LINK) == []
