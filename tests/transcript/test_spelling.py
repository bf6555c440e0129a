from __future__ import annotations

from collections.abc import Sequence

from moss_stream.transcript.spelling import Spelling

PIECES = ("][", "[S", ".[", "12", *"[]S0123456789.a")
"""Vocabulary of a tokenizer that takes the longest piece."""


def encode(text: str) -> list[int]:
    tokens = []
    while text:
        piece = next(piece for piece in PIECES if text.startswith(piece))
        tokens.append(PIECES.index(piece))
        text = text.removeprefix(piece)
    return tokens


def decode(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def continued(text: str, following: str) -> list[str]:
    return [PIECES[token] for token in Spelling(encode, decode, 0.08).continued(text, following)]


def test_what_follows_is_spelled_as_in_one_go() -> None:
    assert continued("[4.0", "8][S01]") == ["8", "][", "S", "0", "1", "]"]
    assert continued("", "[S01]") == ["[S", "0", "1", "]"]


def test_what_follows_is_spelled_alone_where_a_token_spans_both() -> None:
    assert continued("[4.08]", "[S01]") == ["[S", "0", "1", "]"]
    assert continued("a.", "[12.") == ["[", "12", "."]


def test_nothing_follows() -> None:
    assert continued("[4.08]", "") == []


def test_text_of_a_token() -> None:
    assert Spelling(encode, decode, 0.08).text(PIECES.index("][")) == "]["
