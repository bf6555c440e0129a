"""The state of one room: what was said, by whom, and under which names. A pure state machine.

An utterance is first a partial, which every newer one replaces and nobody keeps, and then settled.
What settles, and every correction of it, is a change with the next revision; a room is made again
from its changes alone. So a room that was stored equals the one that was there.

Speakers are participants who have a microphone of their own, by their name, and the voices that
share one, by labels `S01`, `S02`, ... that this room gives out and never gives out twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from moss_stream.errors import InvalidMessage, NotFound
from moss_stream.types import Segment

Json = dict[str, Any]

ENTRY: Final = "room.entry"
PARTIAL: Final = "room.partial"
RELABELLED: Final = "room.relabelled"
RENAMED: Final = "room.renamed"
MAX_NAME_CHARACTERS: Final = 64
MAX_REPLAY: Final = 512
"""Last changes kept to be told again to whoever was away; for more there is the snapshot."""

_LABEL = re.compile(r"S(\d+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """One utterance, settled or not; times are seconds of the room."""

    id: str
    """Unique in the room."""
    participant: str
    """Whose microphone heard it."""
    is_shared: bool
    """Whether several people speak into that microphone."""
    segments: tuple[Segment, ...]
    """What was said; none takes a partial away."""
    num_committed: int
    """Of the first segments, those that will not change before it settles."""
    is_complete: bool = True
    """Whether nothing is missing at its end."""

    def wire(self) -> Json:
        """As viewers read it and as it is stored, without `committed`."""
        return {
            "entry": self.id,
            "participant": self.participant,
            "shared": self.is_shared,
            "start": round(min((s.start_s for s in self.segments), default=0.0), 3),
            "end": round(max((s.end_s for s in self.segments), default=0.0), 3),
            "segments": [
                {
                    "speaker": segment.speaker,
                    "start": round(segment.start_s, 3),
                    "end": round(segment.end_s, 3),
                    "text": segment.text,
                }
                for segment in self.segments
            ],
            "complete": self.is_complete,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """Something that viewers are told."""

    kind: str
    """`ENTRY`, `PARTIAL`, `RELABELLED` or `RENAMED`."""
    body: Json
    """Its fields; never modified."""
    revision: int | None = None
    """Its number among the changes that are kept, from 1; None for a partial."""

    def message(self) -> Json:
        """As viewers read it."""
        number = {} if self.revision is None else {"revision": self.revision}
        return {"type": self.kind, **number, **self.body}


class Room:
    """One room.

    Args:
        changes: All that were kept of it, in order.
    """

    def __init__(self, changes: Iterable[Change] = ()) -> None:
        self.revision = 0
        """Number of the newest change."""
        self.names: dict[str, str] = {}
        """Given to speakers."""
        self._entries: dict[str, Json] = {}
        self._partials: dict[str, Json] = {}
        self._speakers: set[str] = set()
        self._replaced: dict[str, str] = {}
        self._num_labels = 0
        self._last: deque[Change] = deque(maxlen=MAX_REPLAY)
        for change in changes:
            self._apply(change)

    # What is said.

    def hear(self, entry: Entry) -> Change:
        """Take the newest text of an utterance that is not settled."""
        body = self._body(entry)
        for index, segment in enumerate(body["segments"]):
            segment["committed"] = index < entry.num_committed
        if entry.segments:
            self._partials[entry.id] = body
        else:
            self._partials.pop(entry.id, None)
        return Change(PARTIAL, body)

    def settle(self, entry: Entry) -> Change:
        """Take the text of an utterance that does not change any more."""
        return self._change(ENTRY, self._body(entry))

    # Who says it.

    def new_label(self) -> str:
        """A label for a voice that has none."""
        self._num_labels += 1
        return _label(self._num_labels)

    def next_label(self, skip: int) -> str:
        """The label that would be given out after `skip` others."""
        return _label(self._num_labels + 1 + skip)

    def relabel(self, speaker: str, replaced_by: str) -> list[Change]:
        """Two labels have turned out to be one person; the name of either stays."""
        speaker, replaced_by = self._resolve(speaker), self._resolve(replaced_by)
        if speaker == replaced_by:
            return []
        name = None if replaced_by in self.names else self.names.get(speaker)
        changes = [self._change(RELABELLED, {"speaker": speaker, "replaced_by": replaced_by})]
        if name is not None:
            changes.append(self._change(RENAMED, {"speaker": replaced_by, "name": name}))
        return changes

    def merge(self, speaker: str, same_as: str) -> list[Change]:
        """Somebody knows that two speakers are one person; see `relabel`.

        Raises:
            NotFound: Nobody here is called so.
            InvalidMessage: They are one already.
        """
        one = self._known(speaker, "speaker")
        if one == self._known(same_as, "same_as"):
            raise InvalidMessage(f"same_as is {same_as!r}, the speaker itself", field="same_as")
        return self.relabel(speaker, same_as)

    def rename(self, speaker: str, name: str | None) -> Change:
        """Give a speaker a name, or take it away.

        Raises:
            NotFound: Nobody here is called so.
            InvalidMessage: The name cannot be shown.
        """
        speaker = self._known(speaker, "speaker")
        checked = None if name is None else check_name(name, "name")
        return self._change(RENAMED, {"speaker": speaker, "name": checked})

    # What is told.

    def entries(self) -> list[Json]:
        """All that is settled, by time, with the labels of now."""
        return sorted(self._entries.values(), key=lambda body: (body["start"], body["entry"]))

    def partials(self) -> list[Json]:
        """What is being said."""
        return list(self._partials.values())

    def since(self, revision: int) -> list[Change] | None:
        """The changes after `revision`; None if some are not kept or it has never been."""
        if not self.revision - len(self._last) <= revision <= self.revision:
            return None
        return [change for change in self._last if (change.revision or 0) > revision]

    # How it works.

    def _body(self, entry: Entry) -> Json:
        """An entry as it is told, with labels that have not been replaced."""
        body = entry.wire()
        for segment in body["segments"]:
            segment["speaker"] = self._resolve(segment["speaker"])
        return body

    def _change(self, kind: str, body: Json) -> Change:
        change = Change(kind, body, self.revision + 1)
        self._apply(change)
        return change

    def _apply(self, change: Change) -> None:
        body = change.body
        if change.kind == ENTRY:
            self._take_entry(body)
        elif change.kind == RELABELLED:
            self._take_relabel(body["speaker"], body["replaced_by"])
        elif body["name"] is None:
            self.names.pop(body["speaker"], None)
        else:
            self.names[body["speaker"]] = body["name"]
        self.revision = change.revision or self.revision
        self._last.append(change)

    def _take_entry(self, body: Json) -> None:
        self._partials.pop(body["entry"], None)
        self._entries[body["entry"]] = body
        for segment in body["segments"]:
            self._speakers.add(segment["speaker"])
            if body["shared"] and (match := _LABEL.fullmatch(segment["speaker"])):
                self._num_labels = max(self._num_labels, int(match[1]))

    def _take_relabel(self, speaker: str, replaced_by: str) -> None:
        self._replaced[speaker] = replaced_by
        self._speakers.discard(speaker)
        self._speakers.add(replaced_by)
        self.names.pop(speaker, None)
        for bodies in (self._entries, self._partials):
            for entry_id, body in bodies.items():
                bodies[entry_id] = _relabelled(body, speaker, replaced_by)

    def _known(self, speaker: str, field: str) -> str:
        """The label of a speaker who is here."""
        label = self._resolve(speaker)
        if label not in self._speakers:
            raise NotFound(f"no speaker is called {label[:80]!r} in this room", field=field)
        return label

    def _resolve(self, speaker: str) -> str:
        while speaker in self._replaced:
            speaker = self._replaced[speaker]
        return speaker


def check_participant(name: str) -> str:
    """The name of a participant.

    Raises:
        InvalidMessage: It cannot be shown, or it looks like a label.
    """
    name = check_name(name, "participant")
    if _LABEL.fullmatch(name):
        raise InvalidMessage(
            f"participant is {name!r}; names of this form are labels of unknown voices",
            field="participant",
        )
    return name


def check_name(name: str, field: str) -> str:
    """A name without white space around it.

    Raises:
        InvalidMessage: It cannot be shown on one line, or is too long.
    """
    name = name.strip()
    if not (name and name.isprintable() and len(name) <= MAX_NAME_CHARACTERS):
        shown = name[: MAX_NAME_CHARACTERS + 1]
        raise InvalidMessage(
            f"{field} is {shown!r}, expected 1 to {MAX_NAME_CHARACTERS} printable characters",
            field=field,
        )
    return name


def _label(number: int) -> str:
    return f"S{number:02}"


def _relabelled(body: Json, speaker: str, replaced_by: str) -> Json:
    """The same entry with one speaker replaced; the very same if that speaker is not in it."""
    if all(segment["speaker"] != speaker for segment in body["segments"]):
        return body
    segments = [
        segment | {"speaker": replaced_by} if segment["speaker"] == speaker else segment
        for segment in body["segments"]
    ]
    return body | {"segments": segments}
