"""One microphone's live session as changes of its room: a pure translator.

Utterances of the session become entries of the room. What the session leaves without a final, as
when its client is gone or a decode fails, settles with the words that were shown, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moss_stream.captions.clock import StreamClock
from moss_stream.captions.room import Change, Entry, Room
from moss_stream.live.events import (
    Event,
    Failed,
    Final,
    Gap,
    Hypothesis,
    Relabel,
    SpeechStarted,
)
from moss_stream.types import Segment


class Publisher:
    """Writes one session into a room.

    Args:
        room: The room.
        participant: Whose microphone it is.
        is_shared: Whether several people speak into it, who are then told apart by their voices.
        prefix: Of the entries' ids, unique in the room.
    """

    def __init__(self, room: Room, participant: str, is_shared: bool, prefix: str) -> None:
        self.clock = StreamClock()
        """To be told when audio comes."""
        self._room = room
        self._participant = participant
        self._is_shared = is_shared
        self._prefix = prefix
        self._labels: dict[str, str] = {}
        """Labels of the session as those of the room."""
        self._starts: dict[int, int] = {}
        """First samples of utterances without their final text."""
        self._shown: dict[int, Hypothesis] = {}
        """Text of utterances without their final text."""

    def tell(self, event: Event) -> list[Change]:
        """Take an event of the session."""
        match event:
            case SpeechStarted():
                self._starts[event.utterance_id] = event.start_at
            case Hypothesis():
                return self._show(event)
            case Final():
                return self._settle(event)
            case Failed():
                return self._give_up(event.utterance_id)
            case Gap(reason="cleared"):
                taken_back = [uid for uid, at in self._starts.items() if at >= event.start_at]
                return [change for uid in taken_back for change in self._drop(uid)]
            case Relabel() if self._is_shared:
                return self._relabel(event.speaker, event.replaced_by)
        return []

    def leave(self) -> list[Change]:
        """The session is over."""
        return [change for uid in list(self._starts) for change in self._give_up(uid)]

    def _show(self, event: Hypothesis) -> list[Change]:
        before, after = event.committed_segments, event.partial_segments
        if not before and not after:
            return self._hide(event.utterance_id)
        self._shown[event.utterance_id] = event
        segments = self._segments((*before, *after), self._peek((*before, *after)))
        return [self._room.hear(self._entry(event.utterance_id, segments, len(before)))]

    def _settle(self, event: Final) -> list[Change]:
        segments = self._segments(event.segments, self._speaker)
        if not segments:
            return self._drop(event.utterance_id)
        self._forget(event.utterance_id)
        return [self._room.settle(self._entry(event.utterance_id, segments, len(segments)))]

    def _give_up(self, utterance_id: int) -> list[Change]:
        """Settle what was shown."""
        shown = self._shown.get(utterance_id)
        if shown is None:
            return self._drop(utterance_id)
        self._forget(utterance_id)
        heard = (*shown.committed_segments, *shown.partial_segments)
        segments = self._segments(heard, self._speaker)
        entry = self._entry(utterance_id, segments, len(segments), is_complete=False)
        return [self._room.settle(entry)]

    def _drop(self, utterance_id: int) -> list[Change]:
        changes = self._hide(utterance_id)
        self._forget(utterance_id)
        return changes

    def _hide(self, utterance_id: int) -> list[Change]:
        if self._shown.pop(utterance_id, None) is None:
            return []
        return [self._room.hear(self._entry(utterance_id, (), 0))]

    def _forget(self, utterance_id: int) -> None:
        self._starts.pop(utterance_id, None)
        self._shown.pop(utterance_id, None)

    def _relabel(self, speaker: str, replaced_by: str) -> list[Change]:
        label = self._labels.get(speaker)
        if label is None:
            return []
        stays = self._labels.setdefault(replaced_by, label)
        self._labels[speaker] = stays
        return self._room.relabel(label, stays)

    def _entry(
        self,
        utterance_id: int,
        segments: tuple[Segment, ...],
        num_committed: int,
        *,
        is_complete: bool = True,
    ) -> Entry:
        return Entry(
            id=f"{self._prefix}-{utterance_id}",
            participant=self._participant,
            is_shared=self._is_shared,
            segments=segments,
            num_committed=num_committed,
            is_complete=is_complete,
        )

    def _segments(
        self, heard: Sequence[Segment], speaker: Callable[[str], str]
    ) -> tuple[Segment, ...]:
        """The same with the room's times and speakers."""
        return tuple(
            Segment(
                start_s=self.clock.room_s(segment.start_s),
                end_s=self.clock.room_s(segment.end_s),
                speaker=speaker(segment.speaker),
                text=segment.text,
            )
            for segment in heard
        )

    def _speaker(self, label: str) -> str:
        """Who a label of the session is."""
        if not self._is_shared:
            return self._participant
        if label not in self._labels:
            self._labels[label] = self._room.new_label()
        return self._labels[label]

    def _peek(self, heard: Sequence[Segment]) -> Callable[[str], str]:
        """Who labels are, without giving new ones out: a partial may be wrong about voices."""
        if not self._is_shared:
            return self._speaker
        labels = dict(self._labels)
        for segment in heard:
            if segment.speaker not in labels:
                num_new = len(labels) - len(self._labels)
                labels[segment.speaker] = self._room.next_label(num_new)
        return labels.__getitem__
