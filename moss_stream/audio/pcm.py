"""Raw sample formats of the wire: bytes to float32 mono and back.

A packet may end in the middle of a sample; `PcmDecoder` keeps the odd bytes for the next packet, so
the samples do not depend on how a stream was cut. Encoders are for clients and tests.

Source of the two telephone codes: ITU-T Recommendation G.711 (1988), tables 1a to 2b; codes carry
14 bits (mu-law) and 13 bits (A-law), scaled here to the full scale of 16.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from moss_stream.audio.samples import check_values
from moss_stream.errors import UnsupportedAudio

_MULAW_BIAS = 0x84
"""Added before the logarithm, in 16-bit scale: 33 of G.711's 14-bit scale, times 4."""


class Encoding(StrEnum):
    """How one sample is written."""

    S16LE = "s16le"
    """Signed 16-bit integers, low byte first."""
    F32LE = "f32le"
    """32-bit floats, low byte first, full scale 1."""
    MULAW = "mulaw"
    """G.711 mu-law, 8 bits."""
    ALAW = "alaw"
    """G.711 A-law, 8 bits."""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return {Encoding.S16LE: 2, Encoding.F32LE: 4}.get(self, 1)


def _mulaw_table() -> npt.NDArray[np.float32]:
    """[256] float32: the value of each mu-law byte. Bits are sent inverted."""
    code = ~np.arange(256) & 0xFF
    exponent, mantissa = code >> 4 & 7, code & 15
    magnitude = ((mantissa << 3) + _MULAW_BIAS << exponent) - _MULAW_BIAS
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _alaw_table() -> npt.NDArray[np.float32]:
    """[256] float32: the value of each A-law byte. Even bits are sent inverted."""
    code = np.arange(256) ^ 0x55
    exponent, mantissa = code >> 4 & 7, code & 15
    middle = (mantissa << 4) + 8
    magnitude = np.where(exponent == 0, middle, middle + 0x100 << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


_TABLES = {Encoding.MULAW: _mulaw_table(), Encoding.ALAW: _alaw_table()}


class PcmDecoder:
    """Decodes the packets of one mono stream.

    Args:
        encoding: How the stream writes its samples; an `Encoding` or its name.

    Raises:
        UnsupportedAudio: The encoding is not known.
    """

    def __init__(self, encoding: Encoding | str) -> None:
        try:
            self.encoding = Encoding(encoding)
        except ValueError:
            known = ", ".join(Encoding)
            raise UnsupportedAudio(
                f"encoding is {encoding!r}, allowed are {known}", field="encoding"
            ) from None
        self.num_samples = 0
        """Samples decoded so far."""
        self._carry = b""

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished sample that wait for the next packet; at the end, lost ones."""
        return len(self._carry)

    def decode(self, data: bytes) -> npt.NDArray[np.float32]:
        """Decode the samples that `data` completes.

        Args:
            data: The next bytes of the stream, of any length.

        Returns:
            [n] float32, full scale 1; owned by the caller.

        Raises:
            UnsupportedAudio: A float sample is not finite or absurdly large; names its position in
                the stream. The packet is refused whole and the decoder is as before it.
        """
        joined = self._carry + data if self._carry else data
        whole = len(joined) - len(joined) % self.encoding.sample_bytes
        samples = self._samples(joined[:whole])
        if self.encoding is Encoding.F32LE:
            check_values(samples, first_at=self.num_samples)
        self._carry = bytes(joined[whole:])
        self.num_samples += len(samples)
        return samples

    def _samples(self, data: bytes) -> npt.NDArray[np.float32]:
        if self.encoding is Encoding.S16LE:
            return np.frombuffer(data, "<i2").astype(np.float32) / np.float32(32768)
        if self.encoding is Encoding.F32LE:
            return np.frombuffer(data, "<f4").astype(np.float32)
        return _TABLES[self.encoding][np.frombuffer(data, np.uint8)]


def encode_s16le(samples: npt.NDArray[np.float32]) -> bytes:
    """Write samples as signed 16-bit integers, clipped at full scale.

    Args:
        samples: [n] float32, full scale 1.

    Returns:
        2n bytes; decoding them gives each sample to within half a step of 2^-15.
    """
    steps = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767)
    return bytes(steps.astype("<i2"))


def encode_mulaw(samples: npt.NDArray[np.float32]) -> bytes:
    """Write samples as G.711 mu-law, clipped at its largest value.

    Args:
        samples: [n] float32, full scale 1.

    Returns:
        n bytes; each decodes to the nearest value the code has, ties downwards in magnitude.
    """
    table = _TABLES[Encoding.MULAW]
    order = np.argsort(table, kind="stable")
    values = table[order]
    middles = (values[1:] + values[:-1]) / 2
    return bytes(order[np.searchsorted(middles, samples)].astype(np.uint8))
