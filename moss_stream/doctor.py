"""Checks of a machine and an installation, each with what to do when it is wrong.

`examine` runs them in the order in which one failure explains the next, and stops where the rest
could not run. Nothing is changed, and nothing downloaded but a checkpoint named by its hub id.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from packaging.requirements import Requirement

from moss_stream.errors import MossStreamError

if TYPE_CHECKING:
    from moss_stream.transcriber import Transcriber

SAMPLE: Final = Path(__file__).parent / "assets" / "sample.flac"
"""The recording shipped with the package: a few seconds of speech."""
HUB_FREE_BYTES: Final = 4 << 30
"""Free space that lets the 0.9B checkpoint be downloaded: 1.9 GB in bfloat16, twice for safety."""

VAD_THRESHOLD: Final = 0.5
"""Speech probability between the two."""
VAD_SILENCE_SAMPLES: Final = 16_000
"""One second."""

_MATRIX_FLAGS: Final = frozenset({"avx2", "avx512f", "avx512_bf16", "amx_bf16", "bf16", "sve"})
_BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    """What was found, one line."""
    advice: str = ""
    """What to do about it; empty when there is nothing to do."""


def examine(model: str, device: str, dtype: str) -> Iterator[Check]:
    """Run every check, yielding each as it is done.

    Args:
        model: What `Transcriber` takes, as are `device` and `dtype`.
        device: See `model`.
        dtype: See `model`.
    """
    yield Check("python", "ok", f"{platform.python_version()} on {platform.platform()}")
    packages = list(check_packages())
    yield from packages
    if any(check.status == "fail" for check in packages):
        return  # nothing below can be imported
    yield check_ffmpeg()
    yield check_cpu(Path("/proc/cpuinfo"))
    yield check_cuda(device)
    yield check_hub_cache()
    yield check_vad()
    yield from check_model(model, device, dtype)


def check_packages() -> Iterator[Check]:
    """Compare each installed package with what this one requires."""
    try:
        own = metadata.distribution("moss-stream")
    except metadata.PackageNotFoundError:
        yield Check("moss-stream", "fail", "not installed", "pip install . in its checkout")
        return
    yield Check("moss-stream", "ok", own.version)
    for line in own.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield check_package(requirement)


def check_package(requirement: Requirement) -> Check:
    """Look for one package; a version outside the tested range is a warning."""
    name, advice = requirement.name, f"pip install '{requirement}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "fail", "not installed", advice)
    if not requirement.specifier.contains(version, prereleases=True):
        return Check(name, "warn", f"{version}, tested are {requirement.specifier}", advice)
    return Check(name, "ok", version)


def check_ffmpeg() -> Check:
    """Report the FFmpeg that decodes media files."""
    import av

    return Check("ffmpeg", "ok", f"{av.ffmpeg_version_info}, as shipped with av")


def check_cpu(cpuinfo: Path) -> Check:
    """Report processor, usable cores, torch's threads and bfloat16 instructions."""
    import torch

    model, flags = read_cpuinfo(cpuinfo)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = " ".join(sorted(flags & _MATRIX_FLAGS)) or "none known"
    bf16 = "bfloat16 in hardware" if flags & _BF16_FLAGS else "bfloat16 emulated"
    return Check(
        "cpu",
        "ok",
        f"{model}, {cores} cores, torch {torch.get_num_threads()} threads, {found} ({bf16})",
    )


def read_cpuinfo(path: Path) -> tuple[str, frozenset[str]]:
    """Return model name and flags of the first processor that `path` lists.

    Where the system has no such file the name comes from Python and there are no flags.
    """
    fields: dict[str, str] = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name") or platform.processor() or platform.machine()
    flags = fields.get("flags") or fields.get("Features") or ""  # x86, Arm
    return model, frozenset(flags.split())


def check_cuda(device: str) -> Check:
    """Report CUDA devices; it is wrong when one is asked for, or there and not usable."""
    import torch

    if torch.cuda.is_available():
        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return Check(
            "cuda",
            "ok",
            ", ".join(f"{one.name} {one.total_memory / 2**30:.0f} GiB" for one in found),
        )
    built = torch.version.cuda is not None
    advice = (
        "nvidia-smi must list a device, and the driver must be new enough for CUDA "
        f"{torch.version.cuda}"
        if built
        else "install a CUDA build of torch, or use --device cpu"
    )
    if device.startswith("cuda"):
        return Check("cuda", "fail", f"{device} is asked for, torch finds none", advice)
    if Path("/dev/nvidia0").exists():
        return Check("cuda", "warn", "the machine has a device that torch cannot use", advice)
    return Check("cuda", "ok", "none, the CPU is used")


def check_hub_cache() -> Check:
    """Look at the directory that checkpoints are downloaded to."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    there = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(there).free
    detail = f"{cache}, {free / 2**30:.1f} GiB free"
    advice = "set HF_HOME to a directory with room; the shipped checkpoint needs none"
    if not os.access(there, os.W_OK):
        return Check("hub cache", "warn", f"{detail}, cannot be written to", advice)
    if free < HUB_FREE_BYTES:
        return Check(
            "hub cache", "warn", f"{detail}, a download wants {HUB_FREE_BYTES / 2**30:.0f}", advice
        )
    return Check("hub cache", "ok", detail)


def check_vad() -> Check:
    """Score the sample, which is speech, and digital silence."""
    from moss_stream.audio.media import load_media
    from moss_stream.model.threads import side_threads
    from moss_stream.model.vad import load_vad

    silent = np.zeros(VAD_SILENCE_SAMPLES, dtype=np.float32)
    try:
        vad = load_vad()
        with side_threads(1, "moss-doctor") as side:
            speech = side.submit(vad.speech_probabilities, load_media(SAMPLE).samples).result()
            silence = side.submit(vad.speech_probabilities, silent).result()
    except MossStreamError as error:
        return Check("vad", "fail", str(error), "reinstall: pip install --force-reinstall .")
    detail = f"speech scores {speech.max():.2f}, silence {silence.max():.2f}"
    if not silence.max() < VAD_THRESHOLD < speech.max():
        return Check(
            "vad",
            "fail",
            f"{detail}, expected on either side of {VAD_THRESHOLD}",
            "reinstall silero-vad: its weights are not the ones expected",
        )
    return Check("vad", "ok", detail)


def check_model(model: str, device: str, dtype: str) -> Iterator[Check]:
    """Load the checkpoint and transcribe the sample with it."""
    from moss_stream.transcriber import Transcriber

    try:
        transcriber = Transcriber(model=model, device=device, dtype=dtype)
    except MossStreamError as error:
        yield Check(
            "checkpoint",
            "fail",
            str(error),
            "--model takes mini, a checkpoint directory or a hub id; see also --device, --dtype",
        )
        return
    with transcriber:
        about = transcriber.description
        yield Check(
            "checkpoint",
            "ok",
            f"{about['model']}, {about['layout']} layout, {about['parameters'] / 1e6:.1f}M "
            f"parameters, {about['dtype']} on {about['device']}, {about['threads']} threads, "
            f"up to {about['max_audio_s'] / 60:.0f} min of audio",
        )
        yield check_sample(transcriber)


def check_sample(transcriber: Transcriber) -> Check:
    """Transcribe the sample, timing it: the first request, nothing cached."""
    start = time.perf_counter()
    try:
        transcript = transcriber.transcribe(SAMPLE)
    except MossStreamError as error:
        return Check("self-test", "fail", str(error), "run with --device cpu --dtype float32")
    took_s = time.perf_counter() - start
    rtf = took_s / transcript.duration_s
    detail = f"{transcript.duration_s:.1f} s of audio in {took_s:.2f} s, real-time factor {rtf:.2f}"
    if not transcript.text:
        return Check(
            "self-test", "fail", f"{detail}, no text", "is it an English-capable checkpoint?"
        )
    if rtf > 1:
        return Check(
            "self-test", "warn", f"{detail}, slower than real time", "try --dtype or --device"
        )
    return Check("self-test", "ok", f"{detail}: {transcript.text!r}")
