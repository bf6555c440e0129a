from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.engine.tag_draft import TagDraft
from moss_stream.transcript.spelling import Spelling

LETTERS = Spelling(
    encode=lambda text: [ord(letter) for letter in text],
    decode=lambda tokens: "".join(map(chr, tokens)),
    time_step_s=0.08,
)
"""A token for every character."""


def foreseen(output: str, *, audio_s: float = 60.0, limit: int = 99) -> str:
    draft = TagDraft(LETTERS, audio_s)
    draft.observe([ord(letter) for letter in output])
    return "".join(map(chr, draft.propose(limit)))


PIECES = ("][", ".[", *map(chr, range(32, 127)))
MERGED = Spelling(
    encode=lambda text: [PIECES.index(piece) for piece in re.findall(r"\]\[|\.\[|.", text)],
    decode=lambda tokens: "".join(PIECES[token] for token in tokens),
    time_step_s=0.08,
)
"""Some tokens close a tag or a sentence and open the next tag, as in Qwen's vocabulary."""


def foreseen_merged(output: str) -> str:
    draft = TagDraft(MERGED, 60.0)
    draft.observe(MERGED.continued("", output))
    return "".join(PIECES[token] for token in draft.propose(99))


SEGMENT = "[0.48][S01]Hi[1.04]"


@pytest.mark.parametrize(
    ("output", "following"),
    [
        ("", "[0."),
        ("[", "0."),
        ("[0", "."),
        ("[0.", ""),
        # Of the ten times that begin so, the first that is a multiple of 0.08 s.
        ("[0.4", "0][S01]"),
        ("[12.5", "6][S01]"),
        ("[12.56", "][S01]"),
        ("[12.56]", "[S01]"),
        ("[12.56][", "S01]"),
        ("[12.56][S", "01]"),
        ("[12.56][S0", "1]"),
        ("[12.56][S01", "]"),
        ("[12.56][S01]", ""),
        ("[12.56][S01]Hi", ""),
        ("[12.56][S01]Hi.", "[13."),
        ("[12.56][S01]Hi[", "13."),
        ("[12.56][S01]Hi[1", "3."),
        ("[12.56][S01]Hi[15", "."),
        ("[12.56][S01]Hi[15.0", "4][15."),
        ("[12.56][S01]Hi[15.84", "][16."),
        (SEGMENT, "[1."),
        (f"{SEGMENT}[1.2", "0][S01]"),
    ],
)
def test_tags_are_foreseen(output: str, following: str) -> None:
    assert foreseen(output) == following


@pytest.mark.parametrize(
    "output",
    [
        "I have 12.5",
        "[laughs]",
        "[0.48][S01][laughs]",
        "[1:02.5",
        "[0.48][S01]Hi [5 apples",
        "]",
        "[S01]",
    ],
)
def test_nothing_is_foreseen_where_no_tag_is_due(output: str) -> None:
    assert foreseen(f"x{output}") == ""


@pytest.mark.parametrize(
    ("output", "following"),
    [
        ("[12.5", "6][S01]"),
        ("[12.56][", "S01]"),
        ("[12.56][S01]Hi.[", "13."),
        ("[12.56][S01]Hi.[15.84][", "16."),
        ("[12.56][S01]Hi.[15.84][16.08][", "S01]"),
    ],
)
def test_tags_are_foreseen_where_tokens_span_two(output: str, following: str) -> None:
    assert foreseen_merged(output) == following


def test_space_after_a_tag_is_no_word() -> None:
    assert foreseen("[12.56]\n[") == "S01]"
    assert foreseen("[12.56][S01]Hi.[15.84]\n[") == "16."


def test_the_speaker_before_the_last_is_expected() -> None:
    two = f"{SEGMENT}[1.20][S02]Yes[1.60][1.76]"
    assert foreseen(two) == "[S01]"
    assert foreseen(f"{two}[S01]No[2.00][2.08]") == "[S02]"
    assert foreseen(f"{two}[S02]No[2.00][2.08]") == "[S01]"
    assert foreseen(f"{two}[S1") == ""


def test_times_that_are_no_multiples_of_the_step_are_not_completed() -> None:
    assert foreseen("[0.48][S01]Hi[1.0") == "4][1."
    assert foreseen("[0.47][S01]Hi[1.0") == ""


def test_a_segment_without_a_speaker_ends_all_the_same() -> None:
    assert foreseen("[12.56]Hi[13.0") == "4][13."


def test_a_segment_is_expected_to_end_as_the_speech_heard_so_far_and_within_the_audio() -> None:
    slow = "[0.00][S01]abcd[8.00][8.00][S01]"
    assert foreseen("[8.00][S01]abcd.") == "[9."
    assert foreseen(f"{slow}abcd.") == "[13."
    assert foreseen(f"{slow}abcd.", audio_s=9.0) == "[9."


def test_no_more_is_proposed_than_there_is_room_for() -> None:
    assert foreseen("[12.56]", limit=2) == "[S"
    assert foreseen("[12.56]", limit=0) == foreseen("[12.56]", limit=-1) == ""


@given(st.lists(st.sampled_from([*"[]S0189.:, ab", "[1.04]", "[S01]", "[S02]", "。"])))
def test_any_output_is_gone_on_with_by_whole_tags_or_beginnings(pieces: list[str]) -> None:
    draft = TagDraft(LETTERS, 10.0)
    for piece in pieces:
        draft.observe([ord(letter) for letter in piece])
        proposed = "".join(map(chr, draft.propose(99)))
        assert set(proposed) <= set("[]S0123456789.")
        assert "[[" not in proposed and "]]" not in proposed
