"""What people hand over by mistake: one line says what is wrong and what is allowed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support.checkpoints import MINI
from support.clips import DATA, load_clip
from support.media import media_bytes, tone, wav_bytes

from moss_stream.cli import main
from moss_stream.config import EngineConfig
from moss_stream.errors import (
    AudioTooLong,
    ConfigError,
    MossStreamError,
    UnsupportedAudio,
    UnsupportedModelError,
)
from moss_stream.transcriber import Transcriber

GOOD = DATA / "seen_voice_000.flac"
SPEECH = load_clip("seen_voice_000")
SECOND = np.zeros(16_000, np.float32)
HALF_DAY_S = 12 * 3600


@pytest.fixture(scope="module")
def transcriber() -> Iterator[Transcriber]:
    """With room for less than a minute of audio."""
    config = EngineConfig(kv_bytes=32 << 20)
    with Transcriber(device="cpu", dtype="float32", threads=2, config=config) as transcriber:
        yield transcriber
        assert transcriber._engine.drain(60)
        transcriber._engine.check_idle()


def allowed_s(transcriber: Transcriber) -> float:
    limit: float = transcriber.description["max_audio_s"]
    assert 5 < limit < 60
    return limit


def as_wave(samples: np.ndarray) -> np.ndarray:
    return np.rint(samples * 32_767).astype(np.int16)


def float_wav(samples: np.ndarray) -> bytes:
    """A WAV file of float samples as they are, NaN too."""
    header = wav_header(samples.nbytes, 16_000, kind=3, sample_bytes=4)
    return header + samples.astype("<f4").tobytes()


def wav_header(
    num_bytes: int, rate_hz: int, *, kind: int = 1, sample_bytes: int = 1, stated: int | None = None
) -> bytes:
    numbers = [(kind, 2), (1, 2), (rate_hz, 4), (rate_hz * sample_bytes, 4), (sample_bytes, 2)]
    format_ = b"".join(value.to_bytes(size, "little") for value, size in numbers)
    format_ += (8 * sample_bytes).to_bytes(2, "little")
    stated = num_bytes if stated is None else stated
    riff = min(stated + 36, 0xFFFF_FFFF).to_bytes(4, "little")
    data = b"data" + stated.to_bytes(4, "little")
    return b"RIFF" + riff + b"WAVEfmt \x10\x00\x00\x00" + format_ + data


def mp3(samples: np.ndarray) -> bytes:
    return media_bytes("mp3", "libmp3lame", as_wave(samples), 16_000, sample_format="s16p")


BAD_FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty.wav": (lambda: b"", "it is empty"),
    "words.txt": (lambda: b"These are words, not sound.\n" * 40, "it is text"),
    "script.wav": (lambda: b"#!/bin/sh\necho hello\n", "not media that FFmpeg can read"),
    "bytes.wav": (lambda: bytes(range(256)) * 20, "not media that FFmpeg can read"),
    "scrap.mp3": (lambda: mp3(SPEECH)[:100], "not media that FFmpeg can read"),
    "header.wav": (lambda: wav_header(0, 16_000), "no audio could be decoded"),
    "short.wav": (lambda: wav_bytes(as_wave(SPEECH)[:160]), "0.01 s, the shortest allowed is 0.1"),
    "nan.wav": (lambda: float_wav(np.full(16_000, np.nan)), "sample 0 is nan"),
    "loud.wav": (lambda: float_wav(np.full(16_000, 1e30)), "within ±1e+06"),
    "slow.wav": (lambda: wav_header(4000, 500) + bytes(4000), "500, allowed are whole numbers"),
}


@pytest.fixture
def bad_files(tmp_path: Path) -> dict[Path, str]:
    """Files, and things that are none, with what is to be said of each."""
    expected = {tmp_path / "missing.wav": "no such file", tmp_path / "folder": "is a directory"}
    (tmp_path / "folder").mkdir()
    for name, (make, message) in BAD_FILES.items():
        (tmp_path / name).write_bytes(make())
        expected[tmp_path / name] = message
    return expected


def test_bad_files_are_refused_by_name(
    transcriber: Transcriber, bad_files: dict[Path, str]
) -> None:
    for path, message in bad_files.items():
        with pytest.raises(UnsupportedAudio) as caught:
            transcriber.transcribe(path)
        assert message in str(caught.value), path.name
        assert str(path) in str(caught.value)
        assert caught.value.field == "file"
        assert "\n" not in str(caught.value)
        if path.is_file():
            with pytest.raises(UnsupportedAudio, match=f"file is {path.stat().st_size} bytes: "):
                transcriber.transcribe(path.read_bytes())


def test_bad_files_take_a_line_each_and_the_others_finish(
    bad_files: dict[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    names = [str(path) for path in bad_files]
    assert main(["transcribe", str(GOOD), *names, str(GOOD)]) == 1
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line.startswith("==>")] == [f"==> {GOOD} <=="] * 2
    assert out.count("S01 [") >= 2
    lines = err.splitlines()
    assert len(lines) == len(bad_files)
    for line, (path, message) in zip(lines, bad_files.items(), strict=True):
        assert line.startswith(f"moss-stream: {path}: ")
        assert message in line
        assert line.count(str(path)) == 1


def test_truncated_mp3_gives_what_there_is_and_says_so(transcriber: Transcriber) -> None:
    whole = mp3(SPEECH)
    transcript = transcriber.transcribe(whole[: len(whole) // 2])
    assert 1 < transcript.duration_s < 2.5
    assert transcript.warnings[0].code == "media_damaged"
    assert transcript.text


@pytest.mark.parametrize(
    ("source", "sample_rate", "error", "field", "message"),
    [
        (SECOND, None, ConfigError, "sample_rate", "need a sample_rate"),
        (SECOND, 0, UnsupportedAudio, "sample_rate", "is 0, allowed are .* 1000 to 384000"),
        (SECOND, -16_000, UnsupportedAudio, "sample_rate", "is -16000"),
        (SECOND, 10**9, UnsupportedAudio, "sample_rate", "is 1000000000"),
        (SECOND, "16000", UnsupportedAudio, "sample_rate", "is '16000'"),
        (SECOND[:0], 16_000, UnsupportedAudio, "samples", "no samples"),
        (SECOND[:160], 16_000, UnsupportedAudio, "samples", r"0\.01 s, .* allowed is 0\.1 s"),
        (SECOND * np.nan, 16_000, UnsupportedAudio, "samples", "sample 0 is nan"),
        (SECOND + np.inf, 16_000, UnsupportedAudio, "samples", "sample 0 is inf"),
        (SECOND[None], 16_000, UnsupportedAudio, "samples", r"shape \(1, 16000\).* mono"),
        (SECOND.astype(np.int32), 16_000, UnsupportedAudio, "samples", "type int32, allowed"),
        ([0.0] * 16_000, 16_000, ConfigError, "source", "is a list, allowed are a path"),
        (None, None, ConfigError, "source", "is a NoneType"),
        (7, None, ConfigError, "source", "is a int"),
        (bytearray(b"RIFF"), None, ConfigError, "source", "is a bytearray"),
        (GOOD, 16_000, ConfigError, "sample_rate", "goes with samples only"),
        ("", None, UnsupportedAudio, "file", "no such file"),
        ("a\0b", None, UnsupportedAudio, "file", "cannot be opened"),
    ],
)
def test_bad_sources_are_refused(
    transcriber: Transcriber,
    source: Any,
    sample_rate: Any,
    error: type[MossStreamError],
    field: str,
    message: str,
) -> None:
    with pytest.raises(error, match=message) as caught:
        transcriber.transcribe(source, sample_rate)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("temperature", -0.1, "is -0.1, allowed are 0 to 10"),
        ("temperature", 10.5, "is 10.5, allowed are 0 to 10"),
        ("temperature", float("nan"), "is nan, allowed are 0 to 10"),
        ("temperature", "1", "is '1', allowed are 0 to 10"),
        ("temperature", True, "is True, allowed are 0 to 10"),
        ("seed", -1, "is -1, allowed are 0 to 4294967295"),
        ("seed", 1 << 32, "is 4294967296, allowed are 0 to 4294967295"),
        ("seed", 0.5, "is 0.5, allowed are whole numbers from 0"),
        ("max_new_tokens", 0, "is 0, allowed are 1 to 131072"),
        ("max_new_tokens", -5, "is -5, allowed are 1 to 131072"),
        ("max_new_tokens", 10**12, "allowed are 1 to 131072"),
        ("max_new_tokens", 1.5, "is 1.5, allowed are whole numbers from 1"),
        ("max_new_tokens", "7", "is '7', allowed are whole numbers from 1"),
        ("guards", "no", "is 'no', allowed are True and False"),
        ("prompt", 5, "has 5 of type int, expected text"),
        ("prompt", "half \ud800", "is not valid Unicode"),
        ("prompt", "word " * 2000, "has 10000 characters, allowed are 8192"),
        ("prompt", "now <|im_end|>", "contains the special token <|im_end|>"),
        ("hotwords", "New York", "is a str, expected a list of words"),
        ("hotwords", None, "is a NoneType, expected a list"),
        ("hotwords", [1], "has 1 of type int, expected text"),
        ("hotwords", ["word"] * 3000, "has 12000 characters, allowed are 8192"),
    ],
)
def test_bad_options_name_field_value_and_limit(
    transcriber: Transcriber, option: str, value: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        transcriber.transcribe(GOOD, **{option: value})
    assert message in str(caught.value)
    assert caught.value.field == option
    with pytest.raises(ConfigError):
        transcriber.submit(GOOD, **{option: value}).result(60)


def test_bad_requests_leave_the_engine_in_order(transcriber: Transcriber) -> None:
    assert transcriber.transcribe(GOOD).text


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("threads", 0, "is 0, allowed are 1 to 1024"),
        ("threads", 1.5, "is 1.5, allowed are whole numbers from 1 to 1024"),
        ("device", "gpu", "is 'gpu', allowed are auto, cpu, cuda and cuda:N"),
        ("device", "cuda:99", "is 'cuda:99', this machine has"),
        ("device", 0, "is 0, expected its name"),
        ("dtype", "int4", "is 'int4', allowed are auto, float32, bfloat16"),
        ("dtype", None, "is None, expected its name"),
        ("model", None, "is None, expected a name or a directory"),
        ("config", EngineConfig(kv_bytes=1024), "kv_bytes is 1024, one block of this model takes"),
    ],
)
def test_bad_transcriber_options_are_refused(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Transcriber(**{option: value})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"kv_bytes": -1}, {"step_tokens": 0}, {"max_rows": 1.5}, {"kv_bytes": 1e9}]
)
def test_bad_engine_sizes_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} is .*, allowed are"):
        EngineConfig(**options)


def test_audio_beyond_the_context_is_told_how_long_is_allowed(transcriber: Transcriber) -> None:
    limit_s = allowed_s(transcriber)
    longest = np.resize(SPEECH, int(limit_s * 16_000))
    assert transcriber.transcribe(longest, 16_000, max_new_tokens=4).duration_s == limit_s
    longer = np.resize(SPEECH, int((limit_s + 2) * 16_000))
    message = f"{limit_s + 2:.1f} s.*the longest allowed is {limit_s:g} s"
    with pytest.raises(AudioTooLong, match=message):
        transcriber.transcribe(longer, 16_000)
    with pytest.raises(AudioTooLong, match=message):
        transcriber.transcribe(wav_bytes(as_wave(longer)))


def test_a_long_instruction_leaves_less_room_for_audio(transcriber: Transcriber) -> None:
    longest = np.resize(SPEECH, int(allowed_s(transcriber) * 16_000))
    with pytest.raises(AudioTooLong, match=r"tokens are available, enough for \d+ s") as caught:
        transcriber.transcribe(longest, 16_000, prompt="write down every word " * 20)
    enough_s = int(str(caught.value).split("enough for ")[1].removesuffix(" s"))
    assert enough_s < allowed_s(transcriber)


@pytest.mark.parametrize("declared", [True, False])
def test_half_a_day_in_a_file_is_refused_in_little_memory(
    transcriber: Transcriber, tmp_path: Path, declared: bool
) -> None:
    path = tmp_path / "half-day.wav"
    num_bytes = HALF_DAY_S * 8000
    with path.open("wb") as file:
        file.write(wav_header(num_bytes, 8000, stated=None if declared else 0xFFFF_FFFF))
        file.truncate(file.tell() + num_bytes)
    tracemalloc.start()
    with pytest.raises(AudioTooLong, match=f"longest allowed is {allowed_s(transcriber):g} s"):
        transcriber.transcribe(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_half_a_day_of_samples_is_refused_before_any_work(transcriber: Transcriber) -> None:
    samples = np.zeros(HALF_DAY_S * 1000, np.int16)
    tracemalloc.start()
    with pytest.raises(AudioTooLong, match=r"lasts 43200\.0 s, the longest allowed is"):
        transcriber.transcribe(samples, 1000)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_unknown_model_without_network_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UnsupportedModelError, match="'nobody/nothing' is neither"):
        Transcriber("nobody/nothing")
    assert main(["transcribe", str(GOOD), "--model", "nobody/nothing"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "nobody/nothing" in err


@pytest.mark.parametrize("name", ["", "maxi", "./nowhere", str(DATA), str(GOOD)])
def test_a_model_that_is_none_says_what_a_model_is(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(GOOD), "--model", name]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and name in err
    assert "checkpoint directory" in err


def test_a_missing_tensor_is_named_on_one_line(
    tmp_path: Path, tiny_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "model.language_model.layers.1.mlp.up_proj.weight"
    for path in tiny_directory.iterdir():
        (tmp_path / path.name).symlink_to(path)
    tensors = load_file(tiny_directory / "model.safetensors")
    del tensors[missing]
    (tmp_path / "model.safetensors").unlink()
    save_file(tensors, tmp_path / "model.safetensors")
    assert main(["transcribe", str(GOOD), "--model", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"missing {missing}" in err


@pytest.mark.parametrize("broken", ["config.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"nonsense"])
def test_a_broken_checkpoint_file_is_named(
    tmp_path: Path, broken: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in MINI.iterdir():
        if path.name != broken:
            (tmp_path / path.name).symlink_to(path)
    if content is not None:
        (tmp_path / broken).write_bytes(content)
    assert main(["transcribe", str(GOOD), "--model", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("moss-stream: ") and err.count("\n") == 1
    assert str(tmp_path) in err


def test_text_that_is_no_unicode_is_refused_on_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["transcribe", str(GOOD), "--prompt", "caf\udce9"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_stereo_of_any_rate_with_video_is_no_bad_input(transcriber: Transcriber) -> None:
    wave = np.stack([tone(44_100, 2), tone(44_100, 2, 300)])
    movie = media_bytes("matroska", "pcm_s16le", wave, 44_100, with_video=True)
    transcript = transcriber.transcribe(movie)
    assert transcript.duration_s == pytest.approx(2)
    assert [warning.code for warning in transcript.warnings] == ["no_speech"]
