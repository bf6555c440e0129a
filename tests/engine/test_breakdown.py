"""A bug in the engine itself costs the requests under way, and not the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.clips import load_clip
from support.engine import blocked, make_request, running

from moss_stream.engine.engine import MAX_BREAKDOWNS, Engine
from moss_stream.engine.request import Request
from moss_stream.errors import EngineStopped
from moss_stream.model.checkpoint import Model

SPEECH = load_clip("asterisk_human_003")


def breaking(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    left = times

    def break_first(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise IndexError("a bug")
        return function(*arguments, **named)

    return break_first


def break_applying(engine: Engine, times: int) -> None:
    """Let the outcome of steps be lost after the model ran."""
    engine._forward = breaking(engine._forward, times)  # type: ignore[method-assign]


def request(model: Model) -> Request:
    return make_request(model, SPEECH)


def test_requests_under_way_are_told_and_the_next_ones_answered(tiny: Model) -> None:
    with running(tiny) as engine:
        before = engine.submit(request(tiny)).result(60).token_ids
        break_applying(engine, 1)
        release = blocked(engine)
        handles = [engine.submit(request(tiny)) for _ in range(3)]
        release.set()
        lost = 0
        for handle in handles:
            try:
                assert handle.result(60).token_ids == before
            except EngineStopped as error:
                assert error.retryable
                assert "started over" in error.message
                lost += 1
        assert lost
        assert engine.why_stopped is None
        assert engine.submit(request(tiny)).result(60).token_ids == before


def test_waiting_requests_are_told_too(tiny: Model) -> None:
    with running(tiny, max_rows=1) as engine:
        break_applying(engine, 1)
        handles = [engine.submit(request(tiny)) for _ in range(4)]
        with pytest.raises(EngineStopped, match="started over"):
            handles[0].result(60)
        for handle in handles:
            handle.cancel()  # of no effect on what has ended
        assert engine.submit(request(tiny)).result(60)


def test_breaking_down_again_and_again_ends_the_engine(tiny: Model) -> None:
    with running(tiny) as engine:
        break_applying(engine, MAX_BREAKDOWNS + 1)
        for _ in range(MAX_BREAKDOWNS):
            with pytest.raises(EngineStopped, match="started over"):
                engine.submit(request(tiny)).result(60)
            assert engine.why_stopped is None
        with pytest.raises(EngineStopped, match="see its log"):
            engine.submit(request(tiny)).result(60)
        assert engine.why_stopped == "the engine broke down; see its log"
        with pytest.raises(EngineStopped, match="see its log"):
            engine.submit(request(tiny))
