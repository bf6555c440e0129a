"""The engine thread: plans, runs and delivers one step after another for every request at once.

Callers touch the scheduler under the engine's lock; the thread holds the lock while it plans and
while it applies outcomes, never while the model runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

import torch

from moss_stream.config import EngineConfig
from moss_stream.engine.delivery import AsyncHandle, Handle, Outbox, Receiver
from moss_stream.engine.encoder_cache import EncoderCache
from moss_stream.engine.job import Job
from moss_stream.engine.request import Request, TokenDelta
from moss_stream.engine.runner import Embeddings, Runner
from moss_stream.engine.scheduler import Row, Scheduler
from moss_stream.engine.sequence import Sequence, State
from moss_stream.errors import (
    Cancelled,
    DeviceError,
    EngineStopped,
    MossStreamError,
    RequestFailed,
)
from moss_stream.model.checkpoint import Model
from moss_stream.model.memory import keep_freed_memory
from moss_stream.model.threads import in_passing, use_threads
from moss_stream.types import Window

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.002
"""Pause when everything waits for something outside the engine, such as company for a prefill."""
MAX_BREAKDOWNS = 10
"""Breakdowns within `BREAKDOWN_SPAN_S` after which the engine starts over; one more ends it.

More than a live final is tried, so that one on which the engine breaks does not end it.
"""
BREAKDOWN_SPAN_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A look at the engine."""

    waiting: int
    """Requests waiting for admission."""
    active: int
    """Requests that hold KV."""
    finals: int
    """Finals among them: while there are any, nothing else is begun."""
    kv_blocks: int
    """Blocks in all."""
    kv_used: int
    """Blocks held by requests."""
    kv_cached: int
    """Blocks held by nobody that may still be hit."""
    encoder_hits: int
    encoder_misses: int
    steps: int
    """Forwards run."""


class Engine:
    """Encodes, prefills, verifies and decodes for every request at once, on a thread of its own.

    Args:
        model: The checkpoint.
        config: Sizes and limits.
        threads: CPU threads of the model; None leaves torch's own choice.
    """

    def __init__(
        self, model: Model, config: EngineConfig | None = None, *, threads: int | None = None
    ) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self._threads = threads
        if model.device.type == "cpu":
            keep_freed_memory()
        self._runner = in_passing(partial(Runner, model, self.config))
        self._scheduler = Scheduler(self.config, self._runner.num_blocks)
        self._cache: EncoderCache[torch.Tensor] = EncoderCache(
            self.config.encoder_cache_entries, self.config.encoder_cache_bytes
        )
        self._jobs: dict[int, Job] = {}
        self._outbox = Outbox()
        self._steps = 0
        self._next_id = 0
        self._stop: EngineStopped | None = None
        """Why nothing more is accepted."""
        self._closing = False
        self._breakdowns_s: list[float] = []
        """When the engine broke down lately."""
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="moss-engine", daemon=True)
        self._thread.start()

    @property
    def max_tokens(self) -> int:
        """Positions the longest request may take: prompt and output together."""
        blocks = self._runner.num_blocks * self.config.block_tokens
        return min(self.model.spec.decoder.max_positions, blocks)

    @property
    def why_stopped(self) -> str | None:
        """Why nothing more is accepted; None while it is."""
        stop = self._stop
        return None if stop is None else stop.message

    def submit(self, request: Request) -> Handle:
        """Queue a request; for callers outside an event loop.

        Raises:
            CapacityError: It can never fit, or too many wait already.
            EngineStopped: The engine is draining or closed.
        """
        sequence = self._new_sequence(request)
        handle = Handle(partial(self._cancel, sequence.id))
        self._queue(sequence, handle)
        return handle

    def submit_async(self, request: Request) -> AsyncHandle:
        """Queue a request; for callers on an event loop.

        Raises:
            CapacityError: It can never fit, or too many wait already.
            EngineStopped: The engine is draining or closed.
        """
        sequence = self._new_sequence(request)
        handle = AsyncHandle(partial(self._cancel, sequence.id))
        self._queue(sequence, handle)
        return handle

    def stats(self) -> EngineStats:
        """Look at the engine now."""
        with self._wake:
            pool = self._scheduler.pool
            return EngineStats(
                waiting=self._scheduler.num_waiting,
                active=self._scheduler.num_active,
                finals=self._scheduler.num_finals,
                kv_blocks=self._runner.num_blocks,
                kv_used=pool.num_used,
                kv_cached=pool.num_cached,
                encoder_hits=self._cache.hits,
                encoder_misses=self._cache.misses,
                steps=self._steps,
            )

    def drain(self, timeout_s: float | None = None) -> bool:
        """Accept nothing more and finish the rest; True when everything ended in time."""
        with self._wake:
            self._stop = self._stop or EngineStopped("the engine is draining")
            return self._wake.wait_for(lambda: not self._jobs, timeout_s)

    def close(self) -> None:
        """Stop at the next step; what is unfinished ends with `EngineStopped`."""
        with self._wake:
            self._stop = EngineStopped("the engine is closed")
            self._closing = True
            self._wake.notify_all()
        self._thread.join()

    def check_idle(self) -> None:
        """Verify that no KV block is lost.

        Raises:
            StateError: Blocks are unaccounted for, or requests are still running.
        """
        with self._wake:
            self._scheduler.pool.check_idle()

    def _new_sequence(self, request: Request) -> Sequence:
        with self._wake:
            self._next_id += 1
            return Sequence(self._next_id, request)

    def _queue(self, sequence: Sequence, receiver: Receiver) -> None:
        with self._wake:
            if self._stop is not None:
                # One of its own: an error keeps the frames it went through, and so their audio.
                raise EngineStopped(self._stop.message)
            embeddings = Embeddings([None] * len(sequence.request.windows))
            job = Job(sequence, receiver, embeddings, submitted_s=time.monotonic())
            replaced = self._scheduler.submit(sequence)
            self._jobs[sequence.id] = job
            if replaced is not None:
                self._fail(self._jobs[replaced.id], Cancelled("replaced by a newer refresh"))
                self._outbox.flush()
            self._wake.notify_all()

    def _cancel(self, sequence_id: int) -> None:
        # By id: a handle that held its job would keep the audio until the cycle is collected.
        with self._wake:
            job = self._jobs.get(sequence_id)
            if job is not None:
                self._scheduler.cancel(job.sequence)
                self._fail(job, Cancelled("cancelled by its caller"))
                self._outbox.flush()
                self._wake.notify_all()

    def _run(self) -> None:
        if self._threads is not None:
            use_threads(self._threads)
        while True:
            try:
                while self._await_work():
                    self._step()
                break
            except Exception:  # a bug in the engine itself, since a failing model fails a request
                logger.exception("engine broke down")
                if not self._start_over():
                    break
        with self._wake:
            self._fail_all(EngineStopped("the engine is closed"))

    def _start_over(self) -> bool:
        """Fail all requests and begin anew; False when that did not help several times."""
        now_s = time.monotonic()
        recent = [at_s for at_s in self._breakdowns_s if now_s - at_s < BREAKDOWN_SPAN_S]
        self._breakdowns_s = [*recent, now_s]
        goes_on = len(recent) < MAX_BREAKDOWNS
        with self._wake:
            if not goes_on:
                self._stop = EngineStopped("the engine broke down; see its log")
            self._fail_all(self._stop or EngineStopped("the engine broke down and started over"))
            # Who holds what is in doubt, and with it what is in the KV memory. Embeddings are not.
            self._scheduler = Scheduler(self.config, self._runner.num_blocks)
        return goes_on

    def _fail_all(self, error: EngineStopped) -> None:
        for job in list(self._jobs.values()):
            self._fail(job, EngineStopped(error.message))
        self._outbox.flush()
        self._wake.notify_all()

    def _await_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closing or self._scheduler.has_work)
            return not self._closing

    def _step(self) -> None:
        with self._wake:
            rows = self._scheduler.plan(time.monotonic())
            jobs = [self._jobs[row.sequence.id] for row in rows]
        if rows:
            self._forward(rows, jobs)
        with self._wake:
            self._scheduler.end_step()
            wanted = self._scheduler.plan_windows(
                self.config.encode_windows, self._cache.__contains__
            )
        if wanted:
            self._encode(wanted)
        with self._wake:
            self._outbox.flush()
            if not rows and not wanted and not self._closing:
                self._wake.wait(IDLE_WAIT_S)

    def _forward(self, rows: Seq[Row], jobs: Seq[Job]) -> None:
        """Run one step and apply its outcome."""
        started_s = time.monotonic()
        outcomes = self._run_rows(rows, jobs)
        now_s = time.monotonic()
        with self._wake:
            self._steps += 1
            for row, job, outcome in zip(rows, jobs, outcomes, strict=True):
                if job.sequence.id not in self._jobs:
                    continue  # cancelled while the model ran
                if isinstance(outcome, MossStreamError):
                    self._abandon(job, outcome)
                    continue
                self._note_admission(job, started_s)
                if row.start < len(job.sequence.request.prompt.ids):
                    job.prefill_s += now_s - started_s
                else:
                    job.decode_s += now_s - started_s
                job.unsent.extend(self._scheduler.complete(row, outcome))
                self._deliver(job, now_s)

    def _run_rows(self, rows: Seq[Row], jobs: Seq[Job]) -> list[list[int] | MossStreamError]:
        """Run rows together; when that fails, each alone, so that one fails by itself.

        Running a row again is harmless: it writes the same KV to the same slots.
        """
        try:
            return list(self._runner.forward(rows, [job.embeddings for job in jobs]))
        except Exception as cause:
            error = _failure("the step", cause)
        if len(rows) == 1:
            return [error]
        return [
            outcome
            for row, job in zip(rows, jobs, strict=True)
            for outcome in self._run_rows([row], [job])
        ]

    def _deliver(self, job: Job, now_s: float) -> None:
        """Send what is due: first tokens at once, later ones at intervals, the rest at the end."""
        finished = job.sequence.state is State.FINISHED
        due = job.sent_s is None or now_s - job.sent_s >= self.config.stream_interval_s
        if job.unsent and (due or finished):
            self._outbox.add(job.receiver, TokenDelta(tuple(job.unsent)))
            job.unsent.clear()
            job.sent_s = now_s
        if finished:
            self._outbox.add(job.receiver, job.result())
            self._forget(job)

    def _encode(self, wanted: Seq[tuple[Sequence, int]]) -> None:
        """Give windows of requests their embeddings, from the cache or from the encoder."""
        started_s = time.monotonic()
        found: dict[bytes, torch.Tensor | MossStreamError] = {}
        missing: dict[bytes, tuple[Window, int]] = {}
        for sequence, index in wanted:
            window = sequence.request.windows[index]
            if window.digest in missing:
                continue
            value = self._cache.get(window.digest)
            if value is None:
                tokens = sequence.request.prompt.window_tokens[index]
                missing[window.digest] = (window, tokens)
            else:
                found[window.digest] = value
        found |= self._compute(missing)
        elapsed_s = time.monotonic() - started_s
        with self._wake:
            for sequence, index in wanted:
                job = self._jobs.get(sequence.id)
                if job is None:
                    continue  # cancelled meanwhile
                digest = sequence.request.windows[index].digest
                outcome = found[digest]
                if isinstance(outcome, MossStreamError):
                    self._abandon(job, outcome)
                    continue
                self._note_admission(job, started_s)
                job.encode_s += elapsed_s
                # Who finds a window that another asked for in the same call has not computed it.
                computed = missing.pop(digest, None) is not None
                job.encoder_misses += computed
                job.encoder_hits += not computed
                job.embeddings.windows[index] = outcome
                sequence.window_ready[index] = True

    def _compute(
        self, missing: dict[bytes, tuple[Window, int]]
    ) -> dict[bytes, torch.Tensor | MossStreamError]:
        """Encode windows; when that fails for several, each alone, so that one fails by itself."""
        if not missing:
            return {}
        windows, tokens = zip(*missing.values(), strict=True)
        try:
            embeddings = self._runner.encode(windows, tokens)
        except Exception as cause:
            error = _failure("encoding", cause)
            if len(missing) == 1:
                return dict.fromkeys(missing, error)
            outcomes: dict[bytes, torch.Tensor | MossStreamError] = {}
            for digest, window in missing.items():
                outcomes |= self._compute({digest: window})
            return outcomes
        for digest, embedding in zip(missing, embeddings, strict=True):
            self._cache.put(digest, embedding, embedding.nbytes)
        return dict(zip(missing, embeddings, strict=True))

    def _note_admission(self, job: Job, now_s: float) -> None:
        if job.admitted_s is None:
            job.admitted_s = now_s

    def _abandon(self, job: Job, error: MossStreamError) -> None:
        """End a request that cannot go on."""
        if job.sequence.id in self._jobs:
            self._scheduler.cancel(job.sequence)
            self._fail(job, error)

    def _fail(self, job: Job, error: MossStreamError) -> None:
        self._outbox.add(job.receiver, error)
        self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.sequence.id]
        if not self._jobs:
            self._wake.notify_all()


def _failure(what: str, cause: Exception) -> MossStreamError:
    """Log an exception of the model and turn it into what its requests are told."""
    logger.error("%s failed", what, exc_info=cause)
    if isinstance(cause, torch.OutOfMemoryError):
        return DeviceError(f"{what} failed: the device ran out of memory")
    return RequestFailed(f"{what} failed: {cause}")
