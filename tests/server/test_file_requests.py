"""Requests for transcripts of recordings: what is refused, what fails, and who leaves."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import orjson
import pytest
from support.files import Scripted, files_app, post, silent_wav

from moss_stream.errors import AudioTooLong, Cancelled, EngineStopped, RequestFailed
from moss_stream.server.file_job import FileJob
from moss_stream.server.metrics import Metrics
from moss_stream.server.uploads import FORM_BYTES, FileLimits, Upload


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[httpx.Client, Scripted]]:
    transcriber = Scripted()
    with files_app(transcriber, FileLimits(max_bytes=100_000, max_audio_s=3)) as http:
        yield http, transcriber


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
