"""A real browser whose microphone hears a file."""

from __future__ import annotations

import os
import shutil
import wave
from pathlib import Path
from typing import Any

import numpy as np

from moss_stream.audio.pcm import encode_s16le
from moss_stream.audio.resample import resample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
RATE_HZ = 48_000
LEAD_S = 2
"""Silence before the speech: the browser plays the file from when the microphone opens."""
MID_SPEECH, AFTER_SPEECH = "0:04", "0:10"
"""Recorded time on the page when somebody speaks, and when seven seconds of speech are over."""


def write_speech(path: Path, samples: np.ndarray) -> Path:
    """Write what the microphone hears: silence, the samples at 16 kHz, silence."""
    quiet = np.zeros(16_000 * LEAD_S, np.float32)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(
            encode_s16le(resample(np.concatenate((quiet, samples, quiet)), 16_000, RATE_HZ))
        )
    return path


def launch_options(speech: Path) -> list[str]:
    """Arguments of a Chromium that hears the file once, from when a page opens its microphone."""
    options = [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={speech}%noloop",
    ]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium has none for the superuser
    return options


def wait_until_recorded(page: Any, time: str) -> None:
    """Wait until the caption page has recorded for `time`, as it shows it."""
    page.wait_for_function(f"document.getElementById('elapsed').textContent >= '{time}'")
