"""Transcripts of recordings in the shapes of OpenAI's `/v1/audio/transcriptions`.

On top of OpenAI's fields there are `truncated`, `coverage_end` and `warnings`, and `speaker` in the
segments of `verbose_json`. Speakers are the model's own labels, `S01`, `S02`, in every format, and
empty where it gave none; `diarized_json` does not rename them to `A`, `B`. The model gives no
probabilities, so `avg_logprob` and `no_speech_prob` are always 0; `tokens` is always empty.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

import orjson

from moss_stream.transcript.formats import render
from moss_stream.types import Segment, Transcript

SEEK_WINDOW_S: Final = 30
"""Windows that `seek` counts in, seconds, at 100 frames a second."""

Shape = Callable[[Transcript, str, float], str]


def write_transcript(
    transcript: Transcript, response_format: str, *, language: str, temperature: float
) -> tuple[str, str]:
    """Write a transcript.

    Args:
        transcript: What was said.
        response_format: One of `RESPONSE_FORMATS`.
        language: What `verbose_json` says is spoken; the model does not tell.
        temperature: What `verbose_json` says was used.

    Returns:
        The body and its media type.
    """
    shape, media_type = _SHAPES[response_format]
    return shape(transcript, language, temperature), media_type


def transcript_headers(transcript: Transcript) -> dict[str, str]:
    """Response headers that tell of defects, for formats whose body cannot."""
    headers = {"X-Moss-Truncated": "true" if transcript.truncated else "false"}
    if transcript.warnings:
        codes = dict.fromkeys(warning.code for warning in transcript.warnings)
        headers["X-Moss-Warnings"] = ", ".join(codes)
    return headers


def segment_events(segment: Segment, index: int, *, diarized: bool) -> list[dict[str, Any]]:
    """What a stream says about a segment that closed.

    The deltas of a stream join to the words of its segments, one space between them.
    """
    delta = {"type": "transcript.text.delta", "delta": (" " if index else "") + segment.text}
    if not diarized:
        return [delta]
    return [{**delta, "segment_id": _segment_id(index)}, _diarized(segment, index)]


def done_event(transcript: Transcript) -> dict[str, Any]:
    """Last event of a stream that went well; its text is the one to keep where a loop was cut."""
    return {"type": "transcript.text.done", "text": transcript.text, **_findings(transcript)}


def server_sent(event: dict[str, Any]) -> bytes:
    """Write an event for the wire."""
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _findings(transcript: Transcript) -> dict[str, Any]:
    """Our fields on top of OpenAI's, and the usage in tokens."""
    return {
        "usage": _token_usage(transcript),
        "truncated": transcript.truncated,
        "coverage_end": _seconds(transcript.coverage_end_s),
        "warnings": [
            {"code": warning.code, "message": warning.message, "at": warning.at_s}
            for warning in transcript.warnings
        ],
    }


def _json(transcript: Transcript, _language: str, _temperature: float) -> str:
    return _dump({"text": transcript.text, **_findings(transcript)})


def _text(transcript: Transcript, _language: str, _temperature: float) -> str:
    return transcript.text + "\n"


def _srt(transcript: Transcript, _language: str, _temperature: float) -> str:
    return render(transcript, "srt")


def _vtt(transcript: Transcript, _language: str, _temperature: float) -> str:
    return render(transcript, "vtt")


def _verbose(transcript: Transcript, language: str, temperature: float) -> str:
    return _dump(
        {
            "task": "transcribe",
            "language": language,
            "duration": _seconds(transcript.duration_s),
            "text": transcript.text,
            "segments": [
                {
                    "id": index,
                    "seek": int(segment.start_s // SEEK_WINDOW_S) * SEEK_WINDOW_S * 100,
                    "start": _seconds(segment.start_s),
                    "end": _seconds(segment.end_s),
                    "text": segment.text,
                    "tokens": [],
                    "temperature": temperature,
                    "avg_logprob": 0.0,
                    "compression_ratio": _compression_ratio(segment.text),
                    "no_speech_prob": 0.0,
                    "speaker": segment.speaker,
                }
                for index, segment in enumerate(transcript.segments)
            ],
            **_findings(transcript),
            "usage": {"type": "duration", "seconds": _seconds(transcript.duration_s)},
        }
    )


def _diarized_json(transcript: Transcript, _language: str, _temperature: float) -> str:
    return _dump(
        {
            "task": "transcribe",
            "duration": _seconds(transcript.duration_s),
            "text": transcript.text,
            "segments": [_diarized(segment, i) for i, segment in enumerate(transcript.segments)],
            **_findings(transcript),
        }
    )


def _diarized(segment: Segment, index: int) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": _segment_id(index),
        "start": _seconds(segment.start_s),
        "end": _seconds(segment.end_s),
        "speaker": segment.speaker,
        "text": segment.text,
    }


def _segment_id(index: int) -> str:
    return f"seg_{index}"


def _token_usage(transcript: Transcript) -> dict[str, Any]:
    usage = transcript.usage
    return {
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "input_token_details": {
            "audio_tokens": usage.audio_tokens,
            "text_tokens": usage.prompt_tokens - usage.audio_tokens,
        },
    }


def _compression_ratio(text: str) -> float:
    """How well a text compresses. Source: openai/whisper `utils.compression_ratio`."""
    data = text.encode()
    return round(len(data) / len(zlib.compress(data)), 3)


def _seconds(value: float) -> float:
    return round(value, 3)


def _dump(value: dict[str, Any]) -> str:
    return orjson.dumps(value).decode()


_SHAPES: dict[str, tuple[Shape, str]] = {
    "json": (_json, "application/json"),
    "text": (_text, "text/plain"),
    "srt": (_srt, "application/x-subrip"),
    "vtt": (_vtt, "text/vtt"),
    "verbose_json": (_verbose, "application/json"),
    "diarized_json": (_diarized_json, "application/json"),
}
RESPONSE_FORMATS: Final = tuple(_SHAPES)
"""Names of the shapes."""
