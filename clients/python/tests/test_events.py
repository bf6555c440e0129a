from __future__ import annotations

from typing import Any

import pytest

from moss_stream_client import (
    Committed,
    Completed,
    Delta,
    Event,
    Failed,
    Gap,
    Hypothesis,
    HypothesisSegment,
    ProtocolError,
    Relabel,
    Segment,
    ServerError,
    SpeechStarted,
    SpeechStopped,
    Unknown,
    Warning,
)
from moss_stream_client.events import parse_event

T = "conversation.item.input_audio_transcription"
PART = {"speaker": None, "start": 0, "end": 1.5, "text": "hi", "committed": True}
WIRE: list[tuple[dict[str, Any], Event]] = [
    (
        {"type": "input_audio_buffer.speech_started", "item_id": "i", "audio_start_ms": 5},
        SpeechStarted("i", 5),
    ),
    (
        {"type": "input_audio_buffer.speech_stopped", "item_id": "i", "audio_end_ms": 9},
        SpeechStopped("i", 9),
    ),
    (
        {"type": "input_audio_buffer.committed", "item_id": "i", "previous_item_id": None},
        Committed("i", None),
    ),
    ({"type": f"{T}.delta", "item_id": "i", "delta": " a"}, Delta("i", " a")),
    (
        {
            "type": f"{T}.segment", "item_id": "i", "id": "s", "speaker": "S01",
            "start": 1, "end": 2.5, "text": "a",
        },
        Segment("i", "s", "S01", 1.0, 2.5, "a"),
    ),
    (
        {"type": f"{T}.completed", "item_id": "i", "transcript": "a", "usage": {"seconds": 2}},
        Completed("i", "a", {"seconds": 2}),
    ),
    (
        {"type": f"{T}.failed", "item_id": "i", "error": {"code": "c", "message": "m"}},
        Failed("i", "c", "m"),
    ),
    (
        {
            "type": "moss.hypothesis", "item_id": "i", "revision": 3, "committed_text": "a",
            "partial_text": "b", "segments": [PART], "lag_ms": 20,
        },
        Hypothesis("i", 3, "a", "b", (HypothesisSegment(None, 0.0, 1.5, "hi", True),), 20.0),
    ),
    ({"type": "moss.warning", "code": "clipping", "message": "m"}, Warning("clipping", "m", None)),
    ({"type": "moss.relabel", "speaker": "S03", "replaced_by": "S01"}, Relabel("S03", "S01")),
    (
        {"type": "moss.gap", "start_samples": 1, "end_samples": 2, "reason": "r"},
        Gap(1, 2, "r"),
    ),
    (
        {"type": "error", "error": {"type": "t", "message": "m", "param": "p"}},
        ServerError("t", None, "m", "p"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "event"), WIRE, ids=[raw["type"] for raw, _ in WIRE])
def test_event_is_read_from_the_wire(raw: dict[str, Any], event: Event) -> None:
    assert parse_event(raw | {"event_id": "event_1", "moss": {"seq": 1}}) == event


@pytest.mark.parametrize("raw", [raw for raw, _ in WIRE], ids=lambda raw: raw["type"])
def test_event_that_lacks_its_fields_is_refused_by_name(raw: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match=raw["type"]):
        parse_event({"type": raw["type"]})


def test_event_of_an_unknown_type_is_passed_on_as_it_came() -> None:
    raw = {"type": "rate_limits.updated", "value": 1}
    assert parse_event(raw) == Unknown(raw)
