from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.clips import DATA, load_clip
from support.media import wav_bytes
from support.reference import reference_decode, reference_generate

from moss_stream.config import EngineConfig
from moss_stream.errors import EngineStopped, StateError
from moss_stream.transcriber import Transcriber
from moss_stream.types import Transcript, TranscriptWarning, Usage

CLIPS = ["seen_voice_000", "asterisk_human_003", "mix_duo_002", "mix_trio_001", "nospeech_002"]
SPEECH = "mix_trio_001"


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    with Transcriber(device="cpu", dtype="float32", threads=2) as transcriber:
        yield transcriber
        assert transcriber._engine.drain(60)
        transcriber._engine.check_idle()


def path_of(name: str) -> Path:
    return DATA / f"{name}.flac"


def codes(warnings: tuple[TranscriptWarning, ...]) -> list[str]:
    return [warning.code for warning in warnings]


def words(transcript: Transcript) -> tuple[object, ...]:
    """What must not depend on how a recording came in or who shared the engine."""
    return (
        transcript.segments,
        transcript.markup,
        transcript.token_ids,
        transcript.duration_s,
        transcript.coverage_end_s,
        transcript.truncated,
        transcript.warnings,
    )


def test_path_bytes_and_samples_give_the_same_transcript(transcriber: Transcriber) -> None:
    path = path_of(SPEECH)
    from_path = transcriber.transcribe(path)
    assert from_path.text
    assert words(transcriber.transcribe(str(path))) == words(from_path)
    assert words(transcriber.transcribe(path.read_bytes())) == words(from_path)
    samples = load_clip(SPEECH)
    assert words(transcriber.transcribe(samples, 16_000)) == words(from_path)
    as_integers = np.rint(samples * 32_768).astype(np.int16)
    assert words(transcriber.transcribe(as_integers, 16_000)) == words(from_path)


def test_samples_of_another_rate_are_resampled_as_a_file_is(transcriber: Transcriber) -> None:
    wave = np.rint(load_clip(SPEECH) * 32_768).astype(np.int16)[::2]
    from_samples = transcriber.transcribe(wave, 8_000)
    assert from_samples.text
    assert from_samples.duration_s == pytest.approx(len(wave) / 8_000, abs=1e-4)
    assert words(transcriber.transcribe(wav_bytes(wave, 8_000))) == words(from_samples)


@pytest.mark.parametrize("name", CLIPS)
def test_raw_output_equals_the_reference(
    transcriber: Transcriber, mini_directory: Path, name: str
) -> None:
    expected = reference_generate(mini_directory, load_clip(name), max_new_tokens=300)
    raw = transcriber.transcribe(path_of(name), guards=False, max_new_tokens=300)
    assert list(raw.token_ids) == expected
    assert raw.markup == reference_decode(mini_directory, expected)


@pytest.mark.parametrize("name", ["seen_voice_000", "mix_trio_001"])
def test_guards_leave_a_good_output_alone(transcriber: Transcriber, name: str) -> None:
    raw = transcriber.transcribe(path_of(name), guards=False)
    guarded = transcriber.transcribe(path_of(name))
    assert guarded.token_ids == raw.token_ids
    assert guarded.segments == raw.segments
    assert guarded.warnings == ()
    assert not guarded.truncated


def test_segments_lie_within_the_audio_and_name_a_speaker(transcriber: Transcriber) -> None:
    transcript = transcriber.transcribe(path_of("mix_duo_002"))
    assert len({segment.speaker for segment in transcript.segments}) >= 2
    assert transcript.coverage_end_s == transcript.duration_s
    for segment in transcript.segments:
        assert 0 <= segment.start_s < segment.end_s <= transcript.duration_s
        assert segment.speaker.startswith("S") and segment.text


def test_recordings_submitted_together_equal_each_alone(transcriber: Transcriber) -> None:
    alone = [words(transcriber.transcribe(path_of(name))) for name in CLIPS]
    futures = [transcriber.submit(path_of(name)) for name in CLIPS * 2]
    assert [words(future.result(60)) for future in futures] == alone * 2


def test_submit_gives_errors_through_the_future(transcriber: Transcriber) -> None:
    future = transcriber.submit(b"")
    with pytest.raises(Exception, match="empty"):
        future.result(60)


def test_stream_gives_the_segments_of_the_transcript(transcriber: Transcriber) -> None:
    whole = transcriber.transcribe(path_of("mix_duo_002"))
    stream = transcriber.stream(path_of("mix_duo_002"))
    first = next(stream)
    with pytest.raises(StateError, match="ended"):
        _ = stream.transcript
    assert (first, *stream) == whole.segments
    assert words(stream.transcript) == words(whole)
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.parametrize("after", [0, 1])
def test_closing_a_stream_early_frees_the_engine(after: int) -> None:
    with Transcriber(device="cpu", dtype="float32", threads=2) as transcriber:
        stream = transcriber.stream(path_of("mix_duo_002"))
        for _ in range(after):
            next(stream)
        stream.close()
        stream.close()
        assert transcriber._engine.drain(60)
        transcriber._engine.check_idle()
        assert transcriber._engine.stats().active == 0


def test_silence_and_noise_never_reach_the_model(transcriber: Transcriber) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, 80_000).astype(np.float32)
    silences: list[npt.NDArray[np.float32]] = [np.zeros(80_000, np.float32), noise]
    before = transcriber._engine.stats()
    for samples in silences:
        transcript = transcriber.transcribe(samples, 16_000)
        assert codes(transcript.warnings) == ["no_speech"]
        assert (transcript.segments, transcript.text, transcript.token_ids) == ((), "", ())
        assert (transcript.coverage_end_s, transcript.truncated) == (5.0, False)
        assert transcript.usage == Usage()
        stream = transcriber.stream(samples, 16_000)
        assert list(stream) == []
        assert codes(stream.transcript.warnings) == ["no_speech"]
    assert transcriber._engine.stats() == before


def test_small_output_budget_is_told_and_marks_the_rest_missing(transcriber: Transcriber) -> None:
    transcript = transcriber.transcribe(path_of("mix_duo_002"), max_new_tokens=20)
    assert len(transcript.token_ids) == 20
    assert transcript.truncated
    assert {"output_limit", "stopped_early"} <= set(codes(transcript.warnings))
    assert transcript.coverage_end_s < transcript.duration_s
    raw = transcriber.transcribe(path_of("mix_duo_002"), max_new_tokens=20, guards=False)
    assert raw.truncated
    assert raw.token_ids == transcript.token_ids


def test_usage_and_timing_add_up() -> None:
    with Transcriber(device="cpu", dtype="float32", threads=2) as transcriber:
        first = transcriber.transcribe(path_of(SPEECH))
        second = transcriber.transcribe(path_of(SPEECH))
    usage, timing = first.usage, first.timing
    assert usage.audio_tokens == pytest.approx(first.duration_s * 12.5, abs=1)
    assert usage.prompt_tokens > usage.audio_tokens
    assert (usage.encoder_hits, usage.encoder_misses, usage.prefix_hit_tokens) == (0, 1, 0)
    assert usage.output_tokens == len(first.token_ids)
    # Each token is a step's own choice or was proposed; the first is the prefill's.
    assert usage.output_tokens - 1 <= usage.decode_steps + usage.draft_accepted
    assert usage.decode_steps + usage.draft_accepted <= usage.output_tokens
    assert usage.draft_accepted <= usage.draft_tokens
    assert min(timing.encode_s, timing.prefill_s, timing.decode_s) > 0
    assert timing.queue_s >= 0
    assert second.usage.encoder_misses == 0
    assert 0 < second.usage.prefix_hit_tokens < second.usage.prompt_tokens


def test_prompt_and_hotwords_reach_the_model(
    transcriber: Transcriber, mini_directory: Path
) -> None:
    samples, limit = load_clip(SPEECH), 12
    prompt, hotwords = "Write what is said.", ["Clu", "Lukey"]
    plain = transcriber.transcribe(samples, 16_000, guards=False, max_new_tokens=limit)
    asked = transcriber.transcribe(
        samples, 16_000, guards=False, max_new_tokens=limit, prompt=prompt, hotwords=hotwords
    )
    assert asked.usage.prompt_tokens != plain.usage.prompt_tokens
    assert list(asked.token_ids) == reference_generate(
        mini_directory, samples, max_new_tokens=limit, prompt=prompt, keywords=hotwords
    )


def test_sampling_repeats_with_its_seed(transcriber: Transcriber) -> None:
    def sampled(seed: int) -> tuple[int, ...]:
        return transcriber.transcribe(
            path_of("seen_voice_000"), temperature=2.0, seed=seed, max_new_tokens=30, guards=False
        ).token_ids

    assert sampled(1) == sampled(1) != sampled(2)


def test_recordings_under_way_end_when_the_transcriber_closes() -> None:
    transcriber = Transcriber(device="cpu", dtype="float32", threads=2)
    futures = [transcriber.submit(path_of("mix_duo_002")) for _ in range(4)]
    transcriber.close()
    assert all(isinstance(future.exception(60), EngineStopped) for future in futures)
    transcriber.close()
    with pytest.raises(EngineStopped, match="closed"):
        transcriber.transcribe(path_of("mix_duo_002"))


def test_description_says_what_is_loaded(mini_directory: Path) -> None:
    config = EngineConfig(kv_bytes=64 << 20)
    with Transcriber(
        mini_directory, device="cpu", dtype="float32", threads=1, config=config
    ) as transcriber:
        about = transcriber.description
    assert about["model"] == str(mini_directory)
    assert (about["device"], about["dtype"], about["threads"]) == ("cpu", "float32", 1)
    assert 10 < about["max_audio_s"] < 600
