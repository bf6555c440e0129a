import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.media import media_bytes, tone, wav_bytes

from moss_stream.audio.media import load_media
from moss_stream.errors import AudioTooLong, ClientError, UnsupportedAudio

NOISE = np.random.default_rng(7).integers(-32768, 32767, 16_000).astype(np.int16)


def refusal(source, **options):
    with pytest.raises(UnsupportedAudio) as caught:
        load_media(source, **options)
    assert caught.value.field == "file"
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("container", "codec", "sample_format"),
    [
        ("wav", "pcm_s16le", "s16"),
        ("aiff", "pcm_s16be", "s16"),
        ("flac", "flac", "s16"),
        ("flac", "flac", "s32"),
        ("wav", "pcm_s24le", "s32"),
        ("wav", "pcm_s32le", "s32"),
        ("wav", "pcm_s64le", "s64"),
        ("wav", "pcm_f32le", "flt"),
        ("wav", "pcm_f64le", "dbl"),
        ("avi", "pcm_s16le", "s16"),
    ],
)
def test_media_gives_stored_values_of_lossless_mono(container, codec, sample_format):
    data = media_bytes(container, codec, NOISE, 16_000, sample_format=sample_format)

    media = load_media(data)

    assert np.array_equal(media.samples, NOISE.astype(np.float32) / 32768)
    assert (media.duration_s, media.warnings) == (1.0, ())


def test_media_scales_8_bit():
    data = media_bytes("wav", "pcm_u8", NOISE, 16_000, sample_format="u8")

    assert np.abs(load_media(data).samples - NOISE / 32768).max() <= 1 / 128


@pytest.mark.parametrize(
    ("container", "codec", "rate_hz", "sample_format"),
    [
        ("mp3", "libmp3lame", 44_100, "s16p"),
        ("ogg", "libopus", 48_000, "s16"),
        ("webm", "libopus", 48_000, "s16"),
        ("mp4", "aac", 22_050, "fltp"),
        ("adts", "aac", 16_000, "fltp"),
        ("mpegts", "mp2", 48_000, "s16"),
        ("wav", "pcm_s16le", 8_000, "s16"),
    ],
)
def test_media_reads_common_formats_of_any_rate(container, codec, rate_hz, sample_format):
    data = media_bytes(container, codec, tone(rate_hz, 2.0), rate_hz, sample_format=sample_format)

    media = load_media(data)

    assert media.warnings == ()
    assert media.duration_s == pytest.approx(2.0, abs=0.15)
    spectrum = np.abs(np.fft.rfft(media.samples[8000:24_000]))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_media_mixes_stereo_to_mean():
    left, right = NOISE, np.roll(NOISE, 1)

    media = load_media(wav_bytes(np.stack([left, right])))

    assert np.array_equal(media.samples, (left.astype(np.float32) + right) / 2 / 32768)


def test_media_takes_sound_of_video():
    data = media_bytes(
        "mp4", "aac", tone(48_000, 2.0), 48_000, sample_format="fltp", with_video=True
    )

    media = load_media(data)

    assert media.duration_s == pytest.approx(2.0, abs=0.1)
    assert media.warnings == ()


def test_media_converts_to_rate_asked_for():
    assert len(load_media(wav_bytes(NOISE), rate_hz=24_000).samples) == 24_000


def test_media_reads_path_and_path_object(tmp_path):
    path = tmp_path / "clip.wav"
    path.write_bytes(wav_bytes(NOISE))

    assert np.array_equal(load_media(path).samples, load_media(str(path)).samples)


def test_media_refuses_long_file_by_declared_duration():
    with pytest.raises(AudioTooLong, match=r"3\.0 s long, the longest allowed is 1 s") as caught:
        load_media(wav_bytes(tone(16_000, 3.0)), max_duration_s=1)

    assert caught.value.field == "file"


def test_media_refuses_long_file_that_declares_nothing():
    data = media_bytes("adts", "aac", tone(16_000, 3.0), 16_000, sample_format="fltp")

    with pytest.raises(AudioTooLong, match=r"longer, the longest allowed is 1 s"):
        load_media(data, max_duration_s=1)


def test_media_stops_decoding_when_its_caller_says_so():
    calls = iter([None, None, InterruptedError("enough")])

    def check() -> None:
        if error := next(calls):
            raise error

    with pytest.raises(InterruptedError, match="enough"):
        load_media(wav_bytes(tone(16_000, 3.0)), check=check)


def test_media_accepts_file_of_just_the_longest_duration():
    assert load_media(wav_bytes(NOISE), max_duration_s=1).duration_s == 1.0
    with pytest.raises(AudioTooLong):
        load_media(wav_bytes(np.append(NOISE, NOISE[:1])), max_duration_s=1)


def test_media_does_not_believe_absurd_declared_duration():
    data = bytearray(media_bytes("flac", "flac", NOISE, 16_000))
    # The last 36 bits before the MD5 sum of STREAMINFO count the samples.
    data[22:26] = b"\xff\xff\xff\xff"

    media = load_media(bytes(data), max_duration_s=10)

    assert media.duration_s == 1.0


@pytest.mark.parametrize(
    ("container", "codec", "sample_format"),
    [
        ("mp3", "libmp3lame", "s16p"),
        ("flac", "flac", "s16"),
        ("wav", "pcm_s16le", "s16"),
        ("aiff", "pcm_s16be", "s16"),
        ("adts", "aac", "fltp"),
        ("webm", "libopus", "s16"),
    ],
)
def test_media_gives_start_of_cut_file_and_warns(container, codec, sample_format):
    rate_hz = 48_000 if codec == "libopus" else 16_000
    data = media_bytes(container, codec, tone(rate_hz, 4.0), rate_hz, sample_format=sample_format)

    media = load_media(data[: len(data) * 6 // 10 + 1])

    assert 1.0 < media.duration_s < 3.0
    (warning,) = media.warnings
    assert warning.code == "media_damaged"
    assert warning.at_s == pytest.approx(media.duration_s, abs=0.05)


def test_media_goes_on_after_damage_in_the_middle_and_warns():
    data = bytearray(
        media_bytes("mp3", "libmp3lame", tone(16_000, 4.0), 16_000, sample_format="s16p")
    )
    middle = len(data) // 2
    data[middle : middle + 60] = bytes(60)

    media = load_media(bytes(data))

    assert media.duration_s == pytest.approx(4.0, abs=0.2)
    assert [warning.code for warning in media.warnings] == ["media_damaged"]
    assert media.warnings[0].at_s == pytest.approx(2.0, abs=0.3)


def test_media_does_not_warn_of_junk_after_the_sound():
    data = media_bytes("mp3", "libmp3lame", tone(44_100, 4.0), 44_100, sample_format="s16p")

    assert load_media(data + b"x" * 500).warnings == ()


@pytest.mark.parametrize("size", [0, 0xFFFF_FFFF, 0x7FFF_FFFF])
def test_media_does_not_warn_of_wav_written_as_a_stream(size):
    data = bytearray(wav_bytes(NOISE))
    data_at = data.index(b"data")
    data[4:8] = data[data_at + 4 : data_at + 8] = struct.pack("<I", size)

    media = load_media(bytes(data))

    assert (media.duration_s, media.warnings) == (1.0, ())


def test_media_refuses_missing_file(tmp_path):
    path = tmp_path / "missing.wav"

    assert refusal(path) == f"file {path}: there is no such file"


def test_media_refuses_directory(tmp_path):
    assert "directory" in refusal(tmp_path)


def test_media_refuses_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    assert "pipe" in refusal(tmp_path / "pipe")


def test_media_refuses_empty(tmp_path):
    (tmp_path / "empty.wav").touch()

    assert "empty" in refusal(tmp_path / "empty.wav")
    assert "empty" in refusal(b"")


def test_media_refuses_unreadable_file(tmp_path, monkeypatch):
    path = tmp_path / "secret.wav"
    path.write_bytes(wav_bytes(NOISE))

    def denied(*_):
        raise PermissionError(13, "Permission denied")

    # A mode of 0 would not keep root out.
    monkeypatch.setattr("builtins.open", denied)

    assert "not permitted" in refusal(path)


@pytest.mark.parametrize("name", ["notes.txt", "notes.wav", "notes"])
def test_media_refuses_text(tmp_path, name):
    path = tmp_path / name
    path.write_text("These are words, not sound.\n" * 40)

    assert str(path) in refusal(path)


def test_media_refuses_path_that_cannot_exist():
    assert "cannot be opened" in refusal("a\0b")


def test_media_takes_address_for_a_missing_file():
    assert "no such file" in refusal("http://localhost/clip.wav")


def test_media_refuses_file_without_audio():
    subtitles = b"1\n00:00:00,000 --> 00:00:02,000\nhello\n\n"

    assert "no audio stream (found: subtitle)" in refusal(subtitles)


def test_media_refuses_wav_without_samples():
    assert refusal(wav_bytes(NOISE)[:78])


def test_media_refuses_short_file_naming_duration_and_limit():
    message = refusal(wav_bytes(NOISE[:800]))

    assert "0.05 s" in message
    assert "0.1 s" in message


def test_media_refuses_float_file_with_nan_naming_position():
    data = bytearray(media_bytes("wav", "pcm_f32le", NOISE, 16_000, sample_format="flt"))
    at = data.index(b"data") + 8 + 4 * 9000
    data[at : at + 4] = np.array([np.nan], "<f4").tobytes()

    assert "sample 9000 is nan" in refusal(bytes(data))


@pytest.mark.parametrize(
    "playlist",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\n{path}\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:3\n#EXTINF:3,\nother.ts\n#EXT-X-ENDLIST\n",
        "ffconcat version 1.0\nfile '{path}'\n",
        "ffconcat version 1.0\nfile 'other.ts'\n",
    ],
)
@pytest.mark.parametrize("name", ["list.m3u8", "list.txt"])
def test_media_does_not_follow_playlists_to_other_files(tmp_path, name, playlist):
    other = tmp_path / "other.ts"
    other.write_bytes(media_bytes("mpegts", "mp2", tone(48_000, 1.0), 48_000))
    path = tmp_path / name
    path.write_text(playlist.format(path=other))

    refusal(path)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["wav", "mp3", "flac", "ogg", "mp4"]),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=40)), max_size=6),
    st.floats(0.05, 1),
)
def test_media_survives_any_damage_with_samples_or_a_typed_error(container, patches, kept):
    data = bytearray(DAMAGED[container])
    for where, patch in patches:
        at = int(where * len(data))
        data[at : at + len(patch)] = patch
    try:
        media = load_media(bytes(data[: int(len(data) * kept)]), max_duration_s=10)
    except ClientError as error:
        assert error.field == "file"
    else:
        assert np.isfinite(media.samples).all()
        assert 0.1 <= media.duration_s <= 10.1


DAMAGED = {
    "wav": wav_bytes(tone(16_000, 1.0)),
    "mp3": media_bytes("mp3", "libmp3lame", tone(16_000, 1.0), 16_000, sample_format="s16p"),
    "flac": media_bytes("flac", "flac", tone(16_000, 1.0), 16_000),
    "ogg": media_bytes("ogg", "libopus", tone(48_000, 1.0), 48_000),
    "mp4": media_bytes("mp4", "aac", tone(16_000, 1.0), 16_000, sample_format="fltp"),
}
