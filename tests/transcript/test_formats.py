import io
import json
import re

import av
import pytest

from moss_stream.errors import ConfigError
from moss_stream.transcript.formats import FORMATS, render
from moss_stream.transcript.markup import parse_markup
from moss_stream.types import Segment, Transcript, TranscriptWarning


def transcript(*segments, **fields):
    values = {
        "markup": "[0.48]…",
        "token_ids": (1, 2),
        "duration_s": 9.0,
        "coverage_end_s": 9.0,
        "truncated": False,
    }
    return Transcript(segments=segments, **(values | fields))


TALK = transcript(
    Segment(0.48, 3.2, "S01", "Hello there."),
    Segment(3723.0404, 3725.5, "S02", "Bye."),
)
NASTY = transcript(
    Segment(5.0, 5.0, "S02", "later & <b>bold</b> --> {\\an8}\\N"),
    Segment(1.0, 2.0, "", "two\n\nlines\r\n\r\nhere"),
    Segment(3.0, 3.0004, "S01", " \n "),
)


def read_subtitles(data, name):
    """Start, duration (ms) and text of each cue, as FFmpeg reads them."""
    with av.open(io.BytesIO(data.encode()), format=name) as container:
        stream = container.streams.subtitles[0]
        return [
            (float(p.pts * p.time_base), float(p.duration * p.time_base), bytes(p).decode())
            for p in container.demux(stream)
            if p.size
        ]


def test_text_has_a_line_for_each_segment():
    expected = "S01 [0.48-3.20] Hello there.\nS02 [3723.04-3725.50] Bye.\n"

    assert render(TALK, "text") == expected
    assert "\n[1.00-2.00] two lines here\n" in render(NASTY, "text")


def test_json_has_every_field():
    warning = TranscriptWarning("loop_cut", "cut", 1.5)

    value = json.loads(render(transcript(Segment(0.5, 1, "S01", "é"), warnings=(warning,)), "json"))

    assert list(value) == list(Transcript.__dataclass_fields__)
    assert value["segments"] == [{"start_s": 0.5, "end_s": 1, "speaker": "S01", "text": "é"}]
    assert value["warnings"] == [{"code": "loop_cut", "message": "cut", "at_s": 1.5}]


def test_srt_numbers_cues_and_names_speakers():
    assert render(TALK, "srt") == (
        "1\n00:00:00,480 --> 00:00:03,200\nS01: Hello there.\n\n"
        "2\n01:02:03,040 --> 01:02:05,500\nS02: Bye.\n\n"
    )


def test_vtt_names_speakers_as_voices():
    assert render(TALK, "vtt") == (
        "WEBVTT\n\n"
        "00:00:00.480 --> 00:00:03.200\n<v S01>Hello there.\n\n"
        "01:02:03.040 --> 01:02:05.500\n<v S02>Bye.\n\n"
    )


def test_vtt_escapes_what_has_meaning():
    assert "<v S02>later &amp; &lt;b&gt;bold&lt;/b&gt; --&gt; {" in render(NASTY, "vtt")


@pytest.mark.parametrize(("name", "step_s"), [("srt", 0.001), ("vtt", 0.001), ("ass", 0.01)])
def test_subtitles_are_sorted_never_empty_and_last_at_least_a_step(name, step_s):
    cues = read_subtitles(render(NASTY, name), {"vtt": "webvtt"}.get(name, name))

    assert [start for start, _, _ in cues] == [1.0, 5.0]
    assert [length for _, length, _ in cues] == pytest.approx([1.0, step_s])
    assert "two lines here" in cues[0][2]


@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_subtitles_have_one_arrow_for_each_cue(name):
    assert render(NASTY, name).count("-->") == 2


def test_ass_has_styles_and_no_commands_from_words():
    text = render(NASTY, "ass")

    assert text.startswith("[Script Info]\n")
    assert re.search(r"^Dialogue: 0,0:00:05\.00,0:00:05\.01,Default,S02,0,0,0,,S02: ", text, re.M)
    assert "\\N" not in text
    assert "{\\an8}" not in text


def test_ass_writes_ten_hours_and_more():
    late = transcript(Segment(36_000, 36_001.5, "", "late"))

    assert "Dialogue: 0,10:00:00.00,10:00:01.50,Default,," in render(late, "ass")


def test_markup_reads_back_as_the_same_segments():
    segments = (Segment(0.48, 3.2, "S01", "Hello."), Segment(3.5, 4.0, "S02", "Bye."))

    parsed = parse_markup(render(transcript(*segments), "markup"))

    assert (parsed.segments, parsed.repairs) == (segments, ())


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_takes_a_transcript_without_segments(name):
    assert isinstance(render(transcript(), name), str)


def test_unknown_format_is_refused_naming_the_known_ones():
    with pytest.raises(ConfigError, match="'docx', allowed are text, json, srt, vtt, ass, markup"):
        render(TALK, "docx")
