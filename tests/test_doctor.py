from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from moss_stream import doctor
from moss_stream.cli import main
from moss_stream.doctor import SAMPLE, Check
from moss_stream.errors import RequestFailed, UnsupportedModelError
from moss_stream.types import Segment, Transcript

ABOUT = {
    "model": "mini",
    "layout": "native",
    "parameters": 45_200_000,
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "max_audio_s": 5400.0,
}


class FakeTranscriber:
    description = ABOUT

    def __init__(self, words: str = "hello", **_: Any) -> None:
        self._words = words

    def __enter__(self) -> FakeTranscriber:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def transcribe(self, source: Path) -> Transcript:
        if self._words == "fail":
            raise RequestFailed("the request failed")
        segments = (Segment(0.0, 1.0, "S01", self._words),)
        return Transcript(segments, "", (), 1e6, 1e6, truncated=False)


@pytest.fixture
def fake_transcriber(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("moss_stream.transcriber")
    module.Transcriber = FakeTranscriber  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_package_in_range_is_ok() -> None:
    check = doctor.check_package(Requirement("numpy>=1"))
    assert check == Check("numpy", "ok", metadata.version("numpy"))


def test_package_out_of_range_is_a_warning_with_the_command() -> None:
    check = doctor.check_package(Requirement("numpy<1"))
    assert (check.status, check.advice) == ("warn", "pip install 'numpy<1'")
    assert metadata.version("numpy") in check.detail


def test_package_missing_is_a_failure_with_the_command() -> None:
    check = doctor.check_package(Requirement("no-such-package-here>=2"))
    assert (check.status, check.advice) == ("fail", "pip install 'no-such-package-here>=2'")


def test_packages_are_all_that_the_installation_requires() -> None:
    names = {check.name for check in doctor.check_packages()}
    assert {"moss-stream", "torch", "transformers", "av", "soxr", "silero-vad"} <= names
    assert "pytest" not in names


def test_missing_package_ends_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Iterator[Check]:
        yield Check("torch", "fail", "not installed", "pip install torch")

    monkeypatch.setattr(doctor, "check_packages", missing)
    names = [check.name for check in doctor.examine("mini", "auto", "auto")]
    assert names == ["python", "torch"]


def test_ffmpeg_has_a_version() -> None:
    assert doctor.check_ffmpeg().detail[0].isdigit()


@pytest.mark.parametrize(
    ("text", "model", "flags"),
    [
        ("model name : Fast 9\nflags : avx2 fma\n\nmodel name : Slow\n", "Fast 9", {"avx2", "fma"}),
        ("CPU part : 0xd40\nFeatures : bf16 sve\n", None, {"bf16", "sve"}),
        ("", None, set()),
    ],
)
def test_cpuinfo_gives_model_and_flags_of_the_first_processor(
    text: str, model: str | None, flags: set[str], tmp_path: Path
) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    found, found_flags = doctor.read_cpuinfo(tmp_path / "cpuinfo")
    assert found_flags == flags
    assert model is None or found == model


def test_cpu_tells_bfloat16_apart(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("model name : A\nflags : avx2\n")
    assert "emulated" in doctor.check_cpu(path).detail
    path.write_text("model name : A\nflags : avx512_bf16\n")
    assert "in hardware" in doctor.check_cpu(path).detail


def test_cuda_is_wrong_only_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert doctor.check_cuda("auto").status == "ok"
    asked = doctor.check_cuda("cuda:0")
    assert asked.status == "fail" and asked.advice


def test_cuda_device_that_torch_cannot_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    assert doctor.check_cuda("auto").status == "warn"


def test_cuda_lists_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name="Big", total_memory=80 << 30),
    )
    assert doctor.check_cuda("cuda") == Check("cuda", "ok", "Big 80 GiB")


def test_hub_cache_looks_at_the_nearest_directory_that_exists(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(
        doctor.shutil,
        "disk_usage",
        lambda path: SimpleNamespace(free=8 << 30 if path == tmp_path else 0),
    )
    assert doctor.check_hub_cache().status == "ok"


@pytest.mark.parametrize(("free", "writable"), [(1 << 30, True), (8 << 30, False)])
def test_hub_cache_full_or_read_only_is_a_warning(
    free: int, writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    check = doctor.check_hub_cache()
    assert check.status == "warn" and "HF_HOME" in check.advice


def test_vad_tells_the_sample_from_silence() -> None:
    assert doctor.check_vad().status == "ok"


def test_vad_with_other_weights_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        def speech_probabilities(self, samples: np.ndarray) -> np.ndarray:
            return np.full(4, 0.1, np.float32)

    monkeypatch.setattr("moss_stream.model.vad.load_vad", Deaf)
    check = doctor.check_vad()
    assert check.status == "fail" and "silero-vad" in check.advice


def test_model_is_described_and_tried(fake_transcriber: ModuleType) -> None:
    loaded, tried = doctor.check_model("mini", "auto", "auto")
    assert (loaded.name, loaded.status) == ("checkpoint", "ok")
    assert "45.2M" in loaded.detail and "native" in loaded.detail and "90 min" in loaded.detail
    assert (tried.name, tried.status) == ("self-test", "ok")
    assert "real-time factor" in tried.detail and "hello" in tried.detail


def test_model_that_does_not_load_is_a_failure(
    fake_transcriber: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise UnsupportedModelError("not a checkpoint")

    monkeypatch.setattr(fake_transcriber, "Transcriber", refuse)
    (check,) = doctor.check_model("elsewhere", "auto", "auto")
    assert (check.status, check.detail) == ("fail", "not a checkpoint")
    assert "--model" in check.advice


@pytest.mark.parametrize("words", ["", "fail"])
def test_sample_without_text_is_a_failure(words: str) -> None:
    check = doctor.check_sample(FakeTranscriber(words))  # type: ignore[arg-type]
    assert check.status == "fail" and check.advice


def test_sample_is_shipped() -> None:
    assert SAMPLE.is_file()


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_exits_1_only_when_something_fails(
    status: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = [Check("one", "ok", "fine"), Check("two", status, "found", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda model, device, dtype: iter(checks))
    assert main(["doctor"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "one", "fine"]
    assert lines[1].split() == [status, "two", "found"]
    assert lines[2].split() == ["->", "do", "this"]
