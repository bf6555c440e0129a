import numpy as np
import pytest

from moss_stream.audio.samples import MIN_DURATION_S, check_samples
from moss_stream.errors import AudioTooLong, UnsupportedAudio


def test_check_samples_keeps_float_mono_at_model_rate():
    samples = np.linspace(-1, 1, 2000, dtype=np.float32)

    assert np.array_equal(check_samples(samples, 16_000), samples)


def test_check_samples_scales_int16():
    samples = np.arange(-1000, 1000, dtype=np.int16)

    assert np.array_equal(check_samples(samples, 16_000), samples.astype(np.float32) / 32768)


def test_check_samples_takes_float64_and_resamples():
    output = check_samples(np.zeros(48_000), 48_000)

    assert output.dtype == np.float32
    assert len(output) == 16_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, -1e7])
def test_check_samples_refuses_impossible_values_naming_first_position(value):
    samples = np.zeros(2000)
    samples[[1234, 1500]] = value

    with pytest.raises(UnsupportedAudio, match="sample 1234 ") as caught:
        check_samples(samples, 16_000)

    assert caught.value.field == "samples"


@pytest.mark.parametrize("shape", [(2, 2000), (2000, 2), (1, 2000), ()])
def test_check_samples_refuses_more_than_mono_naming_shape(shape):
    with pytest.raises(UnsupportedAudio) as caught:
        check_samples(np.zeros(shape, np.float32), 16_000)

    assert str(shape) in caught.value.message


@pytest.mark.parametrize("dtype", ["int32", "uint8", "complex64", "bool", "float16"])
def test_check_samples_refuses_other_types_naming_them(dtype):
    with pytest.raises(UnsupportedAudio, match=dtype):
        check_samples(np.zeros(2000, dtype), 16_000)


def test_check_samples_refuses_what_is_no_array():
    with pytest.raises(UnsupportedAudio, match="list"):
        check_samples([0.0] * 2000, 16_000)


def test_check_samples_refuses_empty():
    with pytest.raises(UnsupportedAudio, match="empty"):
        check_samples(np.zeros(0, np.float32), 16_000)


def test_check_samples_refuses_short_audio_naming_duration_and_limit():
    with pytest.raises(UnsupportedAudio, match=r"0\.05 s.* 0\.1 s"):
        check_samples(np.zeros(800, np.float32), 16_000)

    assert len(check_samples(np.zeros(round(MIN_DURATION_S * 8000), np.float32), 8000)) == 1600


def test_check_samples_refuses_audio_beyond_the_longest():
    assert len(check_samples(np.zeros(8000, np.float32), 8000, max_duration_s=1)) == 16_000
    with pytest.raises(
        AudioTooLong, match=r"lasts 1\.0 s, the longest allowed is 0\.9 s"
    ) as caught:
        check_samples(np.zeros(8000, np.float32), 8000, max_duration_s=0.9)
    assert caught.value.field == "samples"


def test_check_samples_refuses_rate_out_of_range():
    with pytest.raises(UnsupportedAudio, match="999"):
        check_samples(np.zeros(2000, np.float32), 999)
