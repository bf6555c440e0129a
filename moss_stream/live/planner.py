"""Which decodes to ask for, and what to make of the answers.

Each open utterance has at most one request out:

    growing   a refresh when enough new audio is there; a newer one replaces one not yet started
    paused    the eager final of what ends at the pause; dropped when speech resumes
    long      between refreshes, the eager final of what ends where it will probably be split
    ended     the final, unless the eager one covers the same samples; tried again if that may help

With a context, utterances are decoded in order: each waits for the final of the one before, and
until its speakers are compared with those known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from moss_stream.errors import Cancelled, MossStreamError, StateError
from moss_stream.live.commit import CommitPolicy
from moss_stream.live.config import LiveConfig, to_samples
from moss_stream.live.context import Audio, Context
from moss_stream.live.events import (
    CancelDecode,
    DecodeKind,
    DecodeRequest,
    Failed,
    Gap,
    Output,
    SessionWarning,
)
from moss_stream.live.ledger import Ledger, Outcome
from moss_stream.live.linker import Linker
from moss_stream.live.render import final_event, hypothesis_event
from moss_stream.live.text import TextCodec
from moss_stream.live.timeline import Span
from moss_stream.live.utterance import Answer, Utterance


@dataclass(frozen=True, slots=True)
class Now:
    """Where the stream stands."""

    now_s: float
    """The caller's clock."""
    received_at: int
    """Samples received."""
    examined_at: int
    """Samples whose speech probability is known; a refresh covers no more."""
    audio_came_s: float
    """When the last audio came, on the caller's clock."""


class Planner:
    """The decodes of one session.

    Args:
        config: Limits and policies.
        codec: The tokenizer of the model that decodes.
        context: What precedes utterances; finals are added to it.
        ledger: Told what became of ended utterances.
        read: Copies the samples between two positions.
    """

    def __init__(
        self,
        config: LiveConfig,
        codec: TextCodec,
        context: Context,
        ledger: Ledger,
        read: Callable[[int, int], Audio],
    ) -> None:
        self._config = config
        self._codec = codec
        self._context = context
        self._ledger = ledger
        self._read = read
        self.linker = Linker(config, codec, context.speakers)
        """Compares speakers, which the utterances after a new one wait for."""
        self._open: list[Utterance] = []
        self._num_requests = 0
        self.load = 1.0
        self.decoded_at = 0

    @property
    def oldest_at(self) -> float:
        """First sample of the oldest utterance without a final; infinite if there is none."""
        return self._open[0].start_at if self._open else math.inf

    def configure(self, config: LiveConfig) -> None:
        """Take other intervals and deadlines from now on."""
        self._config = config

    def add(self, utterance: Utterance) -> None:
        """Take care of a new utterance."""
        self._open.append(utterance)

    def drop(self, utterance: Utterance) -> list[Output]:
        """Forget an utterance that is still growing."""
        self._open.remove(utterance)
        return self._cancel(utterance)

    def resume(self, utterance: Utterance) -> list[Output]:
        """Speech goes on: what was decoded for the pause does not count as a final."""
        utterance.pause_end_at = None
        utterance.answer = None
        request = utterance.request
        is_eager = request is not None and request.kind is DecodeKind.EAGER
        return self._cancel(utterance) if is_eager else []

    def plan(self, now: Now) -> list[Output]:
        """Give out the finals that are there and the requests that are due."""
        outputs = self.linker.plan(self._new_request_id, now.now_s)
        for utterance in list(self._open):
            if self.linker.is_busy and not utterance.is_placed:
                break  # what precedes it is not known before all its speakers are
            self._place(utterance, outputs)
            if utterance.end_at is not None:
                self._plan_final(utterance, utterance.end_at, now, outputs)
            elif utterance.pause_end_at is not None:
                self._plan_eager(utterance, utterance.pause_end_at, now, outputs)
            else:
                if utterance.split_at is not None and utterance.request is None:
                    self._plan_eager(utterance, utterance.split_at, now, outputs)
                self._plan_refresh(utterance, now, outputs)
            if self._context.is_kept and utterance in self._open:
                break
        return outputs + self.linker.plan(self._new_request_id, now.now_s)

    def asker(self, request_id: int) -> Utterance | None:
        """The utterance that waits for a request; None if it does not any more."""
        for utterance in self._open:
            if utterance.request is not None and utterance.request.request_id == request_id:
                return utterance
        return None

    def answer(self, utterance: Utterance, answer: Answer, now: Now) -> list[Output]:
        """Take the answer to the utterance's outstanding request."""
        request = self._take(utterance)
        self.decoded_at = max(self.decoded_at, request.end_at)
        if request.kind is not DecodeKind.REFRESH:
            utterance.answer = answer
        if utterance.end_at is not None or request.end_at < utterance.covered_at:
            return []
        utterance.hear(answer.token_ids)
        timeline = utterance.base.timeline.followed_by(Span(request.start_at, request.end_at))
        if not utterance.policy.observe(answer.token_ids, timeline.duration_s):
            return []  # an eager final, which decides all anew, contradicts what is committed
        utterance.revision += 1
        # What is shown goes further than the last refresh after a pause: nothing less is shown.
        utterance.covered_at = max(utterance.covered_at, request.end_at)
        lag = now.received_at - request.end_at
        return [
            hypothesis_event(
                utterance, request.end_at, lag, self._codec.decode, self._context.peeker()
            )
        ]

    def fail(self, utterance: Utterance, error: MossStreamError, now: Now) -> list[Output]:
        """Take the failure of the utterance's outstanding request."""
        request = self._take(utterance)
        if request.kind is not DecodeKind.REFRESH and utterance.end_at is not None:
            return self._final_failed(utterance, utterance.end_at, error, now.now_s)
        if request.kind is DecodeKind.EAGER:
            utterance.failed_eager_at = request.end_at
        if isinstance(error, Cancelled):
            return []
        message = f"a decode of growing speech failed: {error.code}"
        return [SessionWarning("refresh_failed", message, utterance.id)]

    def _place(self, utterance: Utterance, outputs: list[Output]) -> None:
        """Fix what precedes the utterance, once everything before it is final."""
        if utterance.is_placed:
            return
        utterance.base, dropped = self._context.begin()
        utterance.policy = CommitPolicy(
            self._codec.decode,
            self._config.commit_margin_s,
            utterance.base.timeline.duration_s,
        )
        utterance.is_placed = True
        for speaker in sorted(dropped):
            message = f"{speaker} may get another name from here on"
            outputs.append(SessionWarning("speaker_dropped", message, utterance.id))

    def _plan_refresh(self, utterance: Utterance, now: Now, outputs: list[Output]) -> None:
        edge_at = now.examined_at
        interval_s = min(self._config.refresh_s * self.load, self._config.refresh_max_s)
        request = utterance.request
        if request is not None:
            is_stale = edge_at - request.end_at >= to_samples(interval_s)
            is_refresh = request.kind is DecodeKind.REFRESH
            if utterance.is_request_started or not (is_refresh and is_stale):
                return
            outputs.extend(self._cancel(utterance))
        new = edge_at - utterance.covered_at
        has_stalled = now.now_s - now.audio_came_s >= interval_s
        if new >= to_samples(interval_s) or (new > 0 and has_stalled):
            utterance.covered_at = edge_at
            deadline_s = now.now_s + interval_s
            outputs.append(self._request(utterance, DecodeKind.REFRESH, edge_at, deadline_s))

    def _plan_eager(
        self, utterance: Utterance, end_at: int, now: Now, outputs: list[Output]
    ) -> None:
        request = utterance.request
        is_out = request is not None and (request.kind, request.end_at) == (
            DecodeKind.EAGER,
            end_at,
        )
        if is_out or not self._wants_eager(utterance, end_at):
            return
        outputs.extend(self._cancel(utterance))
        wait_s = min(self._config.endpoint_min_s - self._config.pause_s, self._config.refresh_s)
        deadline_s = now.now_s + wait_s + self._config.final_target_s
        outputs.append(self._request(utterance, DecodeKind.EAGER, end_at, deadline_s))

    def _wants_eager(self, utterance: Utterance, end_at: int) -> bool:
        """Whether the final of what ends there is decoded in advance, and is not there."""
        return (
            self._config.eager_final
            and (utterance.answer is None or utterance.answer.end_at != end_at)
            and utterance.failed_eager_at != end_at
        )

    def _plan_final(
        self, utterance: Utterance, end_at: int, now: Now, outputs: list[Output]
    ) -> None:
        answer, request = utterance.answer, utterance.request
        if answer is not None and answer.end_at == end_at:
            outputs.append(self._finalize(utterance, answer))
            return
        if request is not None:
            if request.kind is not DecodeKind.REFRESH and request.end_at == end_at:
                return
            outputs.extend(self._cancel(utterance))
        if now.now_s >= utterance.retry_at_s:
            deadline_s = now.now_s + self._config.final_target_s
            outputs.append(self._request(utterance, DecodeKind.FINAL, end_at, deadline_s))

    def _finalize(self, utterance: Utterance, answer: Answer) -> Output:
        context = self._context
        final, is_whole = final_event(utterance, answer, self._codec.decode, context.name)
        if is_whole:
            span = Span(utterance.start_at, answer.end_at)
            new = context.add(utterance.base, span, answer.token_ids, final.segments, self._read)
            self.linker.suspect(new)
        else:
            context.spoil()
        self._ledger.resolve(utterance.id, Outcome.TRANSCRIPT)
        self._open.remove(utterance)
        return final

    def _final_failed(
        self, utterance: Utterance, end_at: int, error: MossStreamError, now_s: float
    ) -> list[Output]:
        utterance.attempts += 1
        if error.retryable and utterance.attempts < self._config.max_attempts:
            utterance.retry_at_s = now_s + self._config.retry_delay_s * utterance.attempts
            message = f"attempt {utterance.attempts} failed: {error.code}"
            return [SessionWarning("final_retried", message, utterance.id)]
        self._context.spoil()
        self._ledger.resolve(utterance.id, Outcome.GAP)
        self._open.remove(utterance)
        return [
            Failed(utterance.id, error),
            Gap(utterance.start_at, end_at, "decode_failed"),
        ]

    def _request(
        self, utterance: Utterance, kind: DecodeKind, end_at: int, deadline_s: float
    ) -> DecodeRequest:
        # Committed text is known to a refresh. A final decides everything anew, so that it equals
        # the offline transcript of its samples.
        known = utterance.policy.committed if kind is DecodeKind.REFRESH else ()
        utterance.is_request_started = False
        utterance.request = DecodeRequest(
            request_id=self._new_request_id(),
            utterance_id=utterance.id,
            kind=kind,
            windows=utterance.base.windows(self._read(utterance.start_at, end_at)),
            forced=utterance.base.token_ids + known,
            draft=utterance.draft_after(known),
            earlier=utterance.earlier,
            start_at=utterance.start_at,
            end_at=end_at,
            deadline_s=deadline_s,
        )
        return utterance.request

    def _new_request_id(self) -> int:
        self._num_requests += 1
        return self._num_requests

    def _cancel(self, utterance: Utterance) -> list[Output]:
        if utterance.request is None:
            return []
        return [CancelDecode(self._take(utterance).request_id)]

    def _take(self, utterance: Utterance) -> DecodeRequest:
        """The outstanding request, which is outstanding no more.

        Raises:
            StateError: There is none.
        """
        request, utterance.request = utterance.request, None
        if request is None:
            raise StateError(f"utterance {utterance.id} waits for nothing")
        return request
