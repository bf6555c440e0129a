import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.audio.pcm import Encoding, encode_s16le
from moss_stream.audio.resample import resample
from moss_stream.server.audio_input import AudioInput, InputMeter


def tone(num_samples: int, rate_hz: int) -> np.ndarray:
    return (0.4 * np.sin(2 * np.pi * 300 * np.arange(num_samples) / rate_hz)).astype(np.float32)


@given(st.lists(st.integers(1, 900), min_size=1, max_size=8), st.sampled_from([8_000, 24_000]))
def test_samples_do_not_depend_on_how_bytes_are_cut(cuts: list[int], rate_hz: int) -> None:
    data = encode_s16le(tone(1_500, rate_hz))
    audio = AudioInput(Encoding.S16LE, rate_hz)
    edges = [0, *np.cumsum(cuts).tolist(), len(data)]
    parts = [audio.feed(data[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    parts.append(audio.flush())
    whole = resample(np.frombuffer(data, "<i2").astype(np.float32) / 32768, rate_hz)
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-6)
    assert audio.num_samples == 1_500


@given(st.lists(st.integers(0, 700), max_size=8), st.sampled_from([8_000, 24_000, 48_000]))
def test_positions_stay_exact_across_flushes(counts: list[int], rate_hz: int) -> None:
    audio = AudioInput(Encoding.MULAW, rate_hz)
    num_in = num_out = 0
    for count in counts:
        num_in += count
        num_out += len(audio.feed(bytes(count))) + len(audio.flush())
        assert abs(num_out - num_in * 16_000 / rate_hz) <= 1
        assert audio.to_input(num_out) <= audio.num_samples


def test_half_a_sample_is_dropped_when_a_client_starts_again() -> None:
    audio = AudioInput(Encoding.S16LE, 16_000)
    audio.feed(b"\x01")
    audio.drop_half_sample()
    assert audio.feed(b"\x00\x40").tolist() == [0.5]


@pytest.mark.parametrize(("real_hz", "codes"), [(16_000, ["rate_mismatch"]), (24_000, [])])
def test_meter_notices_another_rate_than_declared(real_hz: int, codes: list[str]) -> None:
    meter = InputMeter(24_000)
    quiet = np.zeros(1_600, np.float32)
    told = [w for i in range(500) for w in meter.observe(quiet, real_hz // 10, i / 10)]
    assert [code for code, _ in told] == codes


def test_meter_does_not_judge_bursts() -> None:
    meter = InputMeter(24_000)
    quiet = np.zeros(1_600, np.float32)
    assert [w for i in range(50) for w in meter.observe(quiet, 16_000, float(i))] == []


def test_meter_notices_clipping_once() -> None:
    meter = InputMeter(16_000)
    loud = np.ones(1_600, np.float32)
    told = [w for i in range(40) for w in meter.observe(loud, 1_600, i / 10)]
    assert [code for code, _ in told] == ["clipping"]
