import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.media import media_bytes, tone

from moss_stream.audio.media import load_media
from moss_stream.audio.pcm import Encoding, PcmDecoder, encode_mulaw, encode_s16le
from moss_stream.errors import UnsupportedAudio


def test_decoder_scales_s16():
    data = np.array([-32768, -1, 0, 1, 32767], "<i2").tobytes()

    samples = PcmDecoder("s16le").decode(data)

    assert samples.dtype == np.float32
    assert samples.tolist() == [-1.0, -1 / 32768, 0.0, 1 / 32768, 32767 / 32768]


def test_decoder_keeps_f32():
    values = np.array([-1.5, 0.0, 0.25], "<f4")

    assert PcmDecoder("f32le").decode(values.tobytes()).tolist() == values.tolist()


@pytest.mark.parametrize(
    ("encoding", "code", "value"),
    [
        # G.711: code words sent, and the values they stand for on the 16-bit scale.
        ("mulaw", 0xFF, 0),
        ("mulaw", 0x7F, 0),
        ("mulaw", 0x80, 32124),
        ("mulaw", 0x00, -32124),
        ("mulaw", 0xFE, 8),
        ("alaw", 0xD5, 8),
        ("alaw", 0x55, -8),
        ("alaw", 0xAA, 32256),
        ("alaw", 0x2A, -32256),
    ],
)
def test_decoder_knows_g711_values(encoding, code, value):
    assert PcmDecoder(encoding).decode(bytes([code]))[0] * 32768 == value


@pytest.mark.parametrize(("encoding", "codec"), [("mulaw", "pcm_mulaw"), ("alaw", "pcm_alaw")])
def test_decoder_agrees_with_ffmpeg_on_every_code(encoding, codec):
    codes = bytes(range(256)) * 8
    wav = media_bytes("wav", codec, tone(16_000, 2048 / 16_000), 16_000)
    at = wav.index(b"data") + 8

    expected = load_media(wav[:at] + codes + wav[at + len(codes) :]).samples

    assert np.array_equal(PcmDecoder(encoding).decode(codes), expected)


@given(st.sampled_from(list(Encoding)), st.lists(st.integers(0, 7), max_size=30))
def test_decoder_gives_same_samples_for_any_packets(encoding, sizes):
    values = np.random.default_rng(0).uniform(-1, 1, 40).astype("<f4")
    data = values.tobytes()
    cuts = np.cumsum([0, *sizes, len(data)])
    decoder = PcmDecoder(encoding)

    packets = [decoder.decode(data[a:b]) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    whole = PcmDecoder(encoding).decode(data)
    assert np.array_equal(np.concatenate(packets), whole, equal_nan=True)
    assert decoder.num_samples == len(whole)


def test_decoder_tells_of_unfinished_sample():
    decoder = PcmDecoder("f32le")

    decoder.decode(bytes(7))

    assert decoder.pending_bytes == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e9])
def test_decoder_refuses_impossible_floats_naming_position_and_stays_as_it_was(value):
    decoder = PcmDecoder("f32le")
    decoder.decode(bytes(4 * 100 + 1))

    with pytest.raises(UnsupportedAudio, match="sample 102 "):
        decoder.decode(bytes(7) + np.array([value], "<f4").tobytes())

    assert (decoder.num_samples, decoder.pending_bytes) == (100, 1)


def test_decoder_refuses_unknown_encoding_naming_known_ones():
    with pytest.raises(UnsupportedAudio, match="s16le, f32le, mulaw, alaw") as caught:
        PcmDecoder("s24le")

    assert caught.value.field == "encoding"


@given(st.lists(st.integers(-32768, 32767)))
def test_s16_survives_round_trip(values):
    data = np.array(values, "<i2").tobytes()

    assert encode_s16le(PcmDecoder("s16le").decode(data)) == data


def test_s16_encoder_clips():
    loud = np.array([-2.0, 2.0], np.float32)

    assert PcmDecoder("s16le").decode(encode_s16le(loud)).tolist() == [-1.0, 32767 / 32768]


def test_mulaw_encoder_takes_nearest_value():
    samples = np.linspace(-1.1, 1.1, 5001, dtype=np.float32)
    values = PcmDecoder("mulaw").decode(bytes(range(256)))

    decoded = PcmDecoder("mulaw").decode(encode_mulaw(samples))

    distance = np.abs(samples[:, None] - values[None, :]).min(axis=1)
    assert np.allclose(np.abs(samples - decoded), distance, rtol=0, atol=1e-7)
