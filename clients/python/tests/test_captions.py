from __future__ import annotations

import os
import re

from moss_stream_client import (
    Completed,
    Failed,
    Gap,
    Hypothesis,
    HypothesisSegment,
    Relabel,
    Segment,
)
from moss_stream_client.captions import FinalLines, LiveScreen


def snapshot(*parts: tuple[str, str, bool], item: str = "i") -> Hypothesis:
    segments = tuple(HypothesisSegment(who, 0.0, 1.0, text, done) for who, text, done in parts)
    return Hypothesis(item, 1, "", "", segments, 0.0)


def screen(columns: int = 40, lines: int = 20) -> LiveScreen:
    return LiveScreen(16000, lambda: os.terminal_size((columns, lines)))


def shown(written: str) -> list[str]:
    """Replay what was written on a screen that knows only what the captions use."""
    rows = [""]
    for token in re.findall(r"\x1b\[\d*[AJm]|\n|\r|[^\x1b\n\r]+", written):
        if token == "\n":
            rows.append("")
        elif token.endswith("A") and token.startswith("\x1b"):
            rows = rows[: len(rows) - int(token[2:-1])]
        elif token == "\x1b[J":
            rows[-1] = ""
        elif not token.startswith("\x1b") and token != "\r":
            rows[-1] += token
    return rows


def test_finals_are_one_line_for_each_segment() -> None:
    finals = FinalLines(16000)
    assert finals.feed(Segment("i", "s1", "S01", 0.5, 2.0, "Hello.")) == []
    assert finals.feed(Segment("i", "s2", None, 2.0, 3.0, "Yes.")) == []
    assert finals.feed(Completed("i", "Hello. Yes.")) == [
        "S01 [0.50-2.00] Hello.",
        "? [2.00-3.00] Yes.",
    ]


def test_finals_fall_back_to_the_transcript() -> None:
    assert FinalLines(16000).feed(Completed("i", "Hello.")) == ["Hello."]
    assert FinalLines(16000).feed(Completed("i", "")) == []


def test_finals_include_what_went_wrong() -> None:
    finals = FinalLines(16000)
    assert finals.feed(Failed("i", None, "no memory")) == ["[not transcribed: no memory]"]
    assert finals.feed(Gap(8000, 16000, "overload")) == ["[no transcript for 0.50-1.00: overload]"]
    assert finals.feed(Relabel("S02", "S01")) == ["[S02 is S01]"]


def test_text_cannot_steer_the_terminal() -> None:
    (line,) = FinalLines(16000).feed(Completed("i", "a\x1b[2Jb\nc"))
    assert line == "a [2Jb c"


def test_screen_draws_committed_solid_and_partial_faint() -> None:
    view = screen()
    assert view.feed(snapshot(("S01", "one two", True), ("S01", "three", False))) == (
        "S01 one two \x1b[2mthree\x1b[0m"
    )


def test_screen_redraws_only_the_growing_utterance() -> None:
    view = screen(columns=13)
    written = view.feed(snapshot(("S01", "one two three four", False)))
    assert shown(written) == ["S01 one two", "three four"]
    written += view.feed(snapshot(("S01", "one two", True), ("S02", "yes", False)))
    assert shown(written) == ["S01 one two", "S02 yes"]
    written += view.feed(Segment("i", "s", "S01", 0.0, 1.0, "one two"))
    written += view.feed(Completed("i", "one two"))
    assert shown(written) == ["S01 [0.00-1.00] one two", ""]
    written += view.feed(snapshot(("S01", "next", False), item="j"))
    assert shown(written) == ["S01 [0.00-1.00] one two", "S01 next"]
    written += view.erase()
    assert shown(written) == ["S01 [0.00-1.00] one two", ""]


def test_screen_keeps_the_last_rows_of_a_long_utterance() -> None:
    view = screen(columns=9, lines=4)
    written = view.feed(snapshot(("S01", "aaaaaa bbbbbb cccccc dddddd", False)))
    assert shown(written) == ["bbbbbb", "cccccc", "dddddd"]


def test_screen_counts_wide_characters_twice() -> None:
    view = screen(columns=11)
    written = view.feed(snapshot(("S01", "你好你好你好你", False)))
    assert shown(written) == ["S01", "你好你好你", "好你"]
