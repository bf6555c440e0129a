from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.clips import clip_references, load_clip

from moss_stream.audio.speech import speech_regions
from moss_stream.errors import StateError, UnsupportedModelError
from moss_stream.model.vad import FRAME_SAMPLES, Vad, VadState, load_vad

NOISE = np.random.default_rng(7).normal(0, 0.3, 200 * FRAME_SAMPLES).astype(np.float32)


@pytest.fixture(scope="module")
def vad() -> Vad:
    return load_vad()


@pytest.fixture(scope="module")
def package_model() -> torch.jit.ScriptModule:
    # The file, not the package: importing that would set torch to one thread.
    spec = importlib.util.find_spec("silero_vad")
    assert spec is not None
    assert spec.origin is not None
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        model = torch.jit.load(Path(spec.origin).parent / "data" / "silero_vad.jit")
    return model.eval()


def _whole_frames(samples: np.ndarray) -> torch.Tensor:
    count = len(samples) // FRAME_SAMPLES
    return torch.from_numpy(samples[: count * FRAME_SAMPLES]).view(count, FRAME_SAMPLES)


def _frame_by_frame(vad: Vad, samples: np.ndarray) -> torch.Tensor:
    state = VadState.start()
    probabilities = []
    for frame in _whole_frames(samples):
        probability, state = vad(frame[None], state)
        probabilities.append(probability)
    return torch.cat(probabilities)


@pytest.mark.parametrize(
    "samples",
    [load_clip("mix_duo_002"), load_clip("asterisk_human_003"), load_clip("nospeech_002"), NOISE],
    ids=["two voices", "a person", "no speech", "loud noise"],
)
def test_vad_equals_the_package_frame_by_frame(
    vad: Vad, package_model: torch.jit.ScriptModule, samples: np.ndarray
) -> None:
    package_model.reset_states()
    with torch.inference_mode():
        expected = torch.cat([package_model(f[None], 16_000)[0] for f in _whole_frames(samples)])

    torch.testing.assert_close(_frame_by_frame(vad, samples), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("samples", [load_clip("mix_long_001"), NOISE], ids=["voices", "noise"])
def test_vad_of_a_recording_equals_frame_by_frame(vad: Vad, samples: np.ndarray) -> None:
    # Looser than above: the STFT's cancellation in float32 reaches 4e-5 in either path.
    whole = vad.speech_probabilities(_whole_frames(samples).flatten().numpy())

    np.testing.assert_allclose(whole, _frame_by_frame(vad, samples).numpy(), atol=1e-4)


def test_vad_of_a_long_recording_does_not_depend_on_its_parts(vad: Vad) -> None:
    clip = load_clip("seen_voice_000")
    long = np.tile(clip, 25)  # more frames than the convolutions take at once

    whole = vad.speech_probabilities(long)

    assert len(whole) == -(-len(long) // FRAME_SAMPLES) > 2048
    np.testing.assert_allclose(
        whole[: len(clip) // FRAME_SAMPLES],
        vad.speech_probabilities(clip)[: len(clip) // FRAME_SAMPLES],
        atol=1e-4,
    )


def test_vad_of_a_recording_in_stretches_remembers_from_one_to_the_next(vad: Vad) -> None:
    long = np.tile(load_clip("mix_trio_001"), 10)

    stretches = list(vad.probabilities_by_stretch(long))

    assert len(stretches) == 2
    expected = _frame_by_frame(vad, long).numpy()
    joined = np.concatenate(stretches)[: len(expected)]
    np.testing.assert_allclose(joined, expected, atol=1e-3)


def test_vad_fills_up_the_last_frame(vad: Vad) -> None:
    samples = load_clip("seen_voice_000")[:20_000]
    padded = np.pad(samples, (0, -len(samples) % FRAME_SAMPLES))

    np.testing.assert_array_equal(
        vad.speech_probabilities(samples), vad.speech_probabilities(padded)
    )


def test_vad_of_nothing_is_empty(vad: Vad) -> None:
    assert vad.speech_probabilities(np.zeros(0, dtype=np.float32)).shape == (0,)


def test_vad_stream_does_not_depend_on_who_shares_its_calls(vad: Vad) -> None:
    frames = [_whole_frames(load_clip(n))[:40] for n in ("seen_voice_000", "mix_trio_001")]
    frames.append(_whole_frames(NOISE)[:40])
    states = VadState.start(3).split()
    shared: list[list[torch.Tensor]] = [[], [], []]

    for index in range(40):
        present = [stream for stream in (2, 0, 1) if (index + stream) % 3]
        positions = {stream: len(shared[stream]) for stream in present}
        batch = torch.stack([frames[stream][positions[stream]] for stream in present])
        probabilities, joined = vad(batch, VadState.join([states[stream] for stream in present]))
        for stream, probability, state in zip(present, probabilities, joined.split(), strict=True):
            shared[stream].append(probability)
            states[stream] = state

    for stream in range(3):
        alone = _frame_by_frame(vad, frames[stream].flatten().numpy())[: len(shared[stream])]
        torch.testing.assert_close(torch.stack(shared[stream]), alone, atol=1e-5, rtol=0)


def test_vad_state_keeps_nothing_of_the_callers_buffer(vad: Vad) -> None:
    buffer = _whole_frames(load_clip("seen_voice_000"))[20:21].clone()
    _, state = vad(buffer, VadState.start())
    before = state.context.clone()

    buffer.zero_()

    assert torch.equal(state.context, before)


def test_vad_gate_separates_the_clips(vad: Vad) -> None:
    for reference in clip_references():
        samples = load_clip(reference["audio"].removesuffix(".flac"))
        regions = speech_regions(vad.speech_probabilities(samples))
        assert bool(regions) == bool(reference["segments"]), reference["audio"]


@pytest.mark.parametrize("shape", [(1, 256), (512,), (2, 512)])
def test_vad_refuses_wrong_shapes(vad: Vad, shape: tuple[int, ...]) -> None:
    with pytest.raises(StateError):
        vad(torch.zeros(shape), VadState.start(1))


def test_vad_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UnsupportedModelError, match="silero-vad"):
        load_vad()


def test_vad_leaves_torch_threads_alone() -> None:
    program = (
        "import sys, torch; torch.set_num_threads(2)\n"
        "from moss_stream.model.vad import load_vad; load_vad()\n"
        "assert torch.get_num_threads() == 2\n"
        "assert 'silero_vad' not in sys.modules\n"
    )

    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
