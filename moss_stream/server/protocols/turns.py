"""Turns of a conversation: which utterances make one item, and its text as far as it goes.

With endpoints from silence a turn is one utterance. When the client ends turns itself, a long one
is decoded as several utterances that follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from moss_stream.live.events import Failed, Final, Hypothesis, SpeechStarted
from moss_stream.types import Segment, Usage


@dataclass(slots=True)
class Piece:
    """One utterance of a turn."""

    start_at: int
    """Its first sample."""
    last: Hypothesis | Final | Failed | None = None
    """The newest there is of its text."""

    @property
    def is_done(self) -> bool:
        """Whether nothing more comes."""
        return isinstance(self.last, (Final, Failed))

    @property
    def committed(self) -> str:
        """Words that are certain."""
        match self.last:
            case Final():
                return self.last.text
            case Hypothesis():
                return self.last.committed_text
        return ""


@dataclass(slots=True)
class Turn:
    """One item."""

    item_id: str
    pieces: dict[int, Piece] = field(default_factory=dict)
    """By utterance id, in order."""
    is_committed: bool = False
    """Whether no utterance follows."""
    told: str = ""
    """Text told in deltas."""
    revision: int = 0
    """Snapshots told."""
    num_segments: int = 0
    """Final segments told."""

    @property
    def is_done(self) -> bool:
        """Whether its text is final as a whole."""
        return self.is_committed and all(piece.is_done for piece in self.pieces.values())

    @property
    def start_at(self) -> int | None:
        """First sample; None without speech."""
        return min((piece.start_at for piece in self.pieces.values()), default=None)

    @property
    def committed(self) -> str:
        """Words that are certain, up to the first piece that is not final."""
        parts = []
        for piece in self.pieces.values():
            parts.append(piece.committed)
            if not piece.is_done:
                break
        return " ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """Its final words."""
        finals = (piece.last for piece in self.pieces.values())
        return " ".join(last.text for last in finals if isinstance(last, Final) and last.text)

    @property
    def failure(self) -> Failed | None:
        """Why it has no text at all; None if it has some or there was nothing to say."""
        last = [piece.last for piece in self.pieces.values()]
        failures = [outcome for outcome in last if isinstance(outcome, Failed)]
        return failures[0] if failures and len(failures) == len(last) else None

    def next_delta(self) -> str:
        """Certain words not told yet; nothing when they do not go on from what was told."""
        committed = self.committed
        if not committed.startswith(self.told):
            return ""
        delta, self.told = committed[len(self.told) :], committed
        return delta

    def partial(self) -> str:
        """What follows the certain words and may change."""
        for piece in self.pieces.values():
            if not piece.is_done:
                return piece.last.partial_text if isinstance(piece.last, Hypothesis) else ""
        return ""

    def segments(self) -> list[dict[str, Any]]:
        """Every segment as it stands, with whether its words are certain."""
        listed = []
        for piece in self.pieces.values():
            match piece.last:
                case Final():
                    listed += [wire_segment(s) | {"committed": True} for s in piece.last.segments]
                case Hypothesis():
                    sure, open_ = piece.last.committed_segments, piece.last.partial_segments
                    listed += [wire_segment(s) | {"committed": True} for s in sure]
                    listed += [wire_segment(s) | {"committed": False} for s in open_]
        return listed

    def usage(self) -> dict[str, Any]:
        """Tokens it cost, as the protocol writes them."""
        finals = [piece.last for piece in self.pieces.values()]
        costs: list[Usage] = [last.usage for last in finals if isinstance(last, Final)]
        audio = sum(cost.audio_tokens for cost in costs)
        prompt = sum(cost.prompt_tokens for cost in costs)
        output = sum(cost.output_tokens for cost in costs)
        return {
            "type": "tokens",
            "total_tokens": prompt + output,
            "input_tokens": prompt,
            "output_tokens": output,
            "input_token_details": {"audio_tokens": audio, "text_tokens": prompt - audio},
        }


def wire_segment(segment: Segment) -> dict[str, Any]:
    """A segment as the protocol writes it, times in seconds of the session."""
    return {
        "speaker": segment.speaker,
        "start": round(segment.start_s, 3),
        "end": round(segment.end_s, 3),
        "text": segment.text,
    }


class Turns:
    """The turns of one session that are not over yet.

    Args:
        prefix: Of the item ids, unique to the session.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._num_items = 0
        self._by_utterance: dict[int, Turn] = {}
        self.growing: Turn | None = None
        """The turn that takes the next utterance."""
        self.last_item_id: str | None = None
        """Item committed last."""

    def of(self, utterance_id: int) -> Turn | None:
        """The turn of an utterance; None if that was dropped or is over."""
        return self._by_utterance.get(utterance_id)

    def start(self, event: SpeechStarted) -> Turn:
        """Add an utterance to the growing turn, or to a new one."""
        turn = self.growing or self.new()
        self.growing = turn
        turn.pieces[event.utterance_id] = Piece(event.start_at)
        self._by_utterance[event.utterance_id] = turn
        return turn

    def new(self) -> Turn:
        """A turn of its own."""
        self._num_items += 1
        return Turn(f"item_{self._prefix}_{self._num_items}")

    def commit(self, turn: Turn) -> str | None:
        """Close a turn; returns the item before it."""
        turn.is_committed = True
        if turn is self.growing:
            self.growing = None
        before, self.last_item_id = self.last_item_id, turn.item_id
        return before

    def forget(self, turn: Turn) -> None:
        """Let go of a turn that is over."""
        for utterance_id in turn.pieces:
            self._by_utterance.pop(utterance_id, None)

    def drop_before(self, at: int) -> int | None:
        """Drop what the growing turn has of the audio before `at`; returns where that began."""
        turn = self.growing
        if turn is None:
            return None
        dropped = [uid for uid, piece in turn.pieces.items() if piece.start_at < at]
        start_at = min((turn.pieces[uid].start_at for uid in dropped), default=None)
        for utterance_id in dropped:
            del turn.pieces[utterance_id]
            del self._by_utterance[utterance_id]
        if not turn.pieces:
            self.growing = None
        return start_at

    def oldest_at(self) -> int | None:
        """First sample of the oldest turn without its final text."""
        open_pieces = (
            turn.pieces[uid].start_at
            for uid, turn in self._by_utterance.items()
            if not turn.pieces[uid].is_done
        )
        return min(open_pieces, default=None)
