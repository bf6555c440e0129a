"""Speech probabilities for every session at once: one model, one call for the frames of all.

The scorer knows who waits; every so often it takes the pending frames of all of them, scores them
in a worker thread and gives each its own. What a session remembers between frames is kept here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Protocol

import numpy as np
import torch

from moss_stream.live.events import FrameBatch
from moss_stream.model.vad import Vad, VadState

ROUND_S = 0.03
"""Time between two rounds: about one frame of every stream in each."""
MAX_FRAMES = 64
"""Most frames of one session in a round, so that a burst of one does not hold up the others."""


class Listener(Protocol):
    """A session whose frames are scored."""

    def pending_frames(self) -> FrameBatch:
        """The frames to score next."""
        ...

    def scored(self, first_frame: int, probabilities: Sequence[float]) -> None:
        """Take their probabilities."""
        ...


class Scorer:
    """Scores the frames of all sessions.

    Args:
        vad: The model.
        workers: Runs it.
    """

    def __init__(self, vad: Vad, workers: Executor) -> None:
        self._vad = vad
        self._workers = workers
        self._states: dict[Listener, VadState] = {}
        self._waiting: set[Listener] = set()
        self._wake = asyncio.Event()

    def add(self, listener: Listener) -> None:
        """Look after a session, from its first frame on."""
        self._states[listener] = VadState.start()

    def remove(self, listener: Listener) -> None:
        """Forget a session."""
        self._states.pop(listener, None)
        self._waiting.discard(listener)

    def notice(self, listener: Listener) -> None:
        """A session has new frames."""
        if listener in self._states:
            self._waiting.add(listener)
            self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            started_s = loop.time()
            await self._round(loop)
            if self._waiting:
                self._wake.set()
            await asyncio.sleep(max(0.0, ROUND_S - (loop.time() - started_s)))

    async def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, set()
        asked = [(listener, listener.pending_frames()) for listener in waiting]
        asked = [(listener, batch) for listener, batch in asked if len(batch.samples)]
        if not asked:
            return
        listeners = [listener for listener, _ in asked]
        states = [self._states[listener] for listener in listeners]
        frames = [batch.samples[:MAX_FRAMES] for _, batch in asked]
        scores, states = await loop.run_in_executor(
            self._workers, score_frames, self._vad, frames, states
        )
        for (listener, batch), probabilities, state in zip(asked, scores, states, strict=True):
            if listener not in self._states:
                continue  # it left meanwhile
            self._states[listener] = state
            if len(batch.samples) > MAX_FRAMES:
                self._waiting.add(listener)
            listener.scored(batch.first_frame, probabilities)


def score_frames(
    vad: Vad, frames: Sequence[np.ndarray], states: Sequence[VadState]
) -> tuple[list[list[float]], list[VadState]]:
    """Score the next frames of several streams.

    Args:
        vad: The model.
        frames: Of each stream [n, 512] float32, n its own.
        states: Of the same streams.

    Returns:
        The probabilities and the new state of each stream.
    """
    scores: list[list[float]] = [[] for _ in frames]
    latest = list(states)
    for step in range(max(len(own) for own in frames)):
        members = [i for i, own in enumerate(frames) if len(own) > step]
        batch = torch.from_numpy(np.stack([frames[i][step] for i in members]))
        probabilities, state = vad(batch, VadState.join([latest[i] for i in members]))
        pairs = zip(members, probabilities.tolist(), state.split(), strict=True)
        for i, probability, own_state in pairs:
            scores[i].append(probability)
            latest[i] = own_state
    return scores, latest
