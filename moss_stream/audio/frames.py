"""What FFmpeg gives, as samples and as words."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt

_FULL_SCALE = {
    "u8": ("u1", 2.0**7),
    "s16": ("<i2", 2.0**15),
    "s32": ("<i4", 2.0**31),
    "s64": ("<i8", 2.0**63),
    "flt": ("<f4", 1.0),
    "dbl": ("<f8", 1.0),
}
"""NumPy type and full scale of FFmpeg's sample formats; 24-bit audio comes as the top of s32."""


def frame_channels(frame: av.AudioFrame) -> npt.NDArray[np.float64]:
    """Samples of a frame: [channels, n] float64, full scale 1, which is exact for integers."""
    num_channels = frame.layout.nb_channels
    dtype, scale = _FULL_SCALE[frame.format.packed.name]
    values: npt.NDArray[Any]
    if frame.format.is_planar:
        values = np.stack([np.frombuffer(bytes(p), dtype, frame.samples) for p in frame.planes])
    else:
        packed = np.frombuffer(bytes(frame.planes[0]), dtype, frame.samples * num_channels)
        values = packed.reshape(-1, num_channels).T
    wide = values.astype(np.float64)
    if dtype == "u1":
        wide -= scale
    return wide / scale


def say_why(error: Exception) -> str:
    """What an error of FFmpeg's says, on one line, without the number and name around it."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(text.split())
