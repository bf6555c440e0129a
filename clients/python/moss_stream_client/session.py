"""One stream's side of the wire contract, without a socket: text in, events out, frames to send.

A connection goes through: OPENING (wait for `session.created`, or for `moss.resumed` when there is
a token), then CONFIGURING (send `session.update`, wait for `session.updated`; skipped when an
earlier connection did it), then STREAMING (audio, and `moss.finish` after the last of it), until
`moss.finished`. A lost connection leads back to OPENING with everything known kept:

- events carry seq 1, 2, 3...; one seen before is dropped, a hole asks for a new connection that
  replays it, so the caller gets every event once and in order;
- audio stays in the backlog until the server confirms it, and a new connection sends again from
  the position the server names, so the server gets every sample once;
- a merge of speakers is asked for again until it is answered, and carried out once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypeVar

from moss_stream_client.audio import RATES_HZ, Backlog
from moss_stream_client.errors import (
    AtCapacity,
    ClientError,
    ProtocolError,
    Refused,
    ResumeExpired,
    StreamLost,
    UsageError,
)
from moss_stream_client.events import (
    Ack,
    Event,
    Finished,
    Raw,
    Resumed,
    ServerError,
    need,
    number,
    parse_event,
)
from moss_stream_client.merges import Merges

_FRAME_S = 0.5
"""Longest binary frame, seconds; live audio goes out in the blocks it comes in."""
_MAX_HOLES = 3
"""Replays of the same missing events asked for before the server counts as broken."""


_Lost = TypeVar("_Lost", bound=StreamLost)


class OutOfStep(Exception):
    """Events are missing on this connection; a new one replays them."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What a stream asks of the server.

    Attributes:
        rate_hz: Sample rate of the audio, one of `RATES_HZ`.
        preset: `captions` or `agent`.
        language: ISO-639-1 code, None to let the model find out.
        snapshots: Whether to send `Hypothesis` events.
        max_buffer_s: Most unconfirmed audio kept, seconds; `send` waits beyond it.
    """

    rate_hz: int = 16000
    preset: str = "captions"
    language: str | None = None
    snapshots: bool = True
    max_buffer_s: float = 60.0

    def __post_init__(self) -> None:
        if self.rate_hz not in RATES_HZ:
            rates = ", ".join(map(str, RATES_HZ))
            raise UsageError(f"rate_hz must be one of {rates}, got {self.rate_hz}")
        if self.preset not in ("captions", "agent"):
            raise UsageError(f"preset must be captions or agent, got {self.preset!r}")
        if not 1 <= self.max_buffer_s <= 3600:
            raise UsageError(f"max_buffer_s must be 1 to 3600, got {self.max_buffer_s}")


class Session:
    """The stream's state between and across connections; not thread-safe, does no I/O."""

    def __init__(self, options: SessionOptions) -> None:
        self.options = options
        self.backlog = Backlog(round(options.max_buffer_s * options.rate_hz))
        self.info: Raw = {}
        """The server's effective configuration, as it came."""
        self.token: str | None = None
        """The resume token, None before the first `session.created`."""
        self.grace_s = 0.0
        """How long the server keeps the session without a connection, seconds."""
        self.is_open = False
        """Whether the current connection is past OPENING."""
        self.is_configured = False
        self.is_finishing = False
        self.is_finished = False
        self.last_seq = 0
        self._merges = Merges()
        self._update_sent = False
        self._finish_sent = False
        self._holes = 0

    def connecting(self) -> dict[str, str]:
        """Forget what was true of the last connection; return the query of the next one."""
        self.is_open = self._update_sent = self._finish_sent = False
        query = {"intent": "transcription", "preset": self.options.preset}
        if self.options.language is not None:
            query["language"] = self.options.language
        if self.token is not None:
            query |= {"resume": self.token, "last_seq": str(self.last_seq)}
        return query

    def receive(self, message: str | bytes) -> Event | None:
        """Take one message of the server.

        Returns:
            The event for the caller; None for one seen before or of no interest to it.

        Raises:
            OutOfStep: Events are missing; the connection is of no more use.
            ProtocolError: The server broke the contract.
            Refused: It does not take this session's configuration.
            ResumeExpired: It no longer knows the session.
        """
        raw = _decode(message)
        if not self.is_open:
            return self._open(raw)
        if raw["type"] == "moss.resumed":
            return None  # a second copy: rewinding again would send audio twice
        seq = _seq(raw)
        if seq is not None and not self._is_next(seq):
            return None
        return self._apply(raw)

    def next_frame(self) -> str | bytes | None:
        """Return what to send next on this connection, None when there is nothing now."""
        if not self.is_open:
            return None
        if not self.is_configured:
            if self._update_sent:
                return None
            self._update_sent = True
            return json.dumps(self._update())
        if request := self._merges.take(self.last_seq):
            return request
        if audio := self.backlog.take(round(_FRAME_S * self.options.rate_hz)):
            return audio
        if self.is_finishing and not self._finish_sent and self._merges.are_sent:
            self._finish_sent = True
            return '{"type":"moss.finish"}'
        return None

    def merge_speakers(self, speaker: str, into: str) -> None:
        """Ask the server to take two speakers for one."""
        self._merges.add(speaker, into)

    def finish(self) -> None:
        """No more audio comes after what is in the backlog."""
        self.is_finishing = True

    def lost(self, message: str, close_code: int | None = None) -> StreamLost:
        """Make the error of a stream that cannot go on."""
        return self._loss(StreamLost, message, close_code)

    def closed(self, code: int | None, reason: str) -> ClientError | None:
        """Say what a closed connection means: an error that ends the stream, or None to resume."""
        said = f"{code} {reason}".strip()
        meaning = _FINAL_CLOSES.get(code or 0)
        if self.token is None:
            if code == 1013:
                return AtCapacity(f"the server has no room for another stream: {said}")
            is_final = meaning is not None and code != 1012
            return Refused(f"{meaning} ({said})") if is_final else None
        if code == 4404:
            return self._expired(said)
        return None if meaning is None else self.lost(f"{meaning} ({said})", code)

    def _open(self, raw: Raw) -> Event | None:
        """Handle the first message of a connection."""
        if raw["type"] == "error":
            error = parse_event(raw)
            assert isinstance(error, ServerError)
            if error.code == "resume_expired":
                raise self._expired(error.message)
            raise Refused(f"the server refused the session: {error.message}")
        if self.token is None:
            self._created(raw)
            return None
        if raw["type"] != "moss.resumed":
            raise OutOfStep(f"expected moss.resumed, got {raw['type']}")
        resumed = parse_event(raw)
        assert isinstance(resumed, Resumed)
        self.backlog.rewind(resumed.received_samples)
        self._merges.rewind(self.last_seq + resumed.replayed)
        self.is_open = True
        return resumed

    def _created(self, raw: Raw) -> None:
        if raw["type"] != "session.created":
            raise ProtocolError(f"expected session.created first, got {raw['type']}")
        self.info = need(raw, "session", dict)
        moss = self.info.get("moss")
        if not isinstance(moss, dict) or "resume_token" not in moss:
            raise ProtocolError(
                "session.created has no moss.resume_token: not a moss-stream server"
            )
        self.token = need(moss, "resume_token", str)
        self.grace_s = number(moss, "grace_s")
        self.last_seq = _seq(raw) or 0
        self.is_open = True

    def _is_next(self, seq: int) -> bool:
        """Whether the event is new; False for one seen before."""
        if seq <= self.last_seq:
            return False
        if seq > self.last_seq + 1:
            self._holes += 1
            missing = f"events from {self.last_seq + 1} to before {seq}"
            if self._holes > _MAX_HOLES:
                raise ProtocolError(f"the server does not replay {missing}")
            raise OutOfStep(f"{missing} are missing")
        self._holes = 0
        self.last_seq = seq
        return True

    def _apply(self, raw: Raw) -> Event | None:
        if raw["type"] == "session.created":
            return None
        if raw["type"] == "session.updated":
            self._updated(need(raw, "session", dict))
            return None
        event = parse_event(raw)
        self._merges.observe(event)
        if isinstance(event, ServerError) and not self.is_configured:
            raise Refused(f"the server refused the configuration: {event.message}")
        if isinstance(event, Ack):
            self.backlog.acknowledge(event.received_samples)
        if isinstance(event, Finished):
            self._finished(event.received_samples)
        return event

    def _updated(self, session: Raw) -> None:
        self.info = session
        self.is_configured = True
        audio_format = session.get("audio", {}).get("input", {}).get("format", {})
        rate_hz = audio_format.get("rate", self.options.rate_hz)
        if rate_hz != self.options.rate_hz:
            raise Refused(f"asked for {self.options.rate_hz} Hz, the server took {rate_hz} Hz")

    def _finished(self, received_samples: int) -> None:
        if not self.is_finishing or received_samples != self.backlog.end_at:
            raise ProtocolError(
                f"the server finished after {received_samples} samples, "
                f"{self.backlog.end_at} were given"
            )
        self.backlog.acknowledge(received_samples)
        self.is_finished = True

    def _update(self) -> dict[str, Any]:
        options = self.options
        return {
            "type": "session.update",
            "session": {
                "type": "transcription",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": options.rate_hz}}},
                "moss": {"snapshots": options.snapshots, "acks": True, "preset": options.preset},
            },
        }

    def _expired(self, said: str) -> ResumeExpired:
        return self._loss(ResumeExpired, f"the server no longer knows this stream: {said}", 4404)

    def _loss(self, kind: type[_Lost], message: str, close_code: int | None) -> _Lost:
        unconfirmed = self.backlog.end_at - self.backlog.acked_at
        seconds = unconfirmed / self.options.rate_hz
        return kind(
            f"{message}; {seconds:.1f} s of audio unconfirmed",
            close_code=close_code,
            unacknowledged_samples=unconfirmed,
        )


_FINAL_CLOSES = {
    1003: "the server does not take this audio",
    1007: "the server could not read a message",
    1008: "the server's rules do not allow this stream",
    1009: "a message or the stream was too large for the server",
    1012: "the server is restarting, the stream cannot be resumed",
    4408: "the server ended the stream for inactivity",
    4409: "another connection took the stream over",
}
"""Close codes after which resuming makes no sense, and what to tell the caller."""


def _decode(message: str | bytes) -> Raw:
    try:
        raw = json.loads(message)
    except ValueError as error:
        raise ProtocolError(
            f"the server sent {len(message)} characters that are no JSON"
        ) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("type"), str):
        raise ProtocolError("the server sent a message without a type")
    return raw


def _seq(raw: Raw) -> int | None:
    """Return the event's number, None for the few that have none."""
    moss = raw.get("moss")
    seq = moss.get("seq") if isinstance(moss, dict) else None
    if seq is not None and not isinstance(seq, int):
        raise ProtocolError(f"{raw['type']}: moss.seq must be int, got {type(seq).__name__}")
    return seq
