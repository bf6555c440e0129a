from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import StateError
from moss_stream.live.config import LiveConfig, to_samples
from moss_stream.live.endpoint import (
    Endpoint,
    Endpointer,
    EndpointEvent,
    Hint,
    Onset,
    Pause,
    Resume,
    SplitLikely,
    text_hint,
)

FRAME = 512
CONFIG = LiveConfig()


def frames(*stretches: tuple[float, float]) -> list[float]:
    """Probabilities of stretches given as (seconds, probability)."""
    return [p for seconds, p in stretches for _ in range(round(seconds * 16000 / FRAME))]


def push_all(endpointer: Endpointer, scores: Sequence[float], first: int = 0) -> list:
    events: list[EndpointEvent] = []
    for index, score in enumerate(scores, start=first):
        events += endpointer.push(index * FRAME, (index + 1) * FRAME, score)
    return events


def test_endpointer_gives_an_utterance_with_pre_roll_and_tail() -> None:
    events = push_all(Endpointer(CONFIG), frames((1.024, 0.1), (1.024, 0.9), (1.024, 0.1)))
    onset, pause, endpoint = events
    assert onset == Onset(16384 - to_samples(CONFIG.pre_roll_s))
    assert pause == Pause(32768, 32768 + to_samples(CONFIG.pause_s))
    assert endpoint == Endpoint(32768, pause.end_at, is_split=False)


def test_endpointer_starts_no_utterance_before_the_session() -> None:
    assert push_all(Endpointer(CONFIG), frames((0.2, 0.9)))[0] == Onset(0)


def test_endpointer_takes_a_click_for_a_noise() -> None:
    assert push_all(Endpointer(CONFIG), frames((1, 0.1), (0.064, 0.9), (1, 0.1))) == []


def test_endpointer_goes_on_after_a_pause() -> None:
    events = push_all(Endpointer(CONFIG), frames((1, 0.9), (0.3, 0.1), (0.5, 0.9)))
    assert [type(event) for event in events] == [Onset, Pause, Resume]


def test_endpointer_says_nothing_of_a_gap_between_words() -> None:
    events = push_all(Endpointer(CONFIG), frames((1, 0.9), (0.1, 0.1), (0.5, 0.9)))
    assert [type(event) for event in events] == [Onset]


def silence_needed_s(hint: Hint | None) -> float:
    endpointer = Endpointer(CONFIG)
    push_all(endpointer, frames((1.024, 0.9), (0.032, 0.1)))
    if hint is not None:
        endpointer.hint(hint)
    for index in range(33, 1000):
        events = endpointer.push(index * FRAME, (index + 1) * FRAME, 0.1)
        if any(isinstance(event, Endpoint) for event in events):
            return (index + 1 - 32) * FRAME / 16000
    raise AssertionError("no endpoint")


def test_endpoint_comes_earlier_after_a_sentence_and_later_within_a_phrase() -> None:
    frame_s = FRAME / 16000
    for hint, needed_s in [
        (None, CONFIG.endpoint_s),
        (Hint.NONE, CONFIG.endpoint_s),
        (Hint.SENTENCE_END, CONFIG.endpoint_min_s),
        (Hint.MID_PHRASE, CONFIG.endpoint_max_s),
    ]:
        assert needed_s <= silence_needed_s(hint) < needed_s + frame_s + 1e-9


def test_hint_is_forgotten_when_speech_resumes() -> None:
    endpointer = Endpointer(CONFIG)
    push_all(endpointer, frames((1.024, 0.9), (0.256, 0.1)))
    endpointer.hint(Hint.SENTENCE_END)
    events = push_all(endpointer, frames((0.256, 0.9), (0.448, 0.1)), first=40)
    assert not any(isinstance(event, Endpoint) for event in events)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("That is all.", Hint.SENTENCE_END),
        ("真的吗？", Hint.SENTENCE_END),
        ("and then,", Hint.MID_PHRASE),
        ("well...", Hint.MID_PHRASE),
        ("I went to the", Hint.MID_PHRASE),
        ("ok", Hint.NONE),
        ("", Hint.NONE),
    ],
)
def test_text_hint_reads_the_end(text: str, hint: Hint) -> None:
    assert text_hint(text) is hint


@pytest.mark.parametrize(("quiet_s", "told"), [(24.1, True), (26.9, True), (27.3, False)])
def test_long_speech_is_split_at_its_quietest_recent_point(quiet_s: float, told: bool) -> None:
    scores = frames((40, 0.9))
    quiet = round(quiet_s * 16000 / FRAME)
    scores[quiet] = 0.6
    events = push_all(Endpointer(CONFIG), scores)
    at = quiet * FRAME + FRAME // 2
    likely = [SplitLikely(at)] if told else []  # too late to be decoded before the split
    assert events == [Onset(0), *likely, Endpoint(at, at, is_split=True), Onset(at)]


def test_likely_split_is_told_when_it_has_been_the_quietest_for_a_while() -> None:
    scores = frames((24.5, 0.9))
    first, second, third = (round(at * 16000 / FRAME) for at in (25.0, 26.0, 26.2))
    scores += [0.91] * (875 + 40 - len(scores))
    scores[first], scores[second], scores[third] = 0.7, 0.65, 0.6
    endpointer = Endpointer(CONFIG)
    told = []
    for index, score in enumerate(scores):
        for event in endpointer.push(index * FRAME, (index + 1) * FRAME, score):
            if isinstance(event, SplitLikely):
                told.append((index, (event.end_at - FRAME // 2) // FRAME))
            elif isinstance(event, Endpoint):
                assert event.end_at == third * FRAME + FRAME // 2
    assert [at for _, at in told][-2:] == [first, third]
    assert all((index - at) * FRAME >= 0.5 * 16000 - FRAME for index, at in told)


def test_utterance_ends_in_a_pause_at_its_longest_even_without_endpoints() -> None:
    manual = CONFIG.with_manual_endpoints()
    events = push_all(Endpointer(manual), frames((10, 0.9), (60, 0.1)))
    assert [type(event) for event in events] == [Onset, Pause, Endpoint]


def test_flush_counts_unconfirmed_speech() -> None:
    endpointer = Endpointer(CONFIG)
    push_all(endpointer, frames((1.024, 0.1), (0.064, 0.9)))
    assert [type(event) for event in endpointer.flush(17000)] == [Onset, Endpoint]


def test_flush_of_silence_leaves_the_pre_roll_to_the_next_utterance() -> None:
    endpointer = Endpointer(CONFIG)
    push_all(endpointer, frames((1.024, 0.1)))
    assert endpointer.flush(16384) == ()
    assert push_all(endpointer, frames((0.3, 0.9)), first=32)[0].start_at < 16384


def test_endpointer_refuses_frames_out_of_order() -> None:
    endpointer = Endpointer(CONFIG)
    endpointer.push(512, 1024, 0.1)
    with pytest.raises(StateError):
        endpointer.push(512, 1024, 0.1)


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.05, 0.4, 0.9])), max_size=60),
    st.sampled_from([CONFIG, LiveConfig(max_utterance_s=2.0, split_search_s=0.5)]),
)
def test_utterances_are_disjoint_ordered_and_hold_all_lasting_speech(
    stretches: list[tuple[int, float]], config: LiveConfig
) -> None:
    scores = [p for count, p in stretches for _ in range(count)]
    endpointer = Endpointer(config)
    events = push_all(endpointer, scores)
    events += endpointer.flush(len(scores) * FRAME)
    starts = [event.start_at for event in events if isinstance(event, Onset)]
    ends = [event.end_at for event in events if isinstance(event, Endpoint)]
    assert len(starts) == len(ends)
    edges = [edge for pair in zip(starts, ends, strict=True) for edge in pair]
    assert edges == sorted(edges)
    # Two split pieces touch; what a length limit allows is one frame and a pause more.
    longest = to_samples(config.max_utterance_s + config.pause_s) + FRAME
    for start, end in zip(starts, ends, strict=True):
        assert 0 < end - start <= longest
    spoken = [i for i in range(len(scores) - 2) if min(scores[i : i + 3]) >= 0.9]
    for index in spoken:
        middle = index * FRAME + FRAME // 2
        assert any(a <= middle < b for a, b in zip(starts, ends, strict=True))
