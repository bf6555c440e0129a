"""Media files made in memory through PyAV."""

from __future__ import annotations

import io

import av
import numpy as np
import numpy.typing as npt


def tone(rate_hz: int, duration_s: float, frequency_hz: float = 440.0) -> npt.NDArray[np.int16]:
    """[n] int16: a sine at half of full scale."""
    times = np.arange(round(rate_hz * duration_s)) / rate_hz
    return np.rint(np.sin(2 * np.pi * frequency_hz * times) * 16384).astype(np.int16)


def media_bytes(
    container: str,
    codec: str,
    channels: npt.NDArray[np.int16],
    rate_hz: int,
    *,
    sample_format: str = "s16",
    with_video: bool = False,
) -> bytes:
    """Encode int16 samples, [n] or [channels, n], of one or two channels."""
    planes = np.atleast_2d(channels)
    layout = "mono" if len(planes) == 1 else "stereo"
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        video = output.add_stream("mpeg4", rate=5) if with_video else None
        audio = output.add_stream(codec, rate=rate_hz, layout=layout, format=sample_format)
        if video is not None:
            video.width = video.height = 32
            video.pix_fmt = "yuv420p"
            for _ in range(10):
                picture = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
                output.mux(video.encode(picture))
            output.mux(video.encode(None))
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(planes.T).reshape(1, -1), format="s16", layout=layout
        )
        frame.sample_rate = rate_hz
        output.mux(audio.encode(frame))
        output.mux(audio.encode(None))
    return buffer.getvalue()


def wav_bytes(channels: npt.NDArray[np.int16], rate_hz: int = 16_000) -> bytes:
    """A 16-bit WAV file of [n] or [channels, n] samples."""
    return media_bytes("wav", "pcm_s16le", channels, rate_hz)
