"""What becomes of a channel's events in Deepgram's live protocol: results, in the order of speech.

An utterance is told as results that may change, then as one that is final. Finals may come out of
order from the live session; here each waits for those before it, and text that may change is told
of the oldest utterance alone, as clients put final texts one after another.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moss_stream.live.config import to_seconds
from moss_stream.live.events import (
    CommitDone,
    Event,
    Failed,
    Final,
    Hypothesis,
    Relabel,
    SessionWarning,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.server.protocols.deepgram_query import ListenOptions
from moss_stream.server.protocols.turns import wire_segment
from moss_stream.server.protocols.words import Word, estimated_words
from moss_stream.types import Segment

Message = dict[str, Any]

CONFIDENCE = 1.0
"""The model gives none, the protocol has to have one."""
ESTIMATED = ("confidence", "words.start", "words.end")
"""Fields of a result that the model does not say."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What is fixed for a socket and told to its client."""

    request_id: str
    """A UUID."""
    created: str
    """When it was opened, ISO 8601."""
    model: str
    """Name of the loaded model."""
    version: str
    """Of this package."""

    @property
    def model_uuid(self) -> str:
        """Made from the model's name, so it is the same everywhere."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"moss-stream:{self.model}"))

    @property
    def model_info(self) -> Message:
        """As the protocol writes it."""
        return {"name": self.model, "version": self.version, "arch": "moss-transcribe-diarize"}


class Notes:
    """What waits to be said with the next result."""

    def __init__(self) -> None:
        self._warnings: list[Message] = []
        self._relabels: list[Message] = []

    def warn(self, code: str, message: str) -> None:
        """Add something to know that is no mistake."""
        self._warnings.append({"code": code, "message": message})

    def relabel(self, event: Relabel) -> None:
        """Add that one speaker had two numbers."""
        numbers = {
            "speaker": speaker_number(event.speaker),
            "replaced_by": speaker_number(event.replaced_by),
        }
        self._relabels.append(numbers)

    def take(self) -> Message:
        """Everything that waits, which then waits no more."""
        waiting = {"warnings": self._warnings, "relabels": self._relabels}
        self._warnings, self._relabels = [], []
        return {name: notes for name, notes in waiting.items() if notes}


@dataclass(slots=True)
class _Utterance:
    start_at: int
    covered_at: int
    """Up to where its words are known."""
    word_end_s: float | None = None
    """Of its last word so far."""
    stopped: SpeechStopped | None = None
    outcome: Final | Failed | None = None
    is_finalized: bool = False
    """Whether its result answers a `Finalize`."""


class ResultTeller:
    """Tells what one channel hears.

    Args:
        index: Of the channel.
        options: What the client wants.
        info: What is fixed.
        notes: What waits to be said, on any channel.
    """

    def __init__(self, index: int, options: ListenOptions, info: RequestInfo, notes: Notes) -> None:
        self._channel = [index, options.num_streams]
        self._options = options
        self._info = info
        self._notes = notes
        self._open: dict[int, _Utterance] = {}
        self._goes_on = False
        """Whether the next utterance goes on with the speech of the one before."""
        self._last_word_end_s: float | None = None
        """Of the last final word; None once its end was told."""
        self._commits: deque[bool] = deque()
        """For each commit on its way, whether it is a `Finalize`."""

    def tell(self, event: Event) -> Iterator[Message]:
        """Translate an event of the channel's live session."""
        match event:
            case SpeechStarted():
                yield from self._speech_started(event)
            case SpeechStopped():
                self._open[event.utterance_id].stopped = event
                self._goes_on = event.is_split
            case Hypothesis():
                yield from self._hypothesis(event)
            case Final() | Failed():
                self._open[event.utterance_id].outcome = event
                yield from self._finals()
            case CommitDone():
                yield from self._commit_done(event)
            case Relabel():
                self._notes.relabel(event)
            case SessionWarning():
                self._notes.warn(event.code, event.message)

    def advance(self, examined_at: int) -> Iterator[Message]:
        """Tell the end of an utterance, once there were no words for as long as was asked."""
        word_end_s = self._last_word_end_s
        oldest = next(iter(self._open.values()), None)
        if oldest is not None:
            # What the speech detector takes for speech may be noise: words decide.
            examined_at = oldest.covered_at
            if oldest.word_end_s is not None:
                return
        if word_end_s is not None and self._is_gap(word_end_s, examined_at):
            self._last_word_end_s = None
            yield {
                "type": "UtteranceEnd",
                "channel": self._channel,
                "last_word_end": round(word_end_s, 3),
            }

    @property
    def is_overdue(self) -> bool:
        """Whether the growing utterance has had no words for as long as ends one: commit it."""
        oldest = next(iter(self._open.values()), None)
        return (
            oldest is not None
            and oldest.stopped is None
            and oldest.word_end_s is not None
            and not self._commits
            and self._is_gap(oldest.word_end_s, oldest.covered_at)
        )

    def committing(self, *, is_finalize: bool) -> None:
        """A commit is on its way; one that is a `Finalize` gets an answer."""
        self._commits.append(is_finalize)

    def _is_gap(self, word_end_s: float, at: int) -> bool:
        gap_ms = self._options.utterance_end_ms
        return gap_ms is not None and 1000 * (to_seconds(at) - word_end_s) >= gap_ms

    def _speech_started(self, event: SpeechStarted) -> Iterator[Message]:
        self._open[event.utterance_id] = _Utterance(event.start_at, event.start_at)
        if self._options.vad_events and not self._goes_on:
            yield {
                "type": "SpeechStarted",
                "channel": self._channel,
                "timestamp": round(to_seconds(event.start_at), 3),
            }

    def _hypothesis(self, event: Hypothesis) -> Iterator[Message]:
        utterance = self._open[event.utterance_id]
        segments = (*event.committed_segments, *event.partial_segments)
        utterance.covered_at = event.end_at
        utterance.word_end_s = max((segment.end_s for segment in segments), default=None)
        is_oldest = event.utterance_id == next(iter(self._open))
        if self._options.interim_results and is_oldest:
            text = event.committed_text + event.partial_text
            yield self._result(utterance.start_at, event.end_at, text, segments)

    def _finals(self) -> Iterator[Message]:
        """Tell the outcomes that no earlier utterance holds up any more."""
        for utterance_id, utterance in list(self._open.items()):
            if utterance.outcome is None:
                return
            del self._open[utterance_id]
            yield self._final(utterance, utterance.outcome)

    def _final(self, utterance: _Utterance, outcome: Final | Failed) -> Message:
        stopped = utterance.stopped
        is_split = stopped is not None and stopped.is_split
        end_at = utterance.start_at if stopped is None else stopped.end_at
        text, segments = "", tuple[Segment, ...]()
        if isinstance(outcome, Final):
            text, segments = outcome.text, outcome.segments
            for warning in outcome.warnings:
                self._notes.warn(warning.code, warning.message)
        else:
            self._notes.warn(outcome.error.code, f"no text: {outcome.error.message}")
        if segments:
            self._last_word_end_s = max(segment.end_s for segment in segments)
        return self._result(
            utterance.start_at,
            end_at,
            text,
            segments,
            is_final=True,
            speech_final=self._options.tells_endpoints and not is_split,
            from_finalize=utterance.is_finalized,
        )

    def _commit_done(self, event: CommitDone) -> Iterator[Message]:
        """Answer a `Finalize`: with the last utterance that has no text yet, else at once."""
        if not self._commits.popleft():
            return
        if self._open:
            self._open[max(self._open)].is_finalized = True
        else:
            yield self._result(
                event.at,
                event.at,
                is_final=True,
                speech_final=self._options.tells_endpoints,
                from_finalize=True,
            )

    def _result(
        self,
        start_at: int,
        end_at: int,
        text: str = "",
        segments: Sequence[Segment] = (),
        *,
        is_final: bool = False,
        speech_final: bool = False,
        from_finalize: bool = False,
    ) -> Message:
        words = [self._word(word) for word in estimated_words(segments)]
        alternative = {"transcript": text, "confidence": CONFIDENCE, "words": words}
        return {
            "type": "Results",
            "channel_index": self._channel,
            "start": round(to_seconds(start_at), 3),
            "duration": round(to_seconds(end_at - start_at), 3),
            "is_final": is_final,
            "speech_final": speech_final,
            "from_finalize": from_finalize,
            "channel": {"alternatives": [alternative]},
            "metadata": {
                "request_id": self._info.request_id,
                "model_info": self._info.model_info,
                "model_uuid": self._info.model_uuid,
            },
            "moss": {
                "estimated": ESTIMATED,
                "segments": [wire_segment(segment) for segment in segments],
                **self._notes.take(),
            },
        }

    def _word(self, word: Word) -> Message:
        message: Message = {
            "word": word.bare,
            "start": word.start_s,
            "end": word.end_s,
            "confidence": CONFIDENCE,
            "punctuated_word": word.text,
        }
        speaker = speaker_number(word.speaker)
        if self._options.diarize and speaker is not None:
            message["speaker"] = speaker
        return message


def speaker_number(label: str) -> int | None:
    """Number of a speaker, from 0; None for a label that is none."""
    digits = label.removeprefix("S")
    return int(digits) - 1 if digits.isascii() and digits.isdecimal() else None
