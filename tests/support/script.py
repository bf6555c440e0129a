"""An engine that says what a test wants instead of what its model would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moss_stream.engine.engine import Engine
from moss_stream.engine.scheduler import Row


@contextmanager
def scripted(engine: Engine, markup: str) -> Iterator[None]:
    """Make every request's output `markup`, then the end token."""
    ids = engine.model.tokenizer.encode(markup)
    script = [*ids, min(engine.model.spec.stop_ids)]
    forward = engine._runner.forward

    def say(rows: list[Row], _: Any) -> list[list[int]]:
        return [_said(row, script) for row in rows]

    engine._runner.forward = say  # type: ignore[method-assign]
    try:
        yield
    finally:
        engine._runner.forward = forward  # type: ignore[method-assign]


def _said(row: Row, script: list[int]) -> list[int]:
    # The choice after position p is output number p + 1 - len(prompt).
    first = row.start + len(row.ids) - row.num_logits + 1 - len(row.sequence.request.prompt.ids)
    return [script[min(first + i, len(script) - 1)] for i in range(row.num_logits)]
