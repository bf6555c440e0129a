"""A room's transcript as a file: txt, srt, vtt and json, with the names of its speakers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import orjson

from moss_stream.captions.room import Json, Room
from moss_stream.errors import InvalidMessage
from moss_stream.transcript.formats import render
from moss_stream.types import Segment, Transcript

MEDIA_TYPES: Final = {
    "txt": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
    "json": "application/json",
}
"""Of each format."""

_RENDERED = {"txt": "text", "srt": "srt", "vtt": "vtt"}


def check_format(format: str) -> str:
    """The name of a format.

    Raises:
        InvalidMessage: There is none of this name.
    """
    if format not in MEDIA_TYPES:
        known = ", ".join(MEDIA_TYPES)
        raise InvalidMessage(f"format is {format[:20]!r}, allowed are {known}", field="format")
    return format


def prepare_export(room: Room, about: Json, format: str) -> Callable[[], str]:
    """Take what is settled now.

    Args:
        room: The room.
        about: What `json` begins with.
        format: One of `MEDIA_TYPES`.

    Returns:
        Writes it, which takes seconds for a room of days: meant for a thread of its own, while
        the room goes on.
    """
    entries = room.entries()
    names = dict(room.names)
    about = about | {"revision": room.revision}
    return lambda: _write(entries, names, about, format)


def _write(entries: list[Json], names: Mapping[str, str], about: Json, format: str) -> str:
    lines = [
        {
            "start": segment["start"],
            "end": segment["end"],
            "speaker": segment["speaker"],
            "name": names.get(segment["speaker"], segment["speaker"]),
            "text": segment["text"],
            "participant": body["participant"],
            "entry": body["entry"],
            "complete": body["complete"],
        }
        for body in entries
        for segment in body["segments"]
    ]
    lines.sort(key=lambda line: line["start"])
    if format == "json":
        whole = about | {"names": names, "segments": lines}
        return orjson.dumps(whole, option=orjson.OPT_APPEND_NEWLINE).decode()
    end_s = max((line["end"] for line in lines), default=0.0)
    transcript = Transcript(
        segments=tuple(
            Segment(line["start"], line["end"], line["name"], line["text"]) for line in lines
        ),
        markup="",
        token_ids=(),
        duration_s=end_s,
        coverage_end_s=end_s,
        truncated=False,
    )
    return render(transcript, _RENDERED[format])
