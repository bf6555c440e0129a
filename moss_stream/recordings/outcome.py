"""From an engine result to a transcript: parse, check against the audio, and say what was done."""

from __future__ import annotations

from collections.abc import Sequence

from moss_stream.engine.request import Result, StopReason
from moss_stream.transcript.guards import check_pace, check_times, coverage, repeated_segments
from moss_stream.transcript.markup import parse_markup
from moss_stream.types import Transcript, TranscriptWarning


def silent_transcript(duration_s: float, warnings: Sequence[TranscriptWarning]) -> Transcript:
    """The transcript of a recording in which nobody speaks: the model was not asked."""
    silence = TranscriptWarning("no_speech", "no speech was found, so the model was not asked")
    return Transcript(
        segments=(),
        markup="",
        token_ids=(),
        duration_s=duration_s,
        coverage_end_s=duration_s,
        truncated=False,
        warnings=(*warnings, silence),
    )


def raw_transcript(
    result: Result, markup: str, duration_s: float, warnings: Sequence[TranscriptWarning]
) -> Transcript:
    """The transcript as the model wrote it: nothing is cut or checked, only read.

    Reading damaged markup repairs it, which is reported like everything else.
    """
    parsed = parse_markup(markup, duration_s)
    return Transcript(
        segments=tuple(parsed.segments),
        markup=markup,
        token_ids=result.token_ids,
        duration_s=duration_s,
        coverage_end_s=max((segment.end_s for segment in parsed.segments), default=0.0),
        truncated=result.stop_reason is not StopReason.END,
        warnings=(*warnings, *parsed.repairs),
        usage=result.usage,
        timing=result.timing,
    )


def guarded_transcript(
    result: Result,
    markup: str,
    duration_s: float,
    warnings: Sequence[TranscriptWarning],
    speech: Sequence[tuple[float, float]],
) -> Transcript:
    """The transcript with the model's known defects cut, repaired and reported.

    Args:
        result: What the engine returned.
        markup: Its text.
        duration_s: Duration of the audio.
        warnings: What is already known to be wrong.
        speech: Regions in which somebody speaks, seconds.
    """
    parsed = parse_markup(markup, duration_s)
    notes = [*warnings, *parsed.repairs]
    segments, time_notes = check_times(parsed.segments, duration_s)
    segments, loop_notes = repeated_segments(segments)
    notes += [*time_notes, *loop_notes, *check_pace(segments)]
    if result.stop_reason is StopReason.LOOP:
        notes.append(TranscriptWarning("loop_cut", "the output repeated itself and was cut"))
    if result.stop_reason is StopReason.LENGTH:
        notes.append(
            TranscriptWarning(
                "output_limit", f"the output budget of {len(result.token_ids)} tokens is used up"
            )
        )
    reach = coverage(segments, speech, duration_s)
    if reach.truncated:
        notes.append(
            TranscriptWarning(
                "stopped_early",
                f"{reach.missing_s:.1f} s of speech after {reach.end_s:.1f} s are not transcribed",
                at_s=reach.end_s,
            )
        )
    return Transcript(
        segments=tuple(segments),
        markup=markup,
        token_ids=result.token_ids,
        duration_s=duration_s,
        coverage_end_s=reach.end_s,
        truncated=reach.truncated or result.stop_reason is StopReason.LENGTH,
        warnings=tuple(notes),
        usage=result.usage,
        timing=result.timing,
    )
