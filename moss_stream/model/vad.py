"""Speech probability of 32 ms frames: silero VAD for many streams at once.

The network of the silero-vad package, rebuilt so that what a stream remembers is a value in the
caller's hands: any set of streams can share one call, in any grouping. Weights come from the
package's TorchScript file (its safetensors file holds another training); the package itself
is never imported, because importing it sets torch's thread count to one for the whole process.

A frame is 512 new samples at 16 kHz, seen together with the 64 samples before it. Deciding what
counts as speech from the probabilities is not done here.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from moss_stream.errors import StateError, UnsupportedModelError, WeightsError
from moss_stream.model.threads import in_passing

FRAME_SAMPLES = 512
"""New samples in a frame, at 16 kHz."""
CONTEXT_SAMPLES = 64
"""Samples before a frame that the network sees too."""

_FFT_SAMPLES = 256
_HOP_SAMPLES = 128
_BINS = _FFT_SAMPLES // 2 + 1
_WIDTH = 128
_OFFLINE_FRAMES = 2048  # about a minute; bounds memory to about 20 MB, whatever the length

_STORED_NAMES = {
    "stft_conv.weight": "_model.stft.forward_basis_buffer",
    **{
        f"conv{i + 1}.{kind}": f"_model.encoder.{i}.reparam_conv.{kind}"
        for i in range(4)
        for kind in ("weight", "bias")
    },
    **{
        f"lstm.{kind}_l0": f"_model.decoder.rnn.{kind}"
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
    "final_conv.weight": "_model.decoder.decoder.2.weight",
    "final_conv.bias": "_model.decoder.decoder.2.bias",
}


@dataclass(frozen=True, slots=True, eq=False)
class VadState:
    """What N streams remember between frames; zeros before the first one."""

    context: Tensor
    """[N, 64] float32, the last samples of the previous frame."""
    h: Tensor
    """[N, 128] float32, output of the LSTM."""
    c: Tensor
    """[N, 128] float32, cell of the LSTM."""

    @classmethod
    def start(cls, num_streams: int = 1, device: torch.device | str = "cpu") -> Self:
        """State of streams that have heard nothing yet."""
        return cls(
            torch.zeros(num_streams, CONTEXT_SAMPLES, device=device),
            torch.zeros(num_streams, _WIDTH, device=device),
            torch.zeros(num_streams, _WIDTH, device=device),
        )

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """One state of all streams, in the order given; a copy."""
        return cls(
            torch.cat([state.context for state in states]),
            torch.cat([state.h for state in states]),
            torch.cat([state.c for state in states]),
        )

    def split(self) -> list[VadState]:
        """One state for each stream, in order; copies, so that no stream keeps the batch alive."""
        return [
            VadState(
                self.context[i : i + 1].clone(),
                self.h[i : i + 1].clone(),
                self.c[i : i + 1].clone(),
            )
            for i in range(len(self.h))
        ]


class Vad(nn.Module):
    """The network. It holds weights only, so one instance serves every stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * _BINS, _FFT_SAMPLES, stride=_HOP_SAMPLES, bias=False)
        self.conv1 = nn.Conv1d(_BINS, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, _WIDTH, 3, padding=1)
        self.lstm = nn.LSTM(_WIDTH, _WIDTH)
        self.final_conv = nn.Conv1d(_WIDTH, 1, 1)

    @torch.inference_mode()
    def forward(self, frames: Tensor, state: VadState) -> tuple[Tensor, VadState]:
        """Score the next frame of each of N streams.

        Args:
            frames: [N, 512] float32 in -1..1, device of the weights.
            state: Of the same N streams, in the same order.

        Returns:
            Speech probabilities [N] and the streams' new state; nothing is shared with the inputs.

        Raises:
            StateError: Shapes are wrong or differ in N.
        """
        if frames.ndim != 2 or frames.shape[1] != FRAME_SAMPLES:
            raise StateError(
                f"frames are {list(frames.shape)}, expected [N, {FRAME_SAMPLES}]", field="frames"
            )
        if len(frames) != len(state.h):
            raise StateError(
                f"{len(frames)} frames came with the state of {len(state.h)} streams", field="state"
            )
        features = self._features(torch.cat([state.context, frames], dim=1))
        output, (h, c) = self.lstm(features[None], (state.h[None], state.c[None]))
        context = frames[:, -CONTEXT_SAMPLES:].clone()
        return self._probabilities(output[0]), VadState(context, h[0], c[0])

    @torch.inference_mode()
    def speech_probabilities(self, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Score every frame of a whole recording, as a fresh stream would.

        Args:
            samples: [n] float32 in -1..1 at 16 kHz; a last partial frame is filled with zeros.

        Returns:
            [ceil(n / 512)] probabilities.
        """
        stretches = list(self.probabilities_by_stretch(samples))
        return np.concatenate(stretches) if stretches else np.zeros(0, dtype=np.float32)

    @torch.inference_mode()
    def probabilities_by_stretch(
        self, samples: npt.NDArray[np.float32]
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Score a whole recording about a minute at a time, so that its caller may stop.

        Args:
            samples: See `speech_probabilities`.

        Yields:
            [frames] probabilities of the next frames.
        """
        num_frames = -(-len(samples) // FRAME_SAMPLES)
        if num_frames == 0:
            return
        audio = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        audio = pad(audio, (CONTEXT_SAMPLES, num_frames * FRAME_SAMPLES - len(samples)))
        frames = audio.unfold(0, CONTEXT_SAMPLES + FRAME_SAMPLES, FRAME_SAMPLES)
        device = self.final_conv.weight.device
        memory = None
        for first in range(0, num_frames, _OFFLINE_FRAMES):
            features = self._features(frames[first : first + _OFFLINE_FRAMES].to(device))
            output, memory = self.lstm(features[:, None], memory)
            yield self._probabilities(output[:, 0]).cpu().numpy()

    def _features(self, audio: Tensor) -> Tensor:
        """Frames with their context, [N, 576], to [N, 128]."""
        spectrum = self.stft_conv(pad(audio, (0, CONTEXT_SAMPLES), mode="reflect")[:, None])
        x: Tensor = (spectrum[:, :_BINS].square() + spectrum[:, _BINS:].square()).sqrt()
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = torch.relu(conv(x))
        return x[:, :, 0]

    def _probabilities(self, hidden: Tensor) -> Tensor:
        """Outputs of the LSTM, [N, 128], to [N]."""
        logits: Tensor = self.final_conv(hidden.relu()[:, :, None])
        return logits[:, 0, 0].sigmoid()


def load_vad(device: torch.device | str = "cpu") -> Vad:
    """Build the network with the 16 kHz weights of the installed silero-vad package.

    Raises:
        UnsupportedModelError: The package or its model file is not there.
        WeightsError: The weights do not fit the network.
    """
    spec = importlib.util.find_spec("silero_vad")  # finds a top-level package without importing it
    if spec is None or spec.origin is None:
        raise UnsupportedModelError("the package silero-vad is not installed")
    path = Path(spec.origin).parent / "data" / "silero_vad.jit"
    if not path.is_file():
        raise UnsupportedModelError(f"the installed silero-vad has no data file {path.name}")
    return in_passing(lambda: _read_vad(path).to(device))


def _read_vad(path: Path) -> Vad:
    with warnings.catch_warnings():
        # torch 2.13 deprecates TorchScript; goes when the package ships these weights otherwise.
        warnings.filterwarnings("ignore", "`torch.jit.load`", DeprecationWarning)
        stored = torch.jit.load(path, map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    vad = Vad()
    try:
        vad.load_state_dict({ours: stored[theirs] for ours, theirs in _STORED_NAMES.items()})
    except (KeyError, RuntimeError) as error:
        raise WeightsError(f"the weights of silero-vad do not fit: {error}") from error
    return vad.requires_grad_(False).eval()
