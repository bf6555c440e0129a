"""Outputs of an utterance as events: markup parsed, times and speakers those of the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from moss_stream.live.config import to_seconds
from moss_stream.live.events import Final, Hypothesis
from moss_stream.live.text import plain_text, split_segments
from moss_stream.live.timeline import Span, Timeline
from moss_stream.live.utterance import Answer, Utterance
from moss_stream.transcript.guards import check_pace
from moss_stream.transcript.markup import parse_markup
from moss_stream.types import Segment, TranscriptWarning

_COVERAGE_SLACK_S = 3.0
"""Speech without text at the end of an utterance that is worth a warning, seconds. The model stops
early now and then, and its end times are off by less than this."""
_TIME_GRID_S = 0.08
"""Steps of the model's times, seconds: a rounded end may lie past the audio by as much."""

Decode = Callable[[Sequence[int]], str]
Name = Callable[[str], str]


def session_segments(
    markup: str, timeline: Timeline, name: Name
) -> tuple[tuple[Segment, ...], tuple[TranscriptWarning, ...]]:
    """Parse the markup of the last utterance of `timeline`.

    Args:
        markup: Its own output, times in model time.
        timeline: Of the request, the utterance last.
        name: Gives a label's speaker.

    Returns:
        Segments with session times inside the utterance, and the repairs that were needed.
    """
    span = timeline.spans[-1]
    first_s, last_s = to_seconds(span.start_at), to_seconds(span.end_at)

    before_s = timeline.duration_s - to_seconds(len(span))

    def session_s(model_s: float) -> float:
        # A time before the utterance's own audio would lead to other speech: it is its start.
        return first_s if model_s <= before_s else min(timeline.session_s(model_s), last_s)

    parsed = parse_markup(markup, timeline.duration_s)
    segments = tuple(
        replace(
            segment,
            start_s=session_s(segment.start_s),
            end_s=session_s(segment.end_s),
            speaker=name(segment.speaker),
        )
        for segment in parsed.segments
    )
    repairs = tuple(
        repair if repair.at_s is None else replace(repair, at_s=session_s(repair.at_s))
        for repair in parsed.repairs
    )
    late = tuple(
        TranscriptWarning("time_past_audio", "a segment's end lies past the audio", last_s)
        for segment in parsed.segments
        if segment.end_s > timeline.duration_s + _TIME_GRID_S
    )
    return segments, (*repairs, *late)


def hypothesis_event(
    utterance: Utterance, end_at: int, lag: int, decode: Decode, peek: Name
) -> Hypothesis:
    """The text of a growing utterance, from its last output up to `end_at`.

    Args:
        utterance: With the output in `token_ids`.
        end_at: After the last sample it covers.
        lag: Samples received after that.
        decode: Token ids to text.
        peek: Gives a label's speaker.
    """
    timeline = utterance.base.timeline.followed_by(Span(utterance.start_at, end_at))
    markup = decode(utterance.token_ids)
    segments, _ = session_segments(markup, timeline, peek)
    text, committed = plain_text(markup), utterance.policy.committed_text
    before, after = split_segments(segments, len(committed))
    return Hypothesis(
        utterance_id=utterance.id,
        revision=utterance.revision,
        committed_text=committed,
        committed_segments=before,
        partial_text=text[len(committed) :],
        partial_segments=after,
        end_at=end_at,
        lag_s=to_seconds(lag),
    )


def final_event(
    utterance: Utterance, answer: Answer, decode: Decode, name: Name
) -> tuple[Final, bool]:
    """The text of an ended utterance.

    Returns:
        The event, and whether its output is whole and well formed, so that more can follow it.
    """
    span = Span(utterance.start_at, answer.end_at)
    timeline = utterance.base.timeline.followed_by(span)
    markup = decode(answer.token_ids)
    segments, repairs = session_segments(markup, timeline, name)
    given = tuple(
        warning if warning.at_s is None else replace(warning, at_s=timeline.session_s(warning.at_s))
        for warning in answer.warnings
    )
    final = Final(
        utterance_id=utterance.id,
        segments=segments,
        text=" ".join(segment.text for segment in segments if segment.text),
        start_at=span.start_at,
        end_at=span.end_at,
        is_revised=not plain_text(markup).startswith(utterance.policy.committed_text),
        warnings=(
            *given,
            *repairs,
            *check_pace(segments),
            *_coverage(segments, to_seconds(utterance.speech_end_at)),
        ),
        usage=answer.usage,
    )
    return final, answer.is_complete and not repairs


def _coverage(segments: Sequence[Segment], speech_end_s: float) -> tuple[TranscriptWarning, ...]:
    if not segments:
        message = "speech was heard, the model wrote no words"
        return (TranscriptWarning("no_text", message, None),)
    end_s = max(segment.end_s for segment in segments)
    if speech_end_s - end_s <= _COVERAGE_SLACK_S:
        return ()
    message = f"speech goes on to {speech_end_s:.1f} s, the text ends at {end_s:.1f} s"
    return (TranscriptWarning("text_ends_early", message, end_s),)
