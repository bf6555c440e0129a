from __future__ import annotations

import asyncio
import io
import sys
import wave
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fake_server import fake_server

from moss_stream_client import AudioError, Finished, connect, mic
from moss_stream_client.microphone import microphone


class FakeStream:
    """A sound card that gives three blocks as soon as it starts."""

    def __init__(self, *, blocksize: int, callback: Any, device: Any, **_: Any) -> None:
        if device == "broken":
            raise ValueError("No input device matching 'broken'")
        self.blocksize = blocksize
        self.callback = callback

    def __enter__(self) -> FakeStream:
        for value in (1, 2, 3):
            self.callback(bytes([value, 0]) * self.blocksize, self.blocksize, None, None)
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def sound_card(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sounddevice")
    module.RawInputStream = FakeStream  # type: ignore[attr-defined]
    module.PortAudioError = type("PortAudioError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sounddevice", module)


def write_wave(path: Path, num_samples: int) -> Path:
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(bytes(range(250)) * (2 * num_samples // 250))
    return path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def speak_file(path: Path, out: io.StringIO) -> str:
    async def main() -> None:
        async with fake_server() as server:
            args = mic._parser().parse_args(["--url", server.url, "--file", str(path)])
            await mic._run(args, out)

    asyncio.run(main())
    return out.getvalue()


def test_mic_prints_only_finals_without_a_terminal(tmp_path: Path, pauses: list[float]) -> None:
    printed = speak_file(write_wave(tmp_path / "a.wav", 1500), io.StringIO())
    first, second = printed.splitlines()
    assert first.startswith("S01 [0.00-0.15] ")
    assert second.startswith("S01 [0.00-0.19] ")


def test_mic_draws_the_growing_utterance_on_a_terminal(tmp_path: Path, pauses: list[float]) -> None:
    path = write_wave(tmp_path / "a.wav", 1500)
    plain = speak_file(path, io.StringIO())
    drawn = speak_file(path, Terminal())
    assert "\x1b[2m" in drawn
    for line in plain.splitlines():
        assert f"{line}\n" in drawn


def test_mic_reports_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert mic.main(["--file", "missing.wav"]) == 1
    assert capsys.readouterr().err.startswith("moss-stream-mic: missing.wav: not a readable")


def test_microphone_gives_blocks_in_order(sound_card: None) -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            blocks = microphone(16000)
            for value in (1, 2, 3):
                block = await anext(blocks)
                assert block == bytes([value, 0]) * 800
                await stream.send(block)
            await blocks.aclose()
            await stream.finish()
            assert [event async for event in stream][-1] == Finished(2400)

    asyncio.run(main())


def test_microphone_names_a_device_that_cannot_be_used(sound_card: None) -> None:
    async def main() -> None:
        await anext(microphone(16000, "broken"))

    with pytest.raises(AudioError, match="broken"):
        asyncio.run(main())


def test_microphone_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)

    async def main() -> None:
        await anext(microphone())

    with pytest.raises(AudioError, match="pip install"):
        asyncio.run(main())
