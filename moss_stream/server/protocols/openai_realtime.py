"""OpenAI's Realtime protocol for transcription, with ours under `moss`: a pure translator.

Client messages become commands and answers; events of the live session become server messages.
Every server message has an `event_id` and a sequence number without holes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import orjson

from moss_stream.errors import ClientError, InvalidMessage, MossStreamError
from moss_stream.live.events import Event
from moss_stream.server.protocols.commands import (
    Append,
    Clear,
    Command,
    Commit,
    Configure,
    EmptyCommit,
    Finish,
    Identity,
    Merge,
    Progress,
    decode_audio,
)
from moss_stream.server.protocols.narration import Message, Narrator, Numbering, to_ms
from moss_stream.server.protocols.settings import Settings, shown_value

MIN_COMMIT_S = 0.1
"""Least audio that a commit may hold, seconds."""
ACK_INTERVAL_S = 0.5
"""Least time between two acknowledgements, seconds."""


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
        self._numbering = Numbering()
        self._message = self._numbering.message
        prefix = identity.session_id.removeprefix("sess_")
        self._narrator = Narrator(self._numbering, settings, progress, to_input, prefix)
        self._committed_samples = 0
        """Input samples up to the last commit or clear."""
        self._acked_s = -math.inf
        self._acked: Progress | None = None
        self._told_ignored: set[str] = set()
        self._asked_by: str | None = None
        """The `event_id` of the client's last message."""

    # From the client.

    def hear(self, data: bytes) -> Command:
        """Take a binary message: audio."""
        self._asked_by = None
        return Append(data)

    def read(self, text: str) -> Command | Message:
        """Take a text message.

        Returns:
            What to do, or what to answer at once.

        Raises:
            InvalidMessage: It is no JSON object; too many of these are no client of ours.
        """
        self._asked_by = None
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidMessage(f"not JSON: {error.msg}") from error
        if not isinstance(message, dict):
            raise InvalidMessage(f"a {type(message).__name__}, expected a JSON object")
        event_id = message.get("event_id")
        self._asked_by = event_id if isinstance(event_id, str) else None
        try:
            return self._command(message)
        except ClientError as error:
            return self.refuse(error)

    def _command(self, message: Message) -> Command:
        match message.get("type"):
            case "input_audio_buffer.append":
                return Append(decode_audio(message.get("audio")))
            case "session.update":
                return self._update(message.get("session"))
            case "input_audio_buffer.commit":
                return self._commit()
            case "input_audio_buffer.clear":
                self._committed_samples = self._progress().received_samples
                return Clear()
            case "moss.finish":
                self._narrator.wants_finish = True
                return Finish()
            case "moss.merge_speakers":
                return Merge(_name(message, "speaker"), _name(message, "into"))
            case kind:
                shown = shown_value(kind)
                raise InvalidMessage(f"type is {shown}, which is no event here", field="type")

    def _update(self, session: object) -> Configure:
        if not isinstance(session, dict):
            raise InvalidMessage("session is missing or no object", field="session")
        has_audio = self._progress().received_samples > 0
        settings, ignored = self.settings.updated(session, has_audio=has_audio)
        return Configure(settings, ignored)

    def _commit(self) -> Commit:
        received = self._progress().received_samples
        uncommitted = received - self._committed_samples
        # When silence ends turns, a commit right after one of those is no mistake of the client.
        is_needed = self.settings.turns is None or not self._narrator.has_items
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
        self.settings = self._narrator.settings = change.settings
        yield self._message("session.updated", session=self._session())
        for name in change.ignored:
            if name not in self._told_ignored:
                self._told_ignored.add(name)
                yield self.warning("option_ignored", f"{name} has no effect on this server")

    def cleared(self) -> Message:
        """The answer to a clear."""
        return self._message("input_audio_buffer.cleared")

    def refuse(self, error: MossStreamError) -> Message:
        """The answer to a client's last message that cannot be obeyed; the session goes on."""
        kind = "invalid_request_error" if isinstance(error, ClientError) else "server_error"
        return self._message(
            "error",
            error={
                "type": kind,
                "code": error.code,
                "message": error.message,
                "param": error.field,
                "event_id": self._asked_by,
            },
        )

    def warning(self, code: str, message: str) -> Message:
        """Something to know that is no mistake."""
        return self._numbering.warning(code, message)

    def tell(self, event: Event) -> Iterator[Message]:
        """Translate an event of the live session."""
        return self._narrator.tell(event)

    def advance(self, now_s: float) -> Iterator[Message]:
        """What is due by time and progress: acknowledgements, the idle timeout."""
        progress = self._progress()
        yield from self._narrator.advance(progress)
        is_due = now_s - self._acked_s >= ACK_INTERVAL_S and progress != self._acked
        if self.settings.acks and is_due:
            self._acked_s, self._acked = now_s, progress
            covered_at = self._narrator.covered_at(progress)
            yield self._message(
                "moss.ack",
                received_samples=progress.received_samples,
                decoded_samples=self._to_input(covered_at),
                lag_ms=to_ms(progress.received_at - covered_at),
                degraded=progress.is_degraded,
            )

    def resumed(self, replayed: int) -> Message:
        """The first message on a new socket of an old session; it has no number."""
        return {
            "type": "moss.resumed",
            "event_id": f"event_resumed_{self._numbering.last}",
            "received_samples": self._progress().received_samples,
            "replayed": replayed,
            "moss": {},
        }

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


def _name(message: Message, field: str) -> str:
    value = message.get(field)
    if not isinstance(value, str):
        raise InvalidMessage(f"{field} is missing or no string", field=field)
    return value
