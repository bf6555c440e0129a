from __future__ import annotations

import asyncio
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import numpy as np
import openai
import orjson
import pytest
from starlette.applications import Starlette
from support.http import serving
from support.media import wav_bytes

from moss_stream import Transcriber
from moss_stream.errors import AudioTooLong, Cancelled, EngineStopped, RequestFailed
from moss_stream.server import files
from moss_stream.server.file_job import FileJob
from moss_stream.server.metrics import Metrics
from moss_stream.server.problems import EXCEPTION_HANDLERS
from moss_stream.server.uploads import FORM_BYTES, FileLimits, Upload
from moss_stream.types import Segment, Transcript

DATA = Path(__file__).parents[1] / "data"
CLIP = DATA / "mix_duo_002.flac"
SEGMENTS = (Segment(0.5, 1.0, "S01", "one"), Segment(1.0, 2.0, "S02", "two"))
TRANSCRIPT = Transcript(
    segments=SEGMENTS,
    markup="",
    token_ids=(),
    duration_s=2.0,
    coverage_end_s=2.0,
    truncated=False,
)


def silent_wav(seconds: float, rate_hz: int = 16_000) -> bytes:
    return wav_bytes(np.zeros(round(seconds * rate_hz), dtype=np.int16), rate_hz)


class Scripted:
    """A transcriber whose answers are known, and which waits after a segment when told to."""

    transcript = TRANSCRIPT

    def __init__(self, error: Exception | None = None, max_audio_s: float = 100.0) -> None:
        self.description = {"max_audio_s": max_audio_s}
        self.error = error
        self.options: dict[str, Any] = {}
        self.entered = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()
        self.closed = threading.Event()

    def stream(self, source: Any, sample_rate: int | None = None, **options: Any) -> Scripted:
        self.options = options
        return self

    def __iter__(self) -> Iterator[Segment]:
        yield SEGMENTS[0]
        self.entered.set()
        assert self.may_go.wait(20)
        if self.error:
            raise self.error
        yield SEGMENTS[1]

    def close(self) -> None:
        self.closed.set()
        self.may_go.set()


@contextmanager
def files_app(transcriber: Any, limits: FileLimits | None = None) -> Iterator[httpx.Client]:
    metrics = Metrics()
    routes = files.routes(transcriber, limits, metrics=metrics) + metrics.routes()
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
    with serving(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def post(client: httpx.Client, file: bytes = b"", **fields: Any) -> httpx.Response:
    return client.post(
        "/v1/audio/transcriptions",
        files={"file": ("a.wav", file or silent_wav(1))},
        data=fields,
    )


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with Transcriber(device="cpu", dtype="float32") as transcriber:
        with files_app(transcriber) as http:
            with openai.OpenAI(
                base_url=f"{http.base_url}/v1", api_key="none", max_retries=0
            ) as sdk:
                yield sdk


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[httpx.Client, Scripted]]:
    transcriber = Scripted()
    with files_app(transcriber, FileLimits(max_bytes=100_000, max_audio_s=3)) as http:
        yield http, transcriber


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


def test_options_reach_the_transcriber(scripted: tuple[httpx.Client, Scripted]) -> None:
    client, transcriber = scripted

    answer = post(
        client,
        **{"keywords[]": ["Ada", "Bo"], "hotwords": "x, y"},
        prompt="p",
        temperature="0.5",
        max_new_tokens="7",
        model="mini",
    )

    assert answer.status_code == 200
    assert answer.headers["X-Moss-Truncated"] == "false"
    assert transcriber.options == {
        "prompt": "p",
        "hotwords": ("x", "y", "Ada", "Bo"),
        "temperature": 0.5,
        "max_new_tokens": 7,
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "xml"}, "response_format"),
        ({"temperature": "warm"}, "temperature"),
        ({"max_new_tokens": "1.5"}, "max_new_tokens"),
        ({"stream": "maybe"}, "stream"),
        ({"language": "<en>"}, "language"),
        ({"timestamp_granularities[]": "letter"}, "timestamp_granularities"),
        ({"prompt": ["a", "b"]}, "prompt"),
    ],
)
def test_wrong_field_is_refused(
    scripted: tuple[httpx.Client, Scripted], fields: dict[str, Any], param: str
) -> None:
    answer = post(scripted[0], **fields)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_message")


@pytest.mark.parametrize(
    ("file", "status", "code"),
    [
        (b"not audio", 415, "unsupported_audio"),
        (silent_wav(0.05), 415, "unsupported_audio"),
        (b"\0" * 100_001, 413, "message_too_large"),
        (b"\0" * (100_001 + FORM_BYTES), 413, "message_too_large"),
        (silent_wav(4, 8000), 413, "audio_too_long"),
    ],
    ids=["not audio", "too short", "too large", "far too large", "too long"],
)
@pytest.mark.parametrize("stream", ["false", "true"])
def test_wrong_file_is_refused(
    scripted: tuple[httpx.Client, Scripted], file: bytes, status: int, code: str, stream: str
) -> None:
    answer = post(scripted[0], file, stream=stream)

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code


def test_upload_of_unknown_size_is_refused_on_the_way(
    scripted: tuple[httpx.Client, Scripted],
) -> None:
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    sent = []

    def body() -> Iterator[bytes]:
        yield head
        for number in range(400):
            sent.append(number)
            yield b"\0" * (1 << 16)

    answer = scripted[0].post(
        "/v1/audio/transcriptions",
        content=body(),
        headers={"Content-Type": "multipart/form-data; boundary=x"},
    )

    assert answer.status_code == 413
    assert "100000 bytes" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "request_",
    [
        {"data": {"model": "whisper-1"}},
        {"json": {"file": "a.wav"}},
        {"files": {"model": (None, "whisper-1")}},
        {"files": {"file": (None, "text")}},
        {"files": [("file", ("a", b"1")), ("file", ("b", b"2"))]},
        {
            "content": b"--x\r\nrubbish",
            "headers": {"Content-Type": "multipart/form-data; boundary=x"},
        },
        {"content": b"", "headers": {"Content-Type": "multipart/form-data"}},
    ],
    ids=["form", "json", "no file", "not a file", "two files", "rubbish", "no boundary"],
)
def test_wrong_form_is_refused(
    scripted: tuple[httpx.Client, Scripted], request_: dict[str, Any]
) -> None:
    answer = scripted[0].post("/v1/audio/transcriptions", **request_)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_unknown_model_is_refused_with_the_list(scripted: tuple[httpx.Client, Scripted]) -> None:
    answer = post(scripted[0], model="gpt-9")

    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "whisper-1" in error["message"]


def test_translation_is_refused_with_the_reason(scripted: tuple[httpx.Client, Scripted]) -> None:
    answer = scripted[0].post("/v1/audio/translations", files={"file": ("a.wav", silent_wav(1))})

    assert answer.status_code == 400
    assert "translation is not served" in answer.json()["error"]["message"]


def test_wrong_method_has_the_same_shape(scripted: tuple[httpx.Client, Scripted]) -> None:
    answer = scripted[0].get("/v1/audio/transcriptions")

    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineStopped("draining"), 503, "engine_stopped"),
        (RequestFailed("failed"), 500, "request_failed"),
        (AudioTooLong("too long"), 413, "audio_too_long"),
    ],
)
def test_failure_of_the_engine_has_its_status(error: Exception, status: int, code: str) -> None:
    with files_app(Scripted(error)) as client:
        answer = post(client)
        metrics = client.get("/metrics").text

    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert ("Retry-After" in answer.headers) == (status == 503)
    assert f'moss_file_requests_total{{status="{status}"}} 1.0' in metrics


def test_failure_within_a_stream_is_its_last_event() -> None:
    with files_app(Scripted(RequestFailed("failed"))) as client:
        answer = post(client, stream="true")

    events = [orjson.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-1]]
    assert [event.get("type") for event in events] == ["transcript.text.delta", None]
    assert events[-1]["error"]["code"] == "request_failed"


def test_one_recording_too_many_is_told_when_to_come_back() -> None:
    transcriber = Scripted()
    transcriber.may_go.clear()
    answers = []
    with files_app(transcriber, FileLimits(max_requests=1)) as client:
        first = threading.Thread(target=lambda: answers.append(post(client)))
        first.start()
        assert transcriber.entered.wait(20)
        refused = post(client)
        transcriber.may_go.set()
        first.join()
        answers.append(post(client))

    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("stream", ["false", "true"])
def test_client_that_leaves_ends_its_work(stream: str) -> None:
    transcriber = Scripted()
    transcriber.may_go.clear()
    with files_app(transcriber, FileLimits(max_requests=1)) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
            request = client.build_request(
                "POST",
                "/v1/audio/transcriptions",
                files={"file": ("a.wav", silent_wav(1))},
                data={"stream": stream},
            )
            head = [
                b"POST /v1/audio/transcriptions HTTP/1.1",
                *map(b": ".join, request.headers.raw),
            ]
            connection.sendall(b"\r\n".join([*head, b"", request.read()]))
            assert transcriber.entered.wait(20)

        assert transcriber.closed.wait(20)


def test_cancelled_work_says_so_and_leaves_its_place() -> None:
    transcriber = Scripted()
    transcriber.may_go.clear()
    ended = []

    async def cancel_at_a_segment() -> None:
        file = io.BytesIO(silent_wav(1))
        upload = Upload(file, None, "json", False, "", None, (), 0.0, None, ())
        job = FileJob(upload, transcriber, 60.0, Metrics())
        job.start(anyio.CapacityLimiter(1), lambda: ended.append(True))
        await job.segments.receive()
        job.cancel()
        await job.transcript()

    with pytest.raises(Cancelled):
        asyncio.run(cancel_at_a_segment())
    assert ended == [True]
    assert transcriber.closed.is_set()


def test_warning_has_a_header_where_the_body_has_no_place_for_it(client: openai.OpenAI) -> None:
    answer = client.audio.transcriptions.with_raw_response.create(
        model="whisper-1", file=("a.wav", silent_wav(1)), response_format="srt"
    )

    assert (answer.text, answer.headers["X-Moss-Warnings"]) == ("", "no_speech")
