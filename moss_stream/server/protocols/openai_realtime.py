"""OpenAI's Realtime protocol for transcription, with ours under `moss`: a pure translator.

Client messages become commands and answers; events of the live session become server messages.
Every server message has an `event_id` and a sequence number without holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from moss_stream.audio.resample import MODEL_RATE_HZ
from moss_stream.errors import ClientError, InvalidMessage, MossStreamError
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
from moss_stream.server.protocols.commands import (
    Append,
    Clear,
    Command,
    Commit,
    Configure,
    EmptyCommit,
    Finish,
    Identity,
    Progress,
    decode_audio,
)
from moss_stream.server.protocols.settings import ServerVad, Settings
from moss_stream.server.protocols.turns import Turn, Turns, wire_segment

Message = dict[str, Any]

MIN_COMMIT_S = 0.1
"""Least audio that a commit may hold, seconds."""
ACK_INTERVAL_S = 0.5
"""Least time between two acknowledgements, seconds."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription"


class OpenAIRealtime:
    """The protocol's state for one session.

    Args:
        identity: What is fixed.
        settings: What the session starts with.
        progress: Tells where the session stands now.
        to_input: Position at the model's rate to a position in the input.
    """

    def __init__(
        self,
        identity: Identity,
        settings: Settings,
        progress: Callable[[], Progress],
        to_input: Callable[[int], int],
    ) -> None:
        self.settings = settings
        self._identity = identity
        self._progress = progress
        self._to_input = to_input
        self._turns = Turns(identity.session_id.removeprefix("sess_"))
        self._seq = 0
        self._committed_samples = 0
        """Input samples up to the last commit or clear."""
        self._quiet_at: int | None = 0
        """Since when nobody speaks; None while somebody does or after the idle timeout."""
        self._acked_s = -math.inf
        self._acked: Progress | None = None
        self._wants_finish = False
        self._told_ignored: set[str] = set()

    # From the client.

    def read(self, text: str) -> Command | Message:
        """Take a text message.

        Returns:
            What to do, or what to answer at once.

        Raises:
            InvalidMessage: It is no JSON object; too many of these are no client of ours.
        """
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidMessage(f"not JSON: {error.msg}") from error
        if not isinstance(message, dict):
            raise InvalidMessage(f"a {type(message).__name__}, expected a JSON object")
        event_id = message.get("event_id")
        event_id = event_id if isinstance(event_id, str) else None
        try:
            return self._command(message, event_id)
        except ClientError as error:
            return self.refuse(error, event_id)

    def _command(self, message: Message, event_id: str | None) -> Command | Message:
        match message.get("type"):
            case "input_audio_buffer.append":
                return Append(decode_audio(message.get("audio")))
            case "session.update":
                return self._update(message.get("session"), event_id)
            case "input_audio_buffer.commit":
                return self._commit()
            case "input_audio_buffer.clear":
                self._committed_samples = self._progress().received_samples
                return Clear()
            case "moss.finish":
                self._wants_finish = True
                return Finish()
            case kind:
                shown = kind[:80] if isinstance(kind, str) else kind
                raise InvalidMessage(f"type is {shown!r}, which is no event here", field="type")

    def _update(self, session: object, event_id: str | None) -> Configure:
        if not isinstance(session, dict):
            raise InvalidMessage("session is missing or no object", field="session")
        has_audio = self._progress().received_samples > 0
        settings, ignored = self.settings.updated(session, has_audio=has_audio)
        return Configure(settings, ignored, event_id)

    def _commit(self) -> Commit:
        received = self._progress().received_samples
        uncommitted = received - self._committed_samples
        # When silence ends turns, a commit right after one of those is no mistake of the client.
        is_needed = self.settings.turns is None or self._turns.last_item_id is None
        if is_needed and uncommitted < MIN_COMMIT_S * self.settings.format.rate_hz:
            raise EmptyCommit(
                f"the audio to commit lasts {1000 * uncommitted / self.settings.format.rate_hz:.0f}"
                f" ms, the least is {1000 * MIN_COMMIT_S:.0f} ms",
                field="input_audio_buffer",
            )
        self._committed_samples = received
        return Commit()

    # To the client.

    def created(self) -> Message:
        """The first message of a session."""
        return self._message("session.created", session=self._session())

    def configured(self, change: Configure) -> Iterator[Message]:
        """The answer to settings that are in force now."""
        self.settings = change.settings
        yield self._message("session.updated", session=self._session())
        for name in change.ignored:
            if name not in self._told_ignored:
                self._told_ignored.add(name)
                yield self.warning("option_ignored", f"{name} has no effect on this server")

    def cleared(self) -> Message:
        """The answer to a clear."""
        return self._message("input_audio_buffer.cleared")

    def refuse(self, error: MossStreamError, event_id: str | None = None) -> Message:
        """An error of the client; the session goes on."""
        kind = "invalid_request_error" if isinstance(error, ClientError) else "server_error"
        return self._message(
            "error",
            error={
                "type": kind,
                "code": error.code,
                "message": error.message,
                "param": error.field,
                "event_id": event_id,
            },
        )

    def warning(self, code: str, message: str, item_id: str | None = None) -> Message:
        """Something to know that is no mistake."""
        item = {} if item_id is None else {"item_id": item_id}
        return self._message("moss.warning", code=code, message=message, **item)

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
                yield self.warning(event.code, event.message, item_id)
            case Finished():
                yield from self._finished()

    def advance(self, now_s: float) -> Iterator[Message]:
        """What is due by time and progress: acknowledgements, the idle timeout."""
        progress = self._progress()
        yield from self._idle_timeout(progress)
        is_due = now_s - self._acked_s >= ACK_INTERVAL_S and progress != self._acked
        if self.settings.acks and is_due:
            self._acked_s, self._acked = now_s, progress
            covered_at = self._covered_at(progress)
            yield self._message(
                "moss.ack",
                received_samples=progress.received_samples,
                decoded_samples=self._to_input(covered_at),
                lag_ms=_ms(progress.received_at - covered_at),
                degraded=progress.is_degraded,
            )

    def resumed(self, replayed: int) -> Message:
        """The first message on a new socket of an old session; it has no number."""
        return {
            "type": "moss.resumed",
            "event_id": f"event_resumed_{self._seq}",
            "received_samples": self._progress().received_samples,
            "replayed": replayed,
            "moss": {},
        }

    # Events of the live session.

    def _speech_started(self, event: SpeechStarted) -> Iterator[Message]:
        self._quiet_at = None
        turn = self._turns.start(event)
        if self.settings.turns is not None and len(turn.pieces) == 1:
            yield self._message(
                "input_audio_buffer.speech_started",
                item_id=turn.item_id,
                audio_start_ms=_ms(event.start_at),
            )

    def _speech_stopped(self, event: SpeechStopped) -> Iterator[Message]:
        self._quiet_at = event.end_at
        turn = self._turns.of(event.utterance_id)
        if turn is None or self.settings.turns is None:
            return
        yield self._message(
            "input_audio_buffer.speech_stopped",
            item_id=turn.item_id,
            audio_end_ms=_ms(event.end_at if event.is_split else event.decided_at),
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
            yield self.warning(warning.code, warning.message, turn.item_id)
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
            lag_ms=_ms(progress.received_at - self._covered_at(progress)),
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
            yield self.warning(
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
        if self._wants_finish:
            received = self._progress().received_samples
            yield self._message("moss.finished", received_samples=received)

    def _idle_timeout(self, progress: Progress) -> Iterator[Message]:
        turns = self.settings.turns
        if not isinstance(turns, ServerVad) or turns.idle_timeout_ms is None:
            return
        if self._quiet_at is None:
            return
        if _ms(progress.examined_at - self._quiet_at) < turns.idle_timeout_ms:
            return
        turn = self._turns.new()
        yield self._message(
            "input_audio_buffer.timeout_triggered",
            item_id=turn.item_id,
            audio_start_ms=_ms(self._quiet_at),
            audio_end_ms=_ms(progress.examined_at),
        )
        self._quiet_at = None
        yield from self._commit_turn(turn)

    def _covered_at(self, progress: Progress) -> int:
        """Up to where all audio has some text, or is known to be silent."""
        oldest_at = self._turns.oldest_at()
        if oldest_at is None:
            return progress.examined_at
        return max(oldest_at, min(progress.decoded_at, progress.examined_at))

    def _session(self) -> Message:
        identity, settings = self._identity, self.settings
        return {
            "id": identity.session_id,
            "object": "realtime.transcription_session",
            "expires_at": identity.expires_at,
            **settings.wire(identity.model),
            "moss": {
                "resume_token": identity.resume_token,
                "grace_s": identity.grace_s,
                "model": identity.model,
                "preset": settings.preset,
                "limits": identity.limits,
                "snapshots": settings.snapshots,
                "acks": settings.acks,
            },
        }

    def _message(self, kind: str, **fields: Any) -> Message:
        self._seq += 1
        return {
            "type": kind,
            "event_id": f"event_{self._seq}",
            **fields,
            "moss": {"seq": self._seq},
        }


def _ms(samples: int) -> int:
    return samples * 1000 // MODEL_RATE_HZ
