"""Contract 7: what is cut, repaired, refused or missing is said, as a field or a warning."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from support.clips import load_clip
from support.media import media_bytes
from support.script import scripted

from moss_stream.config import EngineConfig
from moss_stream.transcriber import Transcriber
from moss_stream.transcript.formats import render
from moss_stream.types import Transcript

SPEECH = load_clip("mix_trio_001")
DURATION_S = len(SPEECH) / 16_000
GOOD = "[0.20][S01] One and two.[3.00][3.20][S02] Three and four.[7.00]"


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    config = EngineConfig(kv_bytes=128 << 20)
    with Transcriber(device="cpu", dtype="float32", threads=2, config=config) as transcriber:
        yield transcriber


def say(transcriber: Transcriber, markup: str, **options: bool) -> Transcript:
    with scripted(transcriber._engine, markup):
        return transcriber.transcribe(SPEECH, 16_000, **options)


def codes(transcript: Transcript) -> set[str]:
    return {warning.code for warning in transcript.warnings}


def test_good_output_passes_without_a_word(transcriber: Transcriber) -> None:
    transcript = say(transcriber, GOOD)
    assert transcript.warnings == ()
    assert not transcript.truncated
    assert transcript.text == "One and two. Three and four."


DAMAGE = {
    "no speaker": ("[0.20] One.[7.00]", "speaker_missing"),
    "no start": ("[S01] One.[7.00]", "start_missing"),
    "no end": ("[0.20][S01] One.", "end_missing"),
    "end first": ("[5.00][S01] One.[3.00][5.00][S01] Two.[7.00]", "end_before_start"),
    "no words": ("[0.20][S01][3.00][3.20][S02] Two.[7.00]", "segment_empty"),
    "two speakers": ("[0.20][S01][S02] Two.[7.00]", "tag_extra"),
    "change within": ("[0.20][S01] One.[S02] Two.[7.00]", "time_estimated"),
    "half a tag": ("[0.20][S01] One.[3.00][3.20][S02] Two.[7.0", "tag_broken"),
    "only a refusal": ("I'm sorry, I can't hear anything.", "speaker_missing"),
}


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
def test_repaired_markup_is_reported(transcriber: Transcriber, damage: str, guards: bool) -> None:
    markup, code = DAMAGE[damage]
    transcript = say(transcriber, markup, guards=guards)
    assert code in codes(transcript)
    assert transcript.markup == markup
    assert transcript.segments


def test_time_beyond_the_audio_is_moved_and_reported(transcriber: Transcriber) -> None:
    transcript = say(transcriber, "[0.20][S01] One.[3.00][3.20][S02] Two.[99.00]")
    assert "time_beyond_audio" in codes(transcript)
    assert transcript.segments[-1].end_s == DURATION_S


@pytest.mark.parametrize(
    "markup",
    [
        "[0.20][S01] No" + " no" * 400 + ".[7.00]",
        "[0.20][S01] Yes.[7.00]" * 60,
        "".join(f"[{i / 10:.2f}][S01] And so on.[{(i + 1) / 10:.2f}]" for i in range(20)),
    ],
    ids=["word", "segment", "segment under new times"],
)
def test_a_loop_is_cut_and_reported(transcriber: Transcriber, markup: str) -> None:
    transcript = say(transcriber, markup)
    assert "loop_cut" in codes(transcript)
    assert len(transcript.text) < 200
    raw = say(transcriber, markup, guards=False)
    assert raw.markup.startswith(markup[:200])
    assert len(raw.segments) >= len(transcript.segments)


@pytest.mark.parametrize("markup", ["", "[0.20][S01] One.[1.00]"])
def test_an_early_end_is_reported_and_marks_the_rest(transcriber: Transcriber, markup: str) -> None:
    transcript = say(transcriber, markup)
    assert "stopped_early" in codes(transcript)
    assert transcript.truncated
    assert transcript.coverage_end_s == (1.0 if markup else 0.0)


def test_a_used_up_budget_is_reported(transcriber: Transcriber) -> None:
    with scripted(transcriber._engine, GOOD):
        guarded = transcriber.transcribe(SPEECH, 16_000, max_new_tokens=9)
        raw = transcriber.transcribe(SPEECH, 16_000, max_new_tokens=9, guards=False)
    assert "output_limit" in codes(guarded)
    assert guarded.truncated and raw.truncated


def test_silence_is_refused_by_name(transcriber: Transcriber) -> None:
    with scripted(transcriber._engine, GOOD):
        transcript = transcriber.transcribe(np.zeros(64_000, np.float32), 16_000)
    assert codes(transcript) == {"no_speech"}
    assert transcript.text == ""


@pytest.mark.parametrize("container", ["flac", "mp3", "wav"])
def test_damaged_media_is_reported_with_its_place(transcriber: Transcriber, container: str) -> None:
    codec, sample_format = {
        "flac": ("flac", "s16"),
        "mp3": ("libmp3lame", "s16p"),
        "wav": ("pcm_s16le", "s16"),
    }[container]
    wave = np.rint(SPEECH * 32_767).astype(np.int16)
    whole = media_bytes(container, codec, wave, 16_000, sample_format=sample_format)
    middle = len(whole) // 2
    with scripted(transcriber._engine, GOOD):
        transcript = transcriber.transcribe(whole[:middle] + whole[middle + 400 :])
    (warning,) = [w for w in transcript.warnings if w.code == "media_damaged"]
    assert warning.at_s is not None and 0 < warning.at_s < DURATION_S


def test_a_stream_ends_with_the_same_warnings(transcriber: Transcriber) -> None:
    markup = "[0.20] One.[3.00][3.20][S02] Two.[99.00]"
    with scripted(transcriber._engine, markup):
        whole = transcriber.transcribe(SPEECH, 16_000)
        stream = transcriber.stream(SPEECH, 16_000)
        segments = tuple(stream)
    assert segments == whole.segments
    assert stream.transcript.warnings == whole.warnings != ()


def test_warnings_and_truncation_are_in_the_json(transcriber: Transcriber) -> None:
    transcript = say(transcriber, "[0.20] One.[1.00]")
    fields = json.loads(render(transcript, "json"))
    assert fields["truncated"] is True
    assert {warning["code"] for warning in fields["warnings"]} == codes(transcript) != set()
