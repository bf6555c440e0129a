"""One live stream: samples, speech probabilities and decoder results in, events and requests out.

The session does no work of its own: the caller scores the frames it names, carries out the decodes
it asks for and brings back what came of them, each by one call. Every call returns what to tell and
what to do now, in order. `now_s` is the caller's clock; it never decides what belongs to an
utterance, so the finals depend on the samples, the probabilities and the texts alone. (The texts
matter through the endpoint hint: with three equal endpoint silences they do not.)

Invariants: every received sample has one outcome in `accounted()`; an utterance has exactly one
`Final` or `Failed`, unless it is cleared; audio is held until its utterance has it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from moss_stream.audio.buffer import SampleBuffer
from moss_stream.audio.samples import check_values
from moss_stream.config import check_range
from moss_stream.errors import MossStreamError, OutOfOrder, StateError
from moss_stream.live.commit import CommitPolicy
from moss_stream.live.config import VAD_FRAME_SAMPLES, LiveConfig, to_samples
from moss_stream.live.context import Context
from moss_stream.live.endpoint import (
    Endpoint,
    Endpointer,
    EndpointEvent,
    Onset,
    Pause,
    Resume,
    SplitLikely,
    text_hint,
)
from moss_stream.live.events import (
    CommitDone,
    Finished,
    FrameBatch,
    Gap,
    Output,
    Relabel,
    SpeechStarted,
    SpeechStopped,
)
from moss_stream.live.ledger import Ledger, Outcome, Stretch
from moss_stream.live.planner import Now, Planner
from moss_stream.live.text import TextCodec, plain_text
from moss_stream.live.utterance import Answer, Utterance
from moss_stream.types import TranscriptWarning, Usage


class _Command(Enum):
    COMMIT = "commit"
    CLEAR = "clear"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class _Mark:
    """A command that takes effect at a position of the audio, once that is examined."""

    command: _Command
    at: int

    @property
    def due_at(self) -> int:
        """Audio that must be examined before: for the end of the stream all, else whole frames."""
        frames = self.at / VAD_FRAME_SAMPLES
        whole = math.ceil(frames) if self.command is _Command.FINISH else math.floor(frames)
        return whole * VAD_FRAME_SAMPLES


class LiveSession:
    """The state machine of one stream.

    Args:
        config: Limits and policies.
        codec: The tokenizer of the model that decodes.
    """

    def __init__(self, config: LiveConfig, codec: TextCodec) -> None:
        self.config = config
        self._codec = codec
        self._buffer = SampleBuffer(to_samples(config.max_buffer_s))
        self._endpointer = Endpointer(config)
        self._context = Context(config, codec)
        self._ledger = Ledger()
        self._planner = Planner(config, codec, self._context, self._ledger, self._buffer.read)
        self._marks: deque[_Mark] = deque()
        self._growing: Utterance | None = None
        self._num_utterances = 0
        self._next_frame = 0
        self._audio_came_s = -math.inf
        self._takes_audio = True
        self._has_ended = False
        self._is_finished = False

    # What the caller may ask.

    @property
    def received_at(self) -> int:
        """Samples received."""
        return self._buffer.end_at

    @property
    def examined_at(self) -> int:
        """Samples whose speech probability is known."""
        return min(self._next_frame * VAD_FRAME_SAMPLES, self.received_at)

    @property
    def decoded_at(self) -> int:
        """After the last sample that some text, partial or final, has covered."""
        return self._planner.decoded_at

    @property
    def room(self) -> int:
        """Samples that `receive` still takes."""
        return self._buffer.max_samples - len(self._buffer)

    @property
    def is_finished(self) -> bool:
        """Whether `Finished` was given out: nothing more comes."""
        return self._is_finished

    def accounted(self) -> tuple[Stretch, ...]:
        """What became of each sample: touching stretches up to `received_at`, oldest folded."""
        return self._ledger.stretches(self.received_at)

    def totals(self) -> dict[Outcome, int]:
        """Samples by outcome since the start; they add up to `received_at`."""
        return self._ledger.totals(self.received_at)

    def pending_frames(self) -> FrameBatch:
        """The frames that `probabilities` is to answer next; the same until it did."""
        samples = self._buffer.read(self.examined_at, self.received_at)
        wanted = self._num_pending * VAD_FRAME_SAMPLES
        frames = np.zeros(wanted, np.float32)
        frames[: min(wanted, len(samples))] = samples[:wanted]
        return FrameBatch(self._next_frame, frames.reshape(-1, VAD_FRAME_SAMPLES))

    @property
    def _num_pending(self) -> int:
        """Frames received whole and not examined; the stream's very last one counts as whole."""
        samples = self.received_at - self.examined_at
        if not self._takes_audio:
            samples += VAD_FRAME_SAMPLES - 1
        return samples // VAD_FRAME_SAMPLES

    # What the caller brings.

    def receive(self, samples: npt.NDArray[np.float32], now_s: float) -> list[Output]:
        """Take the next audio of the stream.

        Args:
            samples: [n] float32 mono at 16 kHz; copied.
            now_s: The caller's clock.

        Raises:
            OutOfOrder: The stream was finished.
            UnsupportedAudio: A sample is no number a sound can have; nothing was taken.
            QueueFull: There is no room; nothing was taken, try again when there is.
        """
        if not self._takes_audio:
            raise OutOfOrder("audio came after the end of the stream")
        check_values(samples, first_at=self.received_at)
        self._buffer.append(samples)
        self._audio_came_s = now_s
        return self._plan(now_s)

    def probabilities(
        self, first_frame: int, probabilities: Sequence[float], now_s: float
    ) -> list[Output]:
        """Take the speech probabilities of pending frames.

        Args:
            first_frame: As `pending_frames` named it.
            probabilities: Of that frame and those after it, not necessarily all pending ones.
            now_s: The caller's clock.

        Raises:
            StateError: These frames are not pending.
        """
        count = len(probabilities)
        if first_frame != self._next_frame or count > self._num_pending:
            raise StateError(
                f"{count} probabilities came from frame {first_frame} on, pending are "
                f"{self._num_pending} from {self._next_frame} on"
            )
        outputs: list[Output] = []
        for probability in probabilities:
            frame_at = self._next_frame * VAD_FRAME_SAMPLES
            self._next_frame += 1
            frame_end = self.examined_at  # less than a frame on at the end of the stream
            for event in self._endpointer.push(frame_at, frame_end, float(probability)):
                outputs += self._follow(event)
            outputs += self._obey()
        self._ledger.silence_until(min(self._endpointer.quiet_until, self.received_at))
        return outputs + self._plan(now_s)

    def hypothesis(
        self,
        request_id: int,
        token_ids: Sequence[int],
        now_s: float,
        *,
        is_complete: bool = True,
        warnings: tuple[TranscriptWarning, ...] = (),
        usage: Usage | None = None,
    ) -> list[Output]:
        """Take the answer to a decode request; one that was cancelled is ignored.

        Args:
            request_id: Of the request.
            token_ids: The output, the forced tokens first, the end token apart.
            now_s: The caller's clock.
            is_complete: Whether the model ended it by itself; a loop or a limit did not.
            warnings: What the decoder has to say, with times in model time.
            usage: What it cost.

        Raises:
            StateError: The output does not begin with the tokens that were forced.
        """
        if self._planner.linker.is_asked(request_id):
            return self._planner.linker.answer(token_ids) + self._plan(now_s)
        utterance = self._planner.asker(request_id)
        if utterance is None or utterance.request is None:
            return []
        request = utterance.request
        if tuple(token_ids[: len(request.forced)]) != request.forced:
            raise StateError(f"the answer to request {request_id} lacks its forced tokens")
        own_ids = tuple(token_ids[len(utterance.base.token_ids) :])
        if utterance is self._growing and utterance.pause_end_at is not None:
            # Text of less than the speech heard says nothing about how the speech ended.
            if request.end_at >= utterance.speech_end_at:
                self._endpointer.hint(text_hint(plain_text(self._codec.decode(own_ids))))
        answer = Answer(request.end_at, own_ids, is_complete, warnings, usage or Usage())
        outputs = self._planner.answer(utterance, answer, self._now(now_s))
        return outputs + self._plan(now_s)

    def failed(self, request_id: int, error: MossStreamError, now_s: float) -> list[Output]:
        """Take the news that a decode request failed or was cancelled by somebody else.

        A final that failed for a reason that may pass is tried again after a while, by `tick`.
        """
        if self._planner.linker.is_asked(request_id):
            return self._planner.linker.fail(error, now_s) + self._plan(now_s)
        utterance = self._planner.asker(request_id)
        if utterance is None:
            return []
        return self._planner.fail(utterance, error, self._now(now_s)) + self._plan(now_s)

    def started(self, request_id: int) -> None:
        """The engine works on a request: a newer refresh no longer replaces it, it waits."""
        utterance = self._planner.asker(request_id)
        if utterance is not None:
            utterance.is_request_started = True

    def set_load(self, factor: float) -> None:
        """Stretch the refresh interval: 1 for an idle engine, 2 for half as many refreshes.

        Raises:
            ConfigError: The factor is below 1 or no number.
        """
        check_range("factor", factor, 1, math.inf)
        self._planner.load = factor

    def configure(self, config: LiveConfig) -> None:
        """Find utterances otherwise from the next frame on; all else stays as it was made."""
        self._endpointer.configure(config)
        self._planner.configure(config)

    def commit(self, now_s: float) -> list[Output]:
        """End the open utterance here; `CommitDone` tells when that is done.

        Raises:
            OutOfOrder: The stream was finished.
        """
        return self._command(_Command.COMMIT, now_s)

    def clear(self, now_s: float) -> list[Output]:
        """Drop the audio of the open utterance; the `Gap` tells which. Ended ones are kept.

        Raises:
            OutOfOrder: The stream was finished.
        """
        return self._command(_Command.CLEAR, now_s)

    def finish(self, now_s: float) -> list[Output]:
        """End the stream. The last frames may still be pending; `Finished` comes after all finals.

        Raises:
            OutOfOrder: It was finished before.
        """
        return self._command(_Command.FINISH, now_s)

    def tick(self, now_s: float) -> list[Output]:
        """Do what is due by time: retries, and text for the last audio when no more comes."""
        return self._plan(now_s)

    def merge_speakers(self, duplicate: str, into: str) -> list[Output]:
        """Take two speakers for one from now on, and say so for the past.

        Raises:
            NotFound: Nobody is called so.
            InvalidMessage: They are the same name.
        """
        self._context.speakers.merge(duplicate, into)
        return [Relabel(duplicate, into)]

    # How it works.

    def _now(self, now_s: float) -> Now:
        return Now(now_s, self.received_at, self.examined_at, self._audio_came_s)

    def _plan(self, now_s: float) -> list[Output]:
        """Ask for what is due, then let go of audio that nothing needs any more."""
        outputs = self._planner.plan(self._now(now_s))
        needed_at = min(self._planner.oldest_at, self._endpointer.quiet_until, self.examined_at)
        self._buffer.drop_before(int(needed_at))
        is_done = math.isinf(self._planner.oldest_at) and not self._planner.linker.is_busy
        if self._has_ended and not self._is_finished and is_done:
            self._is_finished = True
            outputs.append(Finished(self.received_at))
        return outputs

    def _follow(self, event: EndpointEvent) -> Iterable[Output]:
        """Carry out what the endpointer found."""
        match event:
            case Onset():
                return self._begin(event.start_at)
            case Pause():
                utterance = self._speaking()
                utterance.speech_end_at = event.speech_end_at
                utterance.pause_end_at = event.end_at
                return ()
            case Resume():
                return self._planner.resume(self._speaking())
            case SplitLikely():
                self._speaking().split_at = event.end_at
                return ()
            case Endpoint():
                return (self._end(event),)

    def _begin(self, start_at: int) -> Iterable[Output]:
        self._num_utterances += 1
        policy = CommitPolicy(self._codec.decode, self.config.commit_margin_s)
        self._growing = Utterance(self._num_utterances, start_at, start_at, policy)
        self._planner.add(self._growing)
        self._ledger.silence_until(start_at)
        return (SpeechStarted(self._num_utterances, start_at, self.examined_at),)

    def _end(self, endpoint: Endpoint) -> Output:
        utterance = self._speaking()
        self._growing = None
        utterance.speech_end_at = endpoint.speech_end_at
        utterance.end_at = endpoint.end_at
        self._ledger.utterance(utterance.id, endpoint.end_at)
        return SpeechStopped(
            utterance_id=utterance.id,
            start_at=utterance.start_at,
            speech_end_at=endpoint.speech_end_at,
            end_at=endpoint.end_at,
            decided_at=max(self.examined_at, endpoint.end_at),
            is_split=endpoint.is_split,
        )

    def _speaking(self) -> Utterance:
        if self._growing is None:
            raise StateError("the endpointer spoke of an utterance that is not open")
        return self._growing

    def _command(self, command: _Command, now_s: float) -> list[Output]:
        if not self._takes_audio:
            raise OutOfOrder(f"{command.value} came after the end of the stream")
        if command is _Command.FINISH:
            self._takes_audio = False
        self._marks.append(_Mark(command, self.received_at))
        return self._obey() + self._plan(now_s)

    def _obey(self) -> list[Output]:
        """Carry out the commands whose position is examined."""
        outputs: list[Output] = []
        while self._marks and self._marks[0].due_at <= self._next_frame * VAD_FRAME_SAMPLES:
            mark = self._marks.popleft()
            if mark.command is _Command.CLEAR:
                outputs += self._clear(mark.at)
                continue
            events = self._endpointer.flush(mark.at)
            for event in events:
                outputs += self._follow(event)
            if mark.command is _Command.COMMIT:
                ended = self._num_utterances if events else None
                outputs.append(CommitDone(ended, mark.at))
            else:
                self._ledger.silence_until(mark.at)
                self._has_ended = True
        return outputs

    def _clear(self, at: int) -> list[Output]:
        outputs: list[Output] = []
        if self._growing is not None:
            outputs += self._planner.drop(self._growing)
            self._growing = None
        self._endpointer.reset(at)
        start_at = self._ledger.settled_at
        if at > start_at:
            self._ledger.gap_until(at)
            outputs.append(Gap(start_at, at, "cleared"))
        return outputs
