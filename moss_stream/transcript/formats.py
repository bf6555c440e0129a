"""Transcripts as files: text, json, srt, vtt, ass and the model's markup.

All but `json` are written from the segments, repaired as they are; `json` has every field of the
`Transcript`, the model's own output among them. Subtitles are sorted by start, as their formats
demand, have no empty cue, and every cue lasts at least the smallest step of its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import orjson

from moss_stream.errors import ConfigError
from moss_stream.transcript.markup import write_markup
from moss_stream.types import Segment, Transcript

_ASS_HEADER = """\
[Script Info]
ScriptType: v4.00+
PlayResX: 1280
PlayResY: 720
WrapStyle: 0

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, \
Bold, Italic, Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, \
Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,40,&H00FFFFFF,&H000000FF,&H00000000,&H80000000,\
0,0,0,0,100,100,0,0,1,2,0,2,60,60,40,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""


def render(transcript: Transcript, format: str) -> str:
    """Write a transcript in one of `FORMATS`.

    - `text`: a line for each segment, `S01 [0.48-3.20] words`, seconds from the start.
    - `json`: one object with all fields of `Transcript`, on one line.
    - `srt`, `vtt`, `ass`: subtitles that name the speaker.
    - `markup`: `[0.48][S01]words[3.20]` without a line end, what the model would have written
      without the defects that were repaired.

    Raises:
        ConfigError: The format is not known.
    """
    writer = _WRITERS.get(format)
    if writer is None:
        raise ConfigError(f"format is {format!r}, allowed are {', '.join(FORMATS)}", field="format")
    return writer(transcript)


def _text(transcript: Transcript) -> str:
    lines = []
    for segment in transcript.segments:
        speaker = f"{segment.speaker} " if segment.speaker else ""
        times = f"[{segment.start_s:.2f}-{segment.end_s:.2f}]"
        lines.append(f"{speaker}{times} {_one_line(segment.text)}\n")
    return "".join(lines)


def _json(transcript: Transcript) -> str:
    return orjson.dumps(transcript, option=orjson.OPT_APPEND_NEWLINE).decode()


def _markup(transcript: Transcript) -> str:
    return write_markup(transcript.segments)


def _srt(transcript: Transcript) -> str:
    blocks = []
    for number, (segment, text, start, end) in enumerate(_cues(transcript, 1000), 1):
        times = f"{_clock(start, 1000, ',')} --> {_clock(end, 1000, ',')}"
        speaker = f"{segment.speaker}: " if segment.speaker else ""
        # SRT has no escapes; readers look for the arrow to find the times.
        blocks.append(f"{number}\n{times}\n{speaker}{text.replace('-->', '->')}\n\n")
    return "".join(blocks)


def _vtt(transcript: Transcript) -> str:
    blocks = ["WEBVTT\n\n"]
    for segment, text, start, end in _cues(transcript, 1000):
        times = f"{_clock(start, 1000, '.')} --> {_clock(end, 1000, '.')}"
        voice = f"<v {_vtt_escaped(segment.speaker)}>" if segment.speaker else ""
        blocks.append(f"{times}\n{voice}{_vtt_escaped(text)}\n\n")
    return "".join(blocks)


def _vtt_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ass(transcript: Transcript) -> str:
    lines = [_ASS_HEADER]
    for segment, text, start, end in _cues(transcript, 100):
        # ASS has no second digit of the hours.
        times = ",".join(_clock(time, 100, ".").removeprefix("0") for time in (start, end))
        name = segment.speaker.replace(",", " ")
        speaker = f"{segment.speaker}: " if segment.speaker else ""
        lines.append(f"Dialogue: 0,{times},Default,{name},0,0,0,,{_ass_escaped(speaker + text)}\n")
    return "".join(lines)


def _ass_escaped(text: str) -> str:
    """Keep braces and backslashes from being commands: a word joiner follows each backslash."""
    return text.replace("\\", "\\\u2060").replace("{", "\\{").replace("}", "\\}")


def _cues(transcript: Transcript, steps_per_s: int) -> Iterator[tuple[Segment, str, int, int]]:
    """Segments with words by start: each with its text on one line, and its times in steps."""
    for segment in sorted(transcript.segments, key=lambda segment: segment.start_s):
        text = _one_line(segment.text)
        if text:
            start = max(0, round(segment.start_s * steps_per_s))
            yield segment, text, start, max(start + 1, round(segment.end_s * steps_per_s))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _clock(steps: int, steps_per_s: int, point: str) -> str:
    """Write a time as HH:MM:SS and its fraction."""
    seconds, fraction = divmod(steps, steps_per_s)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    digits = len(str(steps_per_s)) - 1
    return f"{hour:02}:{minute:02}:{second:02}{point}{fraction:0{digits}}"


_WRITERS: dict[str, Callable[[Transcript], str]] = {
    "text": _text,
    "json": _json,
    "srt": _srt,
    "vtt": _vtt,
    "ass": _ass,
    "markup": _markup,
}
FORMATS = tuple(_WRITERS)
"""Names of the formats `render` writes."""
