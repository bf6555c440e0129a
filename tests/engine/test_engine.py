"""The engine thread with a tiny real model behind it."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clips import load_clip
from support.engine import blocked, make_request, running

from moss_stream.engine.delivery import Handle
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Priority, Request, Result, StopReason
from moss_stream.errors import (
    Cancelled,
    CapacityError,
    DeviceError,
    EngineStopped,
    QueueFull,
    RequestFailed,
)
from moss_stream.model.checkpoint import Model

SPEECH = load_clip("mix_duo_002")


def speech(seconds: float, start_s: float = 0.0) -> npt.NDArray[np.float32]:
    start = int(start_s * 16_000)
    return np.resize(SPEECH, start + int(seconds * 16_000))[start:].astype(np.float32)


def run_alone(model: Model, request: Request) -> tuple[int, ...]:
    with running(model) as engine:
        return engine.submit(request).result(60).token_ids


def test_result_says_what_it_cost(tiny: Model) -> None:
    samples = speech(33)
    request = make_request(tiny, samples)
    with running(tiny) as engine:
        first = engine.submit(request).result(60)
        second = engine.submit(request).result(60)
    assert first.usage.audio_tokens == 375 + 38
    assert first.usage.prompt_tokens == len(request.prompt.ids)
    assert (first.usage.encoder_hits, first.usage.encoder_misses) == (0, 2)
    assert first.usage.output_tokens == len(first.token_ids) == 48
    assert first.stop_reason is StopReason.LENGTH
    assert first.usage.decode_steps == 47
    assert second.usage.prefix_hit_tokens > 0
    assert min(first.timing.encode_s, first.timing.prefill_s, first.timing.decode_s) > 0
    assert first.timing.queue_s >= 0


def test_window_asked_for_twice_is_encoded_once(tiny: Model) -> None:
    request = make_request(tiny, speech(20))
    with running(tiny) as engine:
        release = blocked(engine)
        handles = [engine.submit(request) for _ in range(4)]
        release.set()
        results = [handle.result(60) for handle in handles]
        assert engine.stats().encoder_misses == 1
    assert len({result.token_ids for result in results}) == 1
    assert sum(result.usage.encoder_misses for result in results) == 1


def test_tokens_arrive_before_the_result_and_add_up(tiny: Model) -> None:
    with running(tiny, stream_interval_s=0) as engine:
        handle = engine.submit(make_request(tiny, speech(3)))
        pieces = list(handle.tokens())
        result = handle.result(60)
    assert [token for piece in pieces for token in piece] == list(result.token_ids)
    assert len(pieces) > 10


def test_long_interval_sends_the_first_tokens_and_the_rest(tiny: Model) -> None:
    with running(tiny, stream_interval_s=10) as engine:
        handle = engine.submit(make_request(tiny, speech(3)))
        pieces = list(handle.tokens())
        result = handle.result(60)
    assert [len(piece) for piece in pieces] == [1, len(result.token_ids) - 1]


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancel_ends_a_running_request(tiny: Model, after: int) -> None:
    with running(tiny, stream_interval_s=0) as engine:
        handle = engine.submit(make_request(tiny, speech(40), max_new_tokens=400))
        pieces = handle.tokens()
        for _ in range(after):
            next(pieces)
        handle.cancel()
        with pytest.raises(Cancelled):
            handle.result(60)
        handle.cancel()
        assert engine.submit(make_request(tiny, speech(2))).result(60)


def test_cancel_while_the_model_runs_frees_everything(tiny: Model) -> None:
    with running(tiny) as engine:
        release = blocked(engine)
        handles = [engine.submit(make_request(tiny, speech(2 + i))) for i in range(3)]
        for handle in handles:
            handle.cancel()
        release.set()
        for handle in handles:
            with pytest.raises(Cancelled):
                handle.result(60)


def test_newer_refresh_replaces_a_waiting_one(tiny: Model) -> None:
    fields: dict[str, Any] = {"priority": Priority.PARTIAL, "stream_id": "a"}
    with running(tiny, max_rows=1) as engine:
        release = blocked(engine)
        # A final, so that it is served first whatever else has been submitted by then.
        running_one = engine.submit(
            make_request(tiny, speech(30), max_new_tokens=4, priority=Priority.FINAL)
        )
        old = engine.submit(make_request(tiny, speech(2), **fields))
        other = engine.submit(make_request(tiny, speech(2), **fields | {"stream_id": "b"}))
        new = engine.submit(make_request(tiny, speech(3), **fields))
        release.set()
        with pytest.raises(Cancelled, match="replaced by a newer refresh"):
            old.result(60)
        assert all(isinstance(h.result(60), Result) for h in (running_one, other, new))


def test_finals_overtake_partials_and_files(tiny: Model) -> None:
    fields: dict[str, dict[str, Any]] = {
        "file": {"priority": Priority.FILE},
        "late partial": {"priority": Priority.PARTIAL, "deadline_s": 9.0},
        "early partial": {"priority": Priority.PARTIAL, "deadline_s": 3.0},
        "final": {"priority": Priority.FINAL},
    }
    served: dict[Request, None] = {}
    with running(tiny, max_rows=1) as engine:
        forward = engine._runner.forward

        def watch(rows: Any, *rest: Any) -> list[list[int]]:
            served.update((row.sequence.request, None) for row in rows)
            return forward(rows, *rest)

        engine._runner.forward = watch  # type: ignore[method-assign]
        release = blocked(engine)
        # A final, so that it is served first whatever else has been submitted by then.
        first = make_request(tiny, speech(10), max_new_tokens=2, priority=Priority.FINAL)
        requests = {
            name: make_request(tiny, speech(1), max_new_tokens=4, **own)
            for name, own in fields.items()
        }
        handles = [engine.submit(request) for request in (first, *requests.values())]
        release.set()
        for handle in handles:
            handle.result(60)
    order = [name for request in served for name in requests if request is requests[name]]
    assert order == ["final", "early partial", "late partial", "file"]


def test_a_request_that_never_fits_names_the_limit(tiny: Model) -> None:
    with running(tiny, kv_bytes=1 << 18) as engine, pytest.raises(CapacityError, match="tokens"):
        engine.submit(make_request(tiny, speech(120), max_new_tokens=512))


def test_a_full_queue_refuses_the_next_request(tiny: Model) -> None:
    with running(tiny, max_rows=1, max_waiting=2) as engine:
        release = blocked(engine)
        handles = [engine.submit(make_request(tiny, speech(1), max_new_tokens=2))]
        with pytest.raises(QueueFull, match="the limit is 2"):
            for _ in range(4):
                handles.append(engine.submit(make_request(tiny, speech(1), max_new_tokens=2)))
        release.set()
        assert all(handle.result(60) for handle in handles)


def test_a_failed_encoding_fails_its_request_alone(
    tiny: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tiny) as engine:
        encode = engine._runner.encode
        bad = make_request(tiny, speech(2))

        def fail_one(windows: Any, tokens: Any) -> list[torch.Tensor]:
            if bad.windows[0].digest in {window.digest for window in windows}:
                raise ValueError("broken window")
            return encode(windows, tokens)

        engine._runner.encode = fail_one  # type: ignore[method-assign]
        good_handle = engine.submit(make_request(tiny, speech(3)))
        with pytest.raises(RequestFailed, match="broken window"):
            engine.submit(bad).result(60)
        assert good_handle.result(60)
    assert "encoding failed" in caplog.text


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(RuntimeError("kernel"), RequestFailed), (torch.OutOfMemoryError("full"), DeviceError)],
)
def test_a_failed_step_fails_its_requests_and_the_engine_lives(
    tiny: Model,
    caplog: pytest.LogCaptureFixture,
    raised: Exception,
    expected: type[Exception],
) -> None:
    request = make_request(tiny, speech(2))
    alone = run_alone(tiny, request)
    with running(tiny) as engine:
        forward = engine._runner.forward

        def fail(*_: Any) -> list[list[int]]:
            raise raised

        engine._runner.forward = fail  # type: ignore[method-assign]
        with pytest.raises(expected):
            engine.submit(request).result(60)
        engine._runner.forward = forward  # type: ignore[method-assign]
        assert engine.submit(request).result(60).token_ids == alone


def test_a_row_that_fails_fails_its_request_alone(
    tiny: Model, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [make_request(tiny, speech(2 + i)) for i in range(3)]
    alone = [run_alone(tiny, request) for request in requests]
    with running(tiny) as engine:
        forward = engine._runner.forward

        def fail_second(rows: Any, embeddings: Any) -> list[list[int]]:
            if any(row.sequence.request is requests[1] for row in rows):
                raise ValueError("bad row")
            return forward(rows, embeddings)

        engine._runner.forward = fail_second  # type: ignore[method-assign]
        handles = [engine.submit(request) for request in requests]
        with pytest.raises(RequestFailed, match="bad row"):
            handles[1].result(60)
        assert [handles[i].result(60).token_ids for i in (0, 2)] == [alone[0], alone[2]]
    assert "the step failed" in caplog.text


def test_drain_finishes_what_runs_and_refuses_more(tiny: Model) -> None:
    with running(tiny) as engine:
        handle = engine.submit(make_request(tiny, speech(2)))
        assert engine.drain(60)
        assert handle.result(0.1)
        with pytest.raises(EngineStopped, match="draining"):
            engine.submit(make_request(tiny, speech(2)))


def test_drain_that_takes_too_long_says_so(tiny: Model) -> None:
    with running(tiny) as engine:
        release = blocked(engine)
        handle = engine.submit(make_request(tiny, speech(2)))
        assert not engine.drain(0.01)
        release.set()
        assert handle.result(60)


def test_close_ends_what_runs(tiny: Model) -> None:
    engine = Engine(tiny, threads=1)
    handle = engine.submit(make_request(tiny, speech(60), max_new_tokens=2000))
    engine.close()
    with pytest.raises(EngineStopped):
        handle.result(60)
    with pytest.raises(EngineStopped, match="closed"):
        engine.submit(make_request(tiny, speech(2)))
    engine.close()


def test_asyncio_face_streams_and_returns(tiny: Model) -> None:
    request = make_request(tiny, speech(3))
    alone = run_alone(tiny, request)

    async def use(engine: Engine) -> None:
        handles = [engine.submit_async(request) for _ in range(3)]
        pieces = [piece async for piece in handles[0].tokens()]
        assert tuple(token for piece in pieces for token in piece) == alone
        results = await asyncio.gather(*(handle.result() for handle in handles))
        assert {result.token_ids for result in results} == {alone}
        cancelled = engine.submit_async(make_request(tiny, speech(40), max_new_tokens=900))
        cancelled.cancel()
        with pytest.raises(Cancelled):
            await cancelled.result()

    with running(tiny) as engine:
        asyncio.run(use(engine))


def test_one_step_reaches_an_event_loop_in_one_call(
    tiny: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(engine: Engine) -> None:
        release = blocked(engine)
        handles = [engine.submit_async(make_request(tiny, speech(2))) for _ in range(4)]
        loop = asyncio.get_running_loop()
        calls = 0
        call_soon = loop.call_soon_threadsafe

        def count(*arguments: Any) -> asyncio.Handle:
            nonlocal calls
            calls += 1
            return call_soon(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", count)
        release.set()
        await asyncio.gather(*(handle.result() for handle in handles))
        assert calls <= engine.stats().steps

    with running(tiny, stream_interval_s=0) as engine:
        asyncio.run(use(engine))


def test_sampling_depends_on_the_seed_alone(tiny: Model) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 7}
    request = make_request(tiny, speech(3), **fields)
    alone = run_alone(tiny, request)
    other = run_alone(tiny, make_request(tiny, speech(3), temperature=1.0, seed=8))
    assert alone != other
    with running(tiny, step_tokens=64) as engine:
        crowd = [engine.submit(make_request(tiny, speech(2 + i))) for i in range(3)]
        drafted = make_request(tiny, speech(3), draft=(*alone[:10], 5, *alone[10:]), **fields)
        handles = [engine.submit(request), engine.submit(drafted)]
        assert [handle.result(60).token_ids for handle in handles] == [alone, alone]
        assert all(handle.result(60) for handle in crowd)


def test_a_finished_request_is_let_go_without_the_collector(tiny: Model) -> None:
    request = make_request(tiny, speech(2), max_new_tokens=2)
    gone = weakref.ref(request.windows[0].samples)
    gc.disable()
    try:
        with running(tiny, encoder_cache_entries=0) as engine:
            handle = engine.submit(request)
            handle.result(60)
            del handle, request
            # Another step, so that the engine's own locals speak of something else.
            engine.submit(make_request(tiny, speech(3), max_new_tokens=2)).result(60)
            assert gone() is None
    finally:
        gc.enable()


def test_idle_engine_holds_no_kv(tiny: Model) -> None:
    with running(tiny) as engine:
        engine.submit(make_request(tiny, speech(40))).result(60)
        engine.drain()
        stats = engine.stats()
    assert (stats.active, stats.waiting, stats.kv_used) == (0, 0, 0)
    assert stats.kv_cached > 0


def test_encoder_cache_stays_within_its_entries(tiny: Model) -> None:
    with running(tiny, encoder_cache_entries=2) as engine:
        for start in range(5):
            engine.submit(make_request(tiny, speech(2, start), max_new_tokens=2)).result(60)
        again = engine.submit(make_request(tiny, speech(2, 4), max_new_tokens=3)).result(60)
        gone = engine.submit(make_request(tiny, speech(2.5, 0), max_new_tokens=3)).result(60)
    assert again.usage.encoder_misses == 0
    assert gone.usage.encoder_misses == 1


REQUESTS = 6


@pytest.fixture(scope="module")
def alone(tiny: Model) -> list[tuple[int, ...]]:
    """What each of a few requests gives when nobody else is there."""
    return [run_alone(tiny, make_request(tiny, speech(2 + 5 * i, i))) for i in range(REQUESTS)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1 << 20), step_tokens=st.sampled_from([7, 64, 4096]))
def test_tokens_never_depend_on_the_company(
    tiny: Model, alone: list[tuple[int, ...]], seed: int, step_tokens: int
) -> None:
    chance = random.Random(seed)
    with running(tiny, step_tokens=step_tokens, stream_interval_s=0) as engine:
        handles: list[tuple[int, Handle]] = []
        for _ in range(8):
            index = chance.randrange(REQUESTS)
            cut = chance.randrange(40)
            draft = (*alone[index][:cut], *chance.choices(range(1000), k=chance.randrange(9)))
            priority = chance.choice(list(Priority))
            request = make_request(
                tiny, speech(2 + 5 * index, index), draft=draft, priority=priority
            )
            handles.append((index, engine.submit(request)))
            if chance.random() < 0.4:
                next(handles[chance.randrange(len(handles))][1].tokens(), None)
            if chance.random() < 0.3:
                handles.pop(chance.randrange(len(handles)))[1].cancel()
        for index, handle in handles:
            assert handle.result(60).token_ids == alone[index]
