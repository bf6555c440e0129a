"""A client's audio as it arrives: bytes of the declared format to samples at the model's rate.

Positions count whole input samples since the start of the session, across reconnects; at the
model's rate sample k lies at the same time, whatever was flushed in between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moss_stream.audio.pcm import Encoding, PcmDecoder
from moss_stream.audio.resample import MODEL_RATE_HZ, Resampler

Samples = npt.NDArray[np.float32]

_CLIPPED = 0.999
_CLIPPED_SHARE = 0.02
_RUN_S = 10.0
_BREAK_S = 0.5
_COMMON_RATES_HZ = (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


class Converter:
    """Samples of one channel to the model's rate.

    Args:
        rate_hz: Input samples a second.

    Raises:
        UnsupportedAudio: The rate is not usable.
    """

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self.num_samples = 0
        """Input samples received."""
        self._num_out = 0
        self._resampler = Resampler(rate_hz)

    def feed(self, samples: Samples) -> Samples:
        """Take the next samples.

        Returns:
            [n] float32 at the model's rate: what is ready, a filter's delay behind.
        """
        self.num_samples += len(samples)
        out = self._resampler.process(samples)
        self._num_out += len(out)
        return out

    def flush(self) -> Samples:
        """Take what the filter holds back, so that all audio received is out.

        Returns:
            [n] float32 at the model's rate. What follows is filtered as a new signal.
        """
        tail = self._resampler.flush()
        due = max(0, self._resampler.output_length(self.num_samples) - self._num_out)
        tail = np.pad(tail, (0, max(0, due - len(tail))))[:due]
        self._resampler = Resampler(self.rate_hz)
        self._num_out += len(tail)
        return tail


class AudioInput:
    """The audio of one session.

    Args:
        encoding: How samples are written.
        rate_hz: Input samples a second.

    Raises:
        UnsupportedAudio: The rate is not usable.
    """

    def __init__(self, encoding: Encoding, rate_hz: int) -> None:
        self.encoding = encoding
        self.rate_hz = rate_hz
        self._decoder = PcmDecoder(encoding)
        self._converter = Converter(rate_hz)

    @property
    def num_samples(self) -> int:
        """Whole input samples received."""
        return self._converter.num_samples

    @property
    def piece_bytes(self) -> int:
        """Bytes of a second of audio: what is worth feeding at once."""
        return self.rate_hz * self.encoding.sample_bytes

    def feed(self, data: bytes) -> Samples:
        """Take the next bytes, cut anywhere.

        Returns:
            [n] float32 at the model's rate: what is ready, a filter's delay behind.
        """
        return self._converter.feed(self._decoder.decode(data))

    def flush(self) -> Samples:
        """Take what the filter holds back, so that all audio received is out.

        Returns:
            [n] float32 at the model's rate. What follows is filtered as a new signal.
        """
        return self._converter.flush()

    def drop_half_sample(self) -> None:
        """Forget the bytes of an unfinished sample: their client starts again at a whole one."""
        self._decoder = PcmDecoder(self.encoding)

    def to_input(self, at: int) -> int:
        """Input position of a position at the model's rate; never past what was received."""
        return min(self.num_samples, round(at * self.rate_hz / MODEL_RATE_HZ))


class InputMeter:
    """Notices audio that is probably not what its client believes it sends.

    Args:
        rate_hz: The declared rate.
    """

    def __init__(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        self._told: set[str] = set()
        self._run_start_s = self._last_s = -np.inf
        self._run_samples = 0
        self._suspected_hz: int | None = None
        self._loud = self._heard = 0

    def observe(self, samples: Samples, num_input: int, now_s: float) -> list[tuple[str, str]]:
        """Look at the next audio.

        Args:
            samples: [n] float32, full scale 1.
            num_input: Input samples that came with them.
            now_s: When they came.

        Returns:
            Code and message of each warning, each given once.
        """
        warnings = [self._clipping(samples), self._rate(num_input, now_s)]
        new = [warning for warning in warnings if warning and warning[0] not in self._told]
        self._told.update(code for code, _ in new)
        return new

    def _clipping(self, samples: Samples) -> tuple[str, str] | None:
        self._heard += len(samples)
        self._loud += int(np.count_nonzero(np.abs(samples) >= _CLIPPED))
        if self._heard < MODEL_RATE_HZ:
            return None
        share = self._loud / self._heard
        self._heard = self._loud = 0
        if share < _CLIPPED_SHARE:
            return None
        return "clipping", f"{share:.0%} of the last second is at full scale: lower the gain"

    def _rate(self, num_input: int, now_s: float) -> tuple[str, str] | None:
        """Compare the declared rate with the pace of audio that arrives without a break."""
        if now_s - self._last_s > _BREAK_S:
            self._run_start_s, self._run_samples = now_s, 0
        else:
            self._run_samples += num_input
        self._last_s = now_s
        elapsed_s = now_s - self._run_start_s
        if elapsed_s < _RUN_S:
            return None
        measured = self._run_samples / elapsed_s
        self._run_start_s, self._run_samples = now_s, 0
        nearest = min(_COMMON_RATES_HZ, key=lambda rate: abs(measured / rate - 1))
        if nearest == self._rate_hz or abs(measured / nearest - 1) > 0.05:
            self._suspected_hz = None
            return None
        if nearest != self._suspected_hz:
            # Once may be a client that catches up after a break: wait for a second time.
            self._suspected_hz = nearest
            return None
        return (
            "rate_mismatch",
            f"audio declared as {self._rate_hz} Hz arrives at about {measured:.0f} samples a "
            f"second: it may really be {nearest} Hz",
        )
