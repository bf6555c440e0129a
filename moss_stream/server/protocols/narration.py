"""What becomes of the live session's events: items, with their texts as they grow and settle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.live.events import (
    CommitDone,
    Event,
    Failed,
    Final,
    Finished,
    Gap,
    Hypothesis,
    Relabel,
    SessionWarning,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.server.protocols.commands import Progress
from moss_stream.server.protocols.settings import ServerVad, Settings
from moss_stream.server.protocols.turns import Turn, Turns, wire_segment

Message = dict[str, Any]

_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Numbering:
    """Makes the messages of one session and numbers them without holes."""

    def __init__(self) -> None:
        self.last = 0
        """Number of the newest message; the first has 1."""

    def message(self, kind: str, **fields: Any) -> Message:
        """The next message."""
        self.last += 1
        return {
            "type": kind,
            "event_id": f"event_{self.last}",
            **fields,
            "moss": {"seq": self.last},
        }

    def warning(self, code: str, message: str, item_id: str | None = None) -> Message:
        """Something to know that is no mistake."""
        item = {} if item_id is None else {"item_id": item_id}
        return self.message("moss.warning", code=code, message=message, **item)


class Narrator:
    """Tells what is heard, for one session.

    Args:
        numbering: Of all its messages.
        settings: What the session starts with; to be kept up to date.
        progress: Tells where the session stands now.
        to_input: Position at the model's rate to a position in the input.
        prefix: Of the item ids, unique to the session.
    """

    def __init__(
        self,
        numbering: Numbering,
        settings: Settings,
        progress: Callable[[], Progress],
        to_input: Callable[[int], int],
        prefix: str,
    ) -> None:
        self.settings = settings
        self.wants_finish = False
        """Whether the client is to be told that the session is finished."""
        self._message = numbering.message
        self._warning = numbering.warning
        self._progress = progress
        self._to_input = to_input
        self._turns = Turns(prefix)
        self._quiet_at: int | None = 0
        """Since when nobody speaks; None while somebody does or after the idle timeout."""

    @property
    def has_items(self) -> bool:
        """Whether an item was committed."""
        return self._turns.last_item_id is not None

    def tell(self, event: Event) -> Iterator[Message]:
        """Translate an event of the live session."""
        match event:
            case SpeechStarted():
                yield from self._speech_started(event)
            case SpeechStopped():
                yield from self._speech_stopped(event)
            case Hypothesis():
                yield from self._hypothesis(event)
            case Final():
                yield from self._final(event)
            case Failed():
                yield from self._failed(event)
            case CommitDone():
                yield from self._commit_done(event)
            case Gap():
                yield self._gap(event)
            case Relabel():
                yield self._message(
                    "moss.relabel", speaker=event.speaker, replaced_by=event.replaced_by
                )
            case SessionWarning():
                turn = None if event.utterance_id is None else self._turns.of(event.utterance_id)
                item_id = None if turn is None else turn.item_id
                yield self._warning(event.code, event.message, item_id)
            case Finished():
                yield from self._finished()

    def advance(self, progress: Progress) -> Iterator[Message]:
        """What silence brings about: the idle timeout, if the client wants one."""
        turns = self.settings.turns
        if not isinstance(turns, ServerVad) or turns.idle_timeout_ms is None:
            return
        if self._quiet_at is None:
            return
        if to_ms(progress.examined_at - self._quiet_at) < turns.idle_timeout_ms:
            return
        turn = self._turns.new()
        yield self._message(
            "input_audio_buffer.timeout_triggered",
            item_id=turn.item_id,
            audio_start_ms=to_ms(self._quiet_at),
            audio_end_ms=to_ms(progress.examined_at),
        )
        self._quiet_at = None
        yield from self._commit_turn(turn)

    def covered_at(self, progress: Progress) -> int:
        """Up to where all audio has some text, or is known to be silent."""
        oldest_at = self._turns.oldest_at()
        if oldest_at is None:
            return progress.examined_at
        return max(oldest_at, min(progress.decoded_at, progress.examined_at))

    def _speech_started(self, event: SpeechStarted) -> Iterator[Message]:
        self._quiet_at = None
        turn = self._turns.start(event)
        if self.settings.turns is not None and len(turn.pieces) == 1:
            yield self._message(
                "input_audio_buffer.speech_started",
                item_id=turn.item_id,
                audio_start_ms=to_ms(event.start_at),
            )

    def _speech_stopped(self, event: SpeechStopped) -> Iterator[Message]:
        self._quiet_at = event.end_at
        turn = self._turns.of(event.utterance_id)
        if turn is None or self.settings.turns is None:
            return
        yield self._message(
            "input_audio_buffer.speech_stopped",
            item_id=turn.item_id,
            audio_end_ms=to_ms(event.end_at if event.is_split else event.decided_at),
        )
        yield from self._commit_turn(turn)

    def _commit_turn(self, turn: Turn) -> Iterator[Message]:
        previous = self._turns.commit(turn)
        yield self._message(
            "input_audio_buffer.committed", item_id=turn.item_id, previous_item_id=previous
        )
        item = {
            "id": turn.item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        for kind in ("added", "done"):
            yield self._message(f"conversation.item.{kind}", item=item, previous_item_id=previous)
        yield from self._complete(turn)

    def _hypothesis(self, event: Hypothesis) -> Iterator[Message]:
        turn = self._turns.of(event.utterance_id)
        if turn is None:
            return
        turn.pieces[event.utterance_id].last = event
        yield from self._delta(turn)
        yield from self._snapshot(turn)

    def _final(self, event: Final) -> Iterator[Message]:
        turn = self._turns.of(event.utterance_id)
        if turn is None:
            return
        turn.pieces[event.utterance_id].last = event
        for warning in event.warnings:
            yield self._warning(warning.code, warning.message, turn.item_id)
        for segment in event.segments:
            turn.num_segments += 1
            yield self._message(
                f"{_TRANSCRIPTION}.segment",
                item_id=turn.item_id,
                content_index=0,
                id=f"seg_{turn.item_id.removeprefix('item_')}_{turn.num_segments}",
                **wire_segment(segment),
            )
        yield from self._delta(turn)
        yield from self._complete(turn)

    def _failed(self, event: Failed) -> Iterator[Message]:
        turn = self._turns.of(event.utterance_id)
        if turn is not None:
            turn.pieces[event.utterance_id].last = event
            yield from self._complete(turn)

    def _delta(self, turn: Turn) -> Iterator[Message]:
        if delta := turn.next_delta():
            yield self._message(
                f"{_TRANSCRIPTION}.delta", item_id=turn.item_id, content_index=0, delta=delta
            )

    def _snapshot(self, turn: Turn) -> Iterator[Message]:
        if not self.settings.snapshots:
            return
        turn.revision += 1
        progress = self._progress()
        yield self._message(
            "moss.hypothesis",
            item_id=turn.item_id,
            revision=turn.revision,
            committed_text=turn.committed,
            partial_text=turn.partial(),
            segments=turn.segments(),
            lag_ms=to_ms(progress.received_at - self.covered_at(progress)),
        )

    def _complete(self, turn: Turn) -> Iterator[Message]:
        """Tell the turn's outcome once it is there."""
        if not turn.is_done:
            return
        self._turns.forget(turn)
        failure = turn.failure
        if failure is not None:
            error = {
                "type": "server_error",
                "code": failure.error.code,
                "message": failure.error.message,
                "param": None,
            }
            yield self._message(
                f"{_TRANSCRIPTION}.failed", item_id=turn.item_id, content_index=0, error=error
            )
            return
        if turn.told != turn.text:
            yield self._warning(
                "text_revised", "the final text differs from the deltas told", turn.item_id
            )
        yield self._message(
            f"{_TRANSCRIPTION}.completed",
            item_id=turn.item_id,
            content_index=0,
            transcript=turn.text,
            usage=turn.usage(),
        )

    def _commit_done(self, event: CommitDone) -> Iterator[Message]:
        turn = self._turns.growing
        if turn is None:
            if event.utterance_id is not None:
                return  # the endpoint that the commit brought about has committed it
            if self.settings.turns is not None and self._turns.last_item_id is not None:
                return  # a commit right after one that silence brought about
            turn = self._turns.new()
        yield from self._commit_turn(turn)

    def _gap(self, event: Gap) -> Message:
        start_at = event.start_at
        if event.reason == "cleared":
            self._quiet_at = event.end_at
            dropped_at = self._turns.drop_before(event.end_at)
            start_at = start_at if dropped_at is None else min(start_at, dropped_at)
        return self._message(
            "moss.gap",
            start_samples=self._to_input(start_at),
            end_samples=self._to_input(event.end_at),
            reason=event.reason,
        )

    def _finished(self) -> Iterator[Message]:
        if self._turns.growing is not None:
            yield from self._commit_turn(self._turns.growing)
        if self.wants_finish:
            received = self._progress().received_samples
            yield self._message("moss.finished", received_samples=received)


def to_ms(samples: int) -> int:
    """Samples at the model's rate as whole milliseconds."""
    return samples * 1000 // MODEL_RATE_HZ
