import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_stream.audio.resample import Resampler, resample
from moss_stream.errors import StateError, UnsupportedAudio

RATES_HZ = st.sampled_from([1000, 8000, 11025, 15999, 16000, 22050, 24000, 44100, 48000, 96000])


def stream(resampler, samples, cuts):
    blocks = np.split(samples, sorted(cut % (len(samples) + 1) for cut in cuts))
    return np.concatenate([*(resampler.process(block) for block in blocks), resampler.flush()])


@settings(max_examples=80, deadline=None)
@given(RATES_HZ, RATES_HZ, st.integers(0, 5000), st.lists(st.integers(0, 10_000), max_size=12))
def test_resampler_gives_same_samples_and_exact_count_for_any_blocks(source, target, count, cuts):
    samples = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)

    output = stream(Resampler(source, target), samples, cuts)

    assert output.dtype == np.float32
    assert len(output) == int(np.floor(count * target / source + 0.5))
    assert np.array_equal(output, resample(samples, source, target))


def test_resampler_count_stays_exact_over_an_hour():
    resampler = Resampler(44_100, 16_000)
    block = np.zeros(441_000, np.float32)

    count = sum(len(resampler.process(block)) for _ in range(360)) + len(resampler.flush())

    assert count == 3600 * 16_000


def test_resampler_passes_equal_rates_through():
    samples = np.linspace(-1, 1, 777, dtype=np.float32)

    assert np.array_equal(resample(samples, 16_000, 16_000), samples)


@pytest.mark.parametrize("source", [8000, 44_100, 48_000])
def test_resampler_keeps_tone_in_place(source):
    def tone(rate):
        return np.sin(2 * np.pi * 440 * np.arange(rate) / rate).astype(np.float32)

    output = resample(tone(source), source, 16_000)

    assert np.abs(output - tone(16_000))[400:-400].max() < 1e-3


def test_resampler_refuses_use_after_flush():
    resampler = Resampler(8000)
    resampler.flush()

    with pytest.raises(StateError):
        resampler.process(np.zeros(1, np.float32))
    with pytest.raises(StateError):
        resampler.flush()


@pytest.mark.parametrize("rate", [0, -1, 999, 384_001, 16_000.5, True, float("nan"), "16000"])
def test_resampler_refuses_rate_naming_value_and_limits(rate):
    with pytest.raises(UnsupportedAudio, match="1000 to 384000") as caught:
        Resampler(rate)

    assert repr(rate) in caught.value.message
    assert caught.value.field == "source_hz"
