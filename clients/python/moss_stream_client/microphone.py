"""The microphone as blocks of samples; needs the `mic` extra."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from moss_stream_client.errors import AudioError

_LOG = logging.getLogger(__name__)
_BLOCK_S = 0.05
_QUEUE_BLOCKS = 200
"""Ten seconds between the sound card and a sender that waits."""


async def microphone(
    rate_hz: int = 16000, device: int | str | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield mono 16-bit blocks from a microphone until the caller stops.

    A caller who falls 10 s behind loses audio, which is logged: the sound card does not wait.

    Args:
        rate_hz: Sample rate.
        device: Number or part of the name of the device, None for the default one.

    Raises:
        AudioError: No `sounddevice`, no such device, or one that does not take the rate.
    """
    sounddevice = _sounddevice()
    loop = asyncio.get_running_loop()
    blocks: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE_BLOCKS)

    def keep(block: bytes) -> None:
        if blocks.full():
            _LOG.warning("microphone: %.2f s lost, sending is too slow", _BLOCK_S)
        else:
            blocks.put_nowait(block)

    def captured(data: Any, num_frames: int, time: Any, status: Any) -> None:
        if status:
            _LOG.warning("microphone: %s", status)
        loop.call_soon_threadsafe(keep, bytes(data))

    try:
        source = sounddevice.RawInputStream(
            samplerate=rate_hz,
            blocksize=round(rate_hz * _BLOCK_S),
            device=device,
            channels=1,
            dtype="int16",
            callback=captured,
        )
    except (sounddevice.PortAudioError, ValueError) as error:
        raise AudioError(f"microphone {device or 'default'} at {rate_hz} Hz: {error}") from error
    with source:
        while True:
            yield await blocks.get()


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as error:
        raise AudioError(
            "the microphone needs sounddevice: pip install 'moss-stream-client[mic]'"
        ) from error
    except OSError as error:
        raise AudioError(f"the microphone needs the PortAudio library: {error}") from error
    return sounddevice
