"""A room as its viewers see it, and the people around it."""

from __future__ import annotations

from typing import Any

from moss_stream.captions.room import Entry
from moss_stream.types import Segment


class Board:
    """What a viewer shows: messages taken one after the other, as the README says."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.partials: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}
        self.revision = 0
        self.messages: list[dict[str, Any]] = []

    def take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        match message["type"]:
            case "room.snapshot":
                self.entries = _by_id(message["entries"])
                self.partials = _by_id(message["partials"])
                self.names = dict(message["names"])
            case "room.resumed":
                self.partials = _by_id(message["partials"])
            case "room.partial" if not message["segments"]:
                self.partials.pop(message["entry"], None)
            case "room.partial":
                assert message["entry"] not in self.entries
                self.partials[message["entry"]] = _entry(message)
            case "room.entry":
                assert message["entry"] not in self.entries
                self.partials.pop(message["entry"], None)
                self.entries[message["entry"]] = _entry(message)
            case "room.relabelled":
                self.names.pop(message["speaker"], None)
                for shown in (*self.entries.values(), *self.partials.values()):
                    for segment in shown["segments"]:
                        if segment["speaker"] == message["speaker"]:
                            segment["speaker"] = message["replaced_by"]
            case "room.renamed" if message["name"] is None:
                self.names.pop(message["speaker"], None)
            case "room.renamed":
                self.names[message["speaker"]] = message["name"]
        if message["type"] not in ("room.snapshot", "room.resumed") and "revision" in message:
            assert message["revision"] == self.revision + 1, "a change is missing or came twice"
        self.revision = message.get("revision", self.revision)

    def lines(self) -> list[tuple[str, str]]:
        """Names and words of all that is settled, by time."""
        shown = sorted(self.entries.values(), key=lambda entry: (entry["start"], entry["entry"]))
        return [
            (self.names.get(segment["speaker"], segment["speaker"]), segment["text"])
            for entry in shown
            for segment in entry["segments"]
        ]


def _by_id(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["entry"]: _entry(entry) for entry in entries}


def _entry(message: dict[str, Any]) -> dict[str, Any]:
    fields = {name: message[name] for name in message if name not in ("type", "revision")}
    return fields | {"segments": [dict(segment) for segment in message["segments"]]}


def said(entry_id: str, *lines: tuple[str, str], at_s: float = 0.0, shared: bool = True) -> Entry:
    """An utterance: a second for each speaker and words."""
    segments = tuple(
        Segment(at_s + index, at_s + index + 1, speaker, text)
        for index, (speaker, text) in enumerate(lines)
    )
    return Entry(entry_id, "Desk" if shared else "Ana", shared, segments, len(segments))
