"""A request with a recording: its form, read under limits, and what the form asks for.

The file goes to disk beyond a megabyte while it is read, fields stay in memory; both are bounded.
Fields that are not known are passed over, as clients send what other servers understand; known
ones that cannot be honoured become warnings of the transcript.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, TypeVar

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from moss_stream.config import check_range
from moss_stream.errors import InvalidMessage, MessageTooLarge
from moss_stream.server.protocols.openai_files import RESPONSE_FORMATS
from moss_stream.types import TranscriptWarning

MAX_FIELDS: Final = 64
MAX_FIELD_BYTES: Final = 1 << 20
FORM_BYTES: Final = 4 << 20
"""What a body may have on top of the largest file: fields and boundaries."""
STALL_S: Final = 30.0
"""Longest pause of a client that is sending, seconds."""
LINGER_S: Final = 5.0
"""How long a refused body is read on, seconds."""

_LANGUAGE = re.compile(r"[A-Za-z]{2,}(?:[-_][A-Za-z0-9]+)*")

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class FileLimits:
    """What is accepted over HTTP.

    Raises:
        ConfigError: A value is outside its bounds.
    """

    max_bytes: int = 200 << 20
    """Largest file, bytes."""
    max_audio_s: float = 2 * 3600.0
    """Longest recording, seconds."""
    max_requests: int = 16
    """Recordings received or worked on at the same time; more are refused for the moment."""

    def __post_init__(self) -> None:
        check_range("max_bytes", self.max_bytes, 1 << 10, 1 << 40)
        check_range("max_audio_s", self.max_audio_s, 1, 86_400)
        check_range("max_requests", self.max_requests, 1, 1024)


@dataclass(frozen=True, slots=True)
class Upload:
    """A recording, and what to do with it."""

    file: BinaryIO
    """To be read and closed."""
    model: str | None
    """Name of the model asked for."""
    response_format: str
    stream: bool
    language: str
    """Empty when not given."""
    prompt: str | None
    hotwords: tuple[str, ...]
    temperature: float
    max_new_tokens: int | None
    warnings: tuple[TranscriptWarning, ...]
    """What is asked for and cannot be had."""

    @property
    def options(self) -> dict[str, Any]:
        """Arguments for the transcriber."""
        return {
            "prompt": self.prompt,
            "hotwords": self.hotwords,
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
        }


async def read_upload(request: Request, max_bytes: int) -> Upload:
    """Read a multipart form with one file.

    Args:
        request: Its body is not read yet.
        max_bytes: Largest file.

    Raises:
        MessageTooLarge: The file or the form is too large; found before it is read to its end.
        InvalidMessage: It is not such a form, or a field is wrong.
    """
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidMessage(
            "expected multipart/form-data with a file in the field 'file'", field="file"
        )
    body = _Body(request, max_bytes + FORM_BYTES)
    parser = MultiPartParser(
        request.headers,
        body.chunks(),
        max_files=4,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        await body.discard()
        raise InvalidMessage(f"the form cannot be read: {error.message}") from error
    except _TooLarge as error:
        await body.discard()
        raise _too_large(error.num_bytes, max_bytes) from None
    try:
        return _upload(_Fields(form), max_bytes)
    except BaseException:
        await form.close()
        raise


async def discard_body(request: Request, max_bytes: int) -> None:
    """Read a body that is refused for a while and keep nothing of it.

    A connection closed on unread data is reset, and the answer may be lost with it.
    """
    await _Body(request, max_bytes).discard()


class _TooLarge(Exception):
    def __init__(self, num_bytes: int) -> None:
        super().__init__(num_bytes)
        self.num_bytes = num_bytes


class _Body:
    """A request's body: at most `max_bytes`, coming without long pauses."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        self._headers = request.headers
        self._stream = request.stream()
        self._max_bytes = max_bytes

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        stated = self._headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > self._max_bytes:
            raise _TooLarge(int(stated))
        num_bytes = 0
        while (chunk := await self._next()) is not None:
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise _TooLarge(num_bytes)
            yield chunk

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(STALL_S):
                return await anext(self._stream, None)
        except TimeoutError as error:
            raise InvalidMessage(f"nothing of the body came for {STALL_S:g} s") from error
        except ClientDisconnect as error:
            raise InvalidMessage("the connection closed before the body was there") from error

    async def discard(self) -> None:
        left = self._max_bytes
        try:
            async with asyncio.timeout(LINGER_S):
                async for chunk in self._stream:
                    left -= len(chunk)
                    if left < 0:
                        return
        except (TimeoutError, ClientDisconnect):
            return


def _too_large(num_bytes: int, max_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"the upload has {num_bytes} bytes or more, the largest file allowed is {max_bytes} bytes",
        field="file",
    )


def _upload(fields: _Fields, max_bytes: int) -> Upload:
    file = fields.file(max_bytes)
    response_format = fields.text("response_format") or "json"
    if response_format not in RESPONSE_FORMATS:
        raise InvalidMessage(
            f"response_format is {response_format!r}, allowed are {', '.join(RESPONSE_FORMATS)}",
            field="response_format",
        )
    language = fields.text("language") or ""
    if language and not _LANGUAGE.fullmatch(language):
        raise InvalidMessage(f"language is {language!r}, expected a code like en", field="language")
    return Upload(
        file=file,
        model=fields.text("model"),
        response_format=response_format,
        stream=fields.flag("stream"),
        language=language,
        prompt=fields.text("prompt"),
        hotwords=(*fields.words("hotwords"), *fields.words("keywords")),
        temperature=fields.number("temperature", float, 0.0),
        max_new_tokens=fields.number("max_new_tokens", int, None),
        warnings=tuple(_refusals(fields)),
    )


def _refusals(fields: _Fields) -> list[TranscriptWarning]:
    """Say what the form asks for and the model does not do."""
    granularities = fields.all("timestamp_granularities")
    for value in granularities:
        if value not in ("segment", "word"):
            raise InvalidMessage(
                f"timestamp_granularities has {value!r}, allowed are segment, word",
                field="timestamp_granularities",
            )
    refused = []
    if fields.text("language") or fields.all("languages"):
        refused.append(("language_ignored", "the model writes the language it hears"))
    if "word" in granularities:
        refused.append(("word_times_unavailable", "the model gives times of segments only"))
    if "logprobs" in fields.all("include"):
        refused.append(("logprobs_unavailable", "probabilities of tokens are not given"))
    if fields.all("known_speaker_names"):
        refused.append(("known_speakers_ignored", "speakers are numbered, not recognised"))
    return [TranscriptWarning(code, message) for code, message in refused]


class _Fields:
    """A form by the names of its fields; a list may come as `name` or as `name[]`."""

    def __init__(self, form: FormData) -> None:
        self._form = form

    def file(self, max_bytes: int) -> BinaryIO:
        files = self._form.getlist("file")
        if len(files) != 1 or not isinstance(files[0], UploadFile):
            raise InvalidMessage(
                f"the form has {len(files)} fields 'file', expected one that is a file with a name",
                field="file",
            )
        num_bytes = files[0].size or 0
        if num_bytes > max_bytes:
            raise _too_large(num_bytes, max_bytes)
        return files[0].file

    def all(self, name: str) -> list[str]:
        values = [*self._form.getlist(name), *self._form.getlist(f"{name}[]")]
        texts = [value.strip() for value in values if isinstance(value, str)]
        if len(texts) != len(values):
            raise InvalidMessage(f"{name} is a file, expected text", field=name)
        return [text for text in texts if text]

    def text(self, name: str) -> str | None:
        values = self.all(name)
        if len(values) > 1:
            raise InvalidMessage(f"{name} is given {len(values)} times", field=name)
        return values[0] if values else None

    def words(self, name: str) -> tuple[str, ...]:
        words = (word.strip() for value in self.all(name) for word in value.split(","))
        return tuple(word for word in words if word)

    def flag(self, name: str) -> bool:
        value = (self.text(name) or "false").lower()
        if value not in ("true", "false", "1", "0"):
            raise InvalidMessage(f"{name} is {value!r}, allowed are true, false", field=name)
        return value in ("true", "1")

    def number(self, name: str, kind: Callable[[str], Number], default: Any) -> Any:
        value = self.text(name)
        if value is None:
            return default
        try:
            return kind(value)
        except ValueError as error:
            raise InvalidMessage(f"{name} is {value!r}, expected a number", field=name) from error
