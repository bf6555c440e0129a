"""Speakers whom the caller knows to be one person, until the server has answered."""

from __future__ import annotations

import json

from moss_stream_client.events import Event, Relabel, ServerError

_FIELDS = ("speaker", "into", "type")
"""What an error about a request names; `type` comes from a server that knows no such request."""


class Merges:
    """Requests in order, each sent until it is answered.

    A connection may be lost with a request or with its answer on the way. What was not answered is
    sent again on the next one, but not before the replay has brought the answers that were missed:
    asked twice, the server would not know the first speaker any more.
    """

    def __init__(self) -> None:
        self._waiting: list[Relabel] = []  # the answers that are waited for
        self._num_sent = 0  # the first of those that wait, on the current connection
        self._replay_until = 0

    @property
    def are_sent(self) -> bool:
        """Whether all went out on the current connection."""
        return self._num_sent == len(self._waiting)

    def add(self, speaker: str, into: str) -> None:
        """Ask for a merge."""
        self._waiting.append(Relabel(speaker, into))

    def take(self, last_seq: int) -> str | None:
        """Return the next message to send, for a client that has the events up to `last_seq`."""
        if self.are_sent or last_seq < self._replay_until:
            return None
        asked = self._waiting[self._num_sent]
        self._num_sent += 1
        return json.dumps(
            {"type": "moss.merge_speakers", "speaker": asked.speaker, "into": asked.replaced_by}
        )

    def rewind(self, replay_until: int) -> None:
        """Begin another connection, whose replay ends with the event of this number."""
        self._num_sent = 0
        self._replay_until = replay_until

    def observe(self, event: Event) -> None:
        """Take an event, which may be an answer; they come in the order of the requests."""
        if isinstance(event, Relabel) and event in self._waiting:
            answered = self._waiting.index(event)
        elif isinstance(event, ServerError) and event.param in _FIELDS and self._waiting:
            answered = 0
        else:
            return
        del self._waiting[answered]
        if answered < self._num_sent:
            self._num_sent -= 1
