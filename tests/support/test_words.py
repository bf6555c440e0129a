from __future__ import annotations

import pytest
from support.words import normal_words, spell_number


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "zero"),
        ("19", "nineteen"),
        ("40", "forty"),
        ("199", "one hundred ninety nine"),
        ("16012", "sixteen thousand twelve"),
        ("007", "zero zero seven"),
        ("1234567", "one two three four five six seven"),
    ],
)
def test_number_is_spelt(digits: str, words: str) -> None:
    assert spell_number(digits) == words


def test_words_lose_case_punctuation_and_digits() -> None:
    text = "Don't press 9 ... at twenty-third, 1,200 Main St.!"

    assert normal_words(text) == (
        "dont press nine at twenty third one thousand two hundred main st"
    )
