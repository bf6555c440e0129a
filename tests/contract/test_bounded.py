"""Contract 6: memory, queues and caches have limits, and an idle engine holds nothing."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.clips import load_clip
from support.engine import blocked, make_request, running

from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Priority, Request
from moss_stream.errors import Cancelled, CapacityError, QueueFull
from moss_stream.model.checkpoint import Model

SPEECH = np.resize(load_clip("mix_duo_002"), 16_000 * 120)


def recording(index: int, seconds: float = 12.0) -> npt.NDArray[np.float32]:
    """Audio no other index has, as memory of its own."""
    start = 1600 * index
    return SPEECH[start : start + int(16_000 * seconds)].copy()


def run_round(engine: Engine, model: Model, first: int, num_requests: int = 12) -> None:
    """Requests of every fate: finished, cancelled while waiting or running, streamed, abandoned."""
    handles = [
        engine.submit(make_request(model, recording(first + i), max_new_tokens=12))
        for i in range(num_requests)
    ]
    handles[0].cancel()
    next(handles[1].tokens(), None)
    handles[1].cancel()
    for handle in handles[:2]:
        with pytest.raises(Cancelled):
            handle.result(60)
    list(handles[2].tokens())
    for handle in handles[2:-1]:
        handle.result(60)
    # The last one's owner never asks again.


def num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_memory_stays_flat_over_many_requests(tiny: Model) -> None:
    with running(tiny, kv_bytes=8 << 20, encoder_cache_entries=4) as engine:
        run_round(engine, tiny, 0)
        run_round(engine, tiny, 12)
        tracemalloc.start()
        tensors = num_tensors()
        before = tracemalloc.get_traced_memory()[0]
        for index in range(2, 7):
            run_round(engine, tiny, 12 * index)
        grown_tensors = num_tensors() - tensors
        grown_bytes = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    # Sixty recordings of 768 kB came and went; one or two may still be on their way out.
    assert grown_bytes < 2 << 20
    assert grown_tensors < 20


def test_idle_engine_holds_no_kv_whatever_happened(tiny: Model) -> None:
    with running(tiny, kv_bytes=8 << 20) as engine:
        run_round(engine, tiny, 0)
        assert engine.drain(60)
        stats = engine.stats()
        engine.check_idle()
    assert (stats.active, stats.waiting, stats.kv_used) == (0, 0, 0)
    assert stats.kv_cached <= stats.kv_blocks


def test_more_work_than_kv_waits_and_all_of_it_ends(tiny: Model) -> None:
    request = make_request(tiny, recording(0), max_new_tokens=64)
    position_bytes = tiny.spec.decoder.kv_position_bytes(tiny.dtype.itemsize)
    room = 2 * (len(request.prompt.ids) + request.max_new_tokens + 16)
    seen: list[tuple[int, int]] = []
    with running(tiny, kv_bytes=room * position_bytes) as engine:
        forward = engine._runner.forward

        def watch(*arguments: Any) -> list[list[int]]:
            stats = engine.stats()
            seen.append((stats.kv_used, stats.active))
            return forward(*arguments)

        engine._runner.forward = watch  # type: ignore[method-assign]
        handles = [
            engine.submit(make_request(tiny, recording(i), max_new_tokens=64)) for i in range(8)
        ]
        assert all(len(handle.result(60).token_ids) == 64 for handle in handles)
        num_blocks = engine.stats().kv_blocks
    assert max(used for used, _ in seen) <= num_blocks
    assert max(active for _, active in seen) == 2


def test_a_request_beyond_the_kv_is_refused_at_the_door(tiny: Model) -> None:
    with running(tiny, kv_bytes=1 << 20) as engine:
        limit = engine.stats().kv_blocks * engine.config.block_tokens
        with pytest.raises(CapacityError, match=f"holds {limit}"):
            engine.submit(make_request(tiny, recording(0), max_new_tokens=limit))


def test_encoder_cache_keeps_to_entries_and_bytes(tiny: Model) -> None:
    entry_bytes = 4 * 150 * tiny.spec.decoder.width
    limits: list[dict[str, int]] = [
        {"encoder_cache_entries": 3},
        {"encoder_cache_bytes": 3 * entry_bytes},
        {"encoder_cache_entries": 0},
    ]
    for limit in limits:
        with running(tiny, **limit) as engine:
            for index in range(6):
                engine.submit(make_request(tiny, recording(index), max_new_tokens=2)).result(60)
            assert len(engine._cache) == (0 if limit.get("encoder_cache_entries") == 0 else 3)
            assert engine._cache.num_bytes <= 3 * entry_bytes


def test_a_full_queue_refuses_until_there_is_room(tiny: Model) -> None:
    with running(tiny, max_rows=1, max_waiting=3) as engine:
        release = blocked(engine)
        handles = []
        with pytest.raises(QueueFull, match="the limit is 3") as caught:
            for _ in range(5):
                handles.append(engine.submit(make_request(tiny, recording(0, 1), max_new_tokens=2)))
        assert caught.value.retryable
        release.set()
        assert all(handle.result(60) for handle in handles)
        assert engine.submit(make_request(tiny, recording(0, 1))).result(60)


def test_a_stream_that_refreshes_waits_in_one_place(tiny: Model) -> None:
    def refresh(index: int) -> Request:
        audio = recording(0, 1 + index / 10)
        return make_request(tiny, audio, priority=Priority.PARTIAL, stream_id="one")

    with running(tiny, max_rows=1, max_waiting=2) as engine:
        release = blocked(engine)
        first = make_request(tiny, recording(1), max_new_tokens=2, priority=Priority.FINAL)
        ahead = engine.submit(first)
        handles = [engine.submit(refresh(index)) for index in range(20)]
        assert engine.stats().waiting <= 2  # the other is the one ahead, if it is not planned yet
        release.set()
        assert ahead.result(60)
        for handle in handles[:-1]:
            with pytest.raises(Cancelled):
                handle.result(60)
        assert handles[-1].result(60)
