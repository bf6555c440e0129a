"""Log-mel spectrogram of one window, as the reference front end computes it.

Source: transformers `MossTranscribeDiarizeFeatureExtractor` (Whisper's front end): Hann window,
power spectrum, Slaney mel filters, log10 clamped at 1e-10, floor at the window's own maximum minus
8, (x + 4) / 4.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from moss_stream.model.spec import AudioSpec

LOG_FLOOR = -10.0
"""log10 of the smallest power that is told apart from silence."""
DYNAMIC_RANGE = 8.0
"""Decades kept below the loudest value of a window."""


def mel_filters(num_mels: int, n_fft: int, rate_hz: int) -> npt.NDArray[np.float32]:
    """Triangular filters on Slaney's mel scale, each of unit area.

    Source: Slaney's Auditory Toolbox: linear to 1 kHz (200/3 Hz a mel), then 27 mels per factor
    6.4.

    Returns:
        [n_fft // 2 + 1, num_mels] float32.
    """

    def to_mel(hz: float) -> float:
        return hz / (200 / 3) if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)

    mels = np.linspace(0.0, to_mel(rate_hz / 2), num_mels + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * np.log(6.4) / 27))
    bins = np.linspace(0.0, rate_hz / 2, n_fft // 2 + 1)
    rising = (bins[:, None] - edges[None, :-2]) / np.diff(edges)[None, :-1]
    falling = (edges[None, 2:] - bins[:, None]) / np.diff(edges)[None, 1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[None, :]).astype(np.float32)


class MelFrontEnd:
    """Samples of a window to the encoder's input."""

    def __init__(self, spec: AudioSpec) -> None:
        self.spec = spec
        self.num_frames = spec.window_samples // spec.hop_samples
        self._filters = torch.from_numpy(
            mel_filters(spec.num_mels, spec.n_fft, spec.rate_hz)
        ).T.contiguous()
        self._hann = torch.hann_window(spec.n_fft)

    def __call__(self, samples: npt.NDArray[np.float32]) -> torch.Tensor:
        """Compute one window.

        Args:
            samples: [n] float32, at most a window; what is missing counts as zeros.

        Returns:
            [M, F] float32 on CPU.
        """
        spec = self.spec
        waveform = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        # Frames past the last sample see only zeros, so their power is the floor: no need to
        # transform them.
        heard = min(spec.window_samples, len(waveform) + 2 * spec.n_fft)
        waveform = torch.nn.functional.pad(waveform, (0, heard - len(waveform)))
        spectrum = torch.stft(
            waveform, spec.n_fft, spec.hop_samples, window=self._hann, return_complex=True
        )
        spectrum = spectrum[:, : self.num_frames]
        # A third of the time that `abs` takes, or a view of both as one more axis.
        power = spectrum.real.square() + spectrum.imag.square()
        log_mel = torch.full((spec.num_mels, self.num_frames), LOG_FLOOR)
        log_mel[:, : power.shape[1]] = torch.clamp(self._filters @ power, min=1e-10).log10()
        log_mel = torch.maximum(log_mel, log_mel.max() - DYNAMIC_RANGE)
        return (log_mel + 4.0) / 4.0
