"""Transcripts of recordings over HTTP, as the SDK of OpenAI reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.files import files_app, silent_wav

from moss_stream import Transcriber

DATA = Path(__file__).parents[1] / "data"
CLIP = DATA / "mix_duo_002.flac"


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Transcriber(device="cpu", dtype="float32") as transcriber:
        with files_app(transcriber) as http:
            with openai.OpenAI(
                base_url=f"{http.base_url}/v1", api_key="none", max_retries=0
            ) as sdk:
                yield sdk


@pytest.fixture(scope="module")
def diarized(client: openai.OpenAI) -> Any:
    return client.audio.transcriptions.create(
        model="gpt-4o-transcribe-diarize", file=CLIP, response_format="diarized_json"
    )


def test_diarized_json_has_speakers_and_times(diarized: Any) -> None:
    assert diarized.task == "transcribe"
    assert {segment.speaker for segment in diarized.segments} == {"S01", "S02"}
    assert all(0 <= s.start <= s.end <= diarized.duration for s in diarized.segments)
    assert [segment.id for segment in diarized.segments][:2] == ["seg_0", "seg_1"]
    assert diarized.text == " ".join(segment.text for segment in diarized.segments)
    assert diarized.usage.total_tokens == diarized.usage.input_tokens + diarized.usage.output_tokens
    assert not diarized.truncated
    assert all(warning.keys() == {"code", "message", "at"} for warning in diarized.warnings)


def test_json_has_the_same_words(client: openai.OpenAI, diarized: Any) -> None:
    answer: Any = client.audio.transcriptions.create(model="whisper-1", file=CLIP)

    assert answer.text == diarized.text
    assert answer.coverage_end > 0
    assert answer.usage.input_token_details.audio_tokens > 0


def test_text_has_the_words_alone(client: openai.OpenAI, diarized: Any) -> None:
    answer = client.audio.transcriptions.create(
        model="whisper-1", file=CLIP, response_format="text"
    )

    assert answer == diarized.text + "\n"


@pytest.mark.parametrize(("name", "head"), [("srt", "1\n00:00:"), ("vtt", "WEBVTT\n\n00:00:")])
def test_subtitles_name_speakers(client: openai.OpenAI, name: Any, head: str) -> None:
    answer = client.audio.transcriptions.create(model="whisper-1", file=CLIP, response_format=name)

    assert answer.startswith(head)
    assert "S02" in answer


def test_verbose_json_has_every_field_of_whisper(client: openai.OpenAI, diarized: Any) -> None:
    answer: Any = client.audio.transcriptions.create(
        model="whisper-1",
        file=CLIP,
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )

    assert [segment.text for segment in answer.segments] == [s.text for s in diarized.segments]
    assert [segment.speaker for segment in answer.segments] == [
        segment.speaker for segment in diarized.segments
    ]
    first = answer.segments[0]
    assert (first.id, first.seek, first.tokens, first.avg_logprob) == (0, 0, [], 0.0)
    assert answer.usage.type == "duration"
    assert answer.usage.seconds == answer.duration == diarized.duration


def test_stream_has_deltas_that_join_to_the_text(client: openai.OpenAI, diarized: Any) -> None:
    events = list(client.audio.transcriptions.create(model="whisper-1", file=CLIP, stream=True))

    assert {event.type for event in events[:-1]} == {"transcript.text.delta"}
    assert events[-1].type == "transcript.text.done"
    assert "".join(event.delta for event in events[:-1]) == events[-1].text == diarized.text
    assert events[-1].usage.total_tokens == diarized.usage.total_tokens
    assert (events[-1].truncated, events[-1].warnings) == (False, diarized.warnings)


def test_stream_of_diarized_json_has_segments(client: openai.OpenAI, diarized: Any) -> None:
    stream: Any = client.audio.transcriptions.create(
        model="whisper-1", file=CLIP, response_format="diarized_json", stream=True
    )
    segments = [event for event in stream if event.type == "transcript.text.segment"]

    assert [(s.id, s.speaker, s.text) for s in segments] == [
        (segment.id, segment.speaker, segment.text) for segment in diarized.segments
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_noise_has_no_words(client: openai.OpenAI, stream: Any) -> None:
    answer: Any = client.audio.transcriptions.create(
        model="whisper-1", file=DATA / "nospeech_002.flac", stream=stream
    )
    last = list(answer)[-1] if stream else answer

    assert last.text == ""


def test_fields_that_other_servers_know_are_accepted(client: openai.OpenAI) -> None:
    answer = client.audio.transcriptions.create(
        model="whisper-1",
        file=DATA / "asterisk_human_003.flac",
        chunking_strategy={"type": "server_vad", "threshold": 0.4},
        extra_body={"future_field": "x"},
    )

    assert answer.text


def test_what_cannot_be_had_is_said(client: openai.OpenAI) -> None:
    answer: Any = client.audio.transcriptions.create(
        model="whisper-1",
        file=DATA / "asterisk_human_003.flac",
        response_format="verbose_json",
        language="de",
        include=["logprobs"],
        timestamp_granularities=["word", "segment"],
    )

    assert answer.language == "de"
    assert [warning["code"] for warning in answer.warnings] == [
        "language_ignored",
        "word_times_unavailable",
        "logprobs_unavailable",
    ]


def test_warning_has_a_header_where_the_body_has_no_place_for_it(client: openai.OpenAI) -> None:
    answer = client.audio.transcriptions.with_raw_response.create(
        model="whisper-1", file=("a.wav", silent_wav(1)), response_format="srt"
    )

    assert (answer.text, answer.headers["X-Moss-Warnings"]) == ("", "no_speech")
