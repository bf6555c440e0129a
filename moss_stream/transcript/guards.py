"""Known defects of the model, found in its output: loops, impossible times, an early end.

Pure functions; what they change they report, what they find they return.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from moss_stream.types import Segment, TranscriptWarning

MAX_LOOP_PERIOD = 64
"""Longest repetition that is looked for, tokens: a long segment with its times and speaker."""
MIN_LOOP_TOKENS = 24
"""Least tokens a loop fills. People say "no no no no" and "ha ha ha ha", but not for that long."""
MIN_LOOP_REPEATS = 4
"""Least number of repetitions, whatever their length."""
MIN_LOOP_SEGMENTS = 4
"""Least number of segments in a row with the same words that are a loop."""
TIME_STEP_S = 0.08
"""Resolution of the model's times, one audio token: an end that is beyond the audio by less than
this is rounding, moved without a word."""
MAX_LETTERS_PER_S = 40
"""Letters and digits a second of one speaker: auctioneers stay below 30."""
SPARE_LETTERS = 80
"""Letters that a speaker may be ahead of the time they take: the model's times are not exact."""
COVERAGE_MARGIN_S = 2.0
"""Speech after the last segment that is not yet a sign of missing text, seconds: the end time of a
segment and the edges of detected speech are not more exact, and a cough counts as speech."""


def loop_length(token_ids: Sequence[int]) -> int:
    """Count the tokens at the end that only repeat what came before them.

    Cheap enough for every token: as long as nothing repeats, it compares one token for each period.

    Args:
        token_ids: Output so far.

    Returns:
        How many trailing tokens to drop so that one copy of the repetition is left; 0 without a
        loop.
    """
    num_tokens = len(token_ids)
    for period in range(1, min(MAX_LOOP_PERIOD + 1, num_tokens)):
        needed = max(MIN_LOOP_TOKENS, MIN_LOOP_REPEATS * period)
        if needed > num_tokens:
            continue
        repeated = period
        while (
            repeated < num_tokens and token_ids[-1 - repeated] == token_ids[-1 - repeated + period]
        ):
            repeated += 1
        if repeated >= needed:
            return repeated - period
    return 0


def check_times(
    segments: Iterable[Segment], duration_s: float
) -> tuple[tuple[Segment, ...], tuple[TranscriptWarning, ...]]:
    """Move times that lie beyond the audio to its end; words are never dropped for their times.

    Args:
        segments: Any segments.
        duration_s: Duration of the audio, seconds.

    Returns:
        The segments within 0..`duration_s`, and a `time_beyond_audio` for each that was moved by
        more than rounding.
    """
    checked: list[Segment] = []
    warnings: list[TranscriptWarning] = []
    for segment in segments:
        if segment.end_s > duration_s + TIME_STEP_S:
            edge = "starts" if segment.start_s > duration_s + TIME_STEP_S else "ends"
            time_s = segment.start_s if edge == "starts" else segment.end_s
            message = f"a segment {edge} at {time_s:.2f} s, the audio ends at {duration_s:.2f} s"
            warnings.append(
                TranscriptWarning("time_beyond_audio", message, min(segment.start_s, duration_s))
            )
        start_s, end_s = min(segment.start_s, duration_s), min(segment.end_s, duration_s)
        checked.append(replace(segment, start_s=start_s, end_s=end_s))
    return tuple(checked), tuple(warnings)


def repeated_segments(
    segments: Iterable[Segment],
) -> tuple[tuple[Segment, ...], tuple[TranscriptWarning, ...]]:
    """Cut runs of segments that say the same again and again to the first one.

    Words count without case and punctuation, whoever says them.

    Returns:
        The segments left, and a `loop_cut` for each run, at the first segment that was cut.
    """
    kept: list[Segment] = []
    warnings: list[TranscriptWarning] = []
    run: list[Segment] = []

    def end_run() -> None:
        if len(run) < MIN_LOOP_SEGMENTS:
            kept.extend(run)
            return
        kept.append(run[0])
        message = f"{len(run)} segments in a row say the same, {len(run) - 1} are cut"
        warnings.append(TranscriptWarning("loop_cut", message, run[1].start_s))

    for segment in segments:
        if run and _words(segment.text) != _words(run[0].text):
            end_run()
            run = []
        run.append(segment)
    end_run()
    return tuple(kept), tuple(warnings)


def check_pace(segments: Iterable[Segment]) -> tuple[TranscriptWarning, ...]:
    """Find more words than anybody could say in their time: the model ran away.

    Nothing is left out, since it may be the times that are wrong.

    Args:
        segments: In any order of speakers, each speaker's in order of time.

    Returns:
        A `too_fast` where a speaker gets further ahead than `SPARE_LETTERS`.
    """
    warnings: list[TranscriptWarning] = []
    ahead: dict[str, float] = {}
    """Speaker -> letters that found no time so far."""
    ended_s: dict[str, float] = {}
    for segment in segments:
        speaker = segment.speaker
        before = ahead.get(speaker, 0.0)
        passed_s = max(0.0, segment.end_s - ended_s.get(speaker, segment.start_s))
        letters = sum(letter.isalnum() for letter in segment.text)
        ahead[speaker] = max(0.0, before + letters - MAX_LETTERS_PER_S * passed_s)
        ended_s[speaker] = max(segment.end_s, ended_s.get(speaker, 0.0))
        if ahead[speaker] > SPARE_LETTERS >= before:
            message = f"from {segment.start_s:.2f} s on more is written than anybody could say"
            warnings.append(TranscriptWarning("too_fast", message, segment.start_s))
    return tuple(warnings)


def _words(text: str) -> str:
    """The text without case and punctuation; the text itself if nothing else is in it."""
    return "".join(letter for letter in text.casefold() if letter.isalnum()) or text


@dataclass(frozen=True, slots=True)
class Coverage:
    """How far a transcript reaches."""

    end_s: float
    """End of the last segment if truncated, else the duration of the audio, seconds."""
    truncated: bool
    """Whether more than `COVERAGE_MARGIN_S` of speech lies after the last segment."""
    missing_s: float
    """Speech after the last segment, seconds."""


def coverage(
    segments: Iterable[Segment], speech: Iterable[tuple[float, float]], duration_s: float
) -> Coverage:
    """Compare a transcript with where there is speech.

    Args:
        segments: The transcript.
        speech: Start and end of each stretch of speech, seconds, not overlapping.
        duration_s: Duration of the audio, seconds.
    """
    last_s = min(max((segment.end_s for segment in segments), default=0.0), duration_s)
    missing_s = sum(
        max(0.0, min(end_s, duration_s) - max(start_s, last_s)) for start_s, end_s in speech
    )
    truncated = missing_s > COVERAGE_MARGIN_S
    return Coverage(last_s if truncated else duration_s, truncated, missing_s)
