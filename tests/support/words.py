"""What counts as the same word: lower case, no punctuation, numbers spelt out."""

from __future__ import annotations

import re

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
TENS = "zero ten twenty thirty forty fifty sixty seventy eighty ninety".split()

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_APOSTROPHES = re.compile("['’‘]")


def spell_number(digits: str) -> str:
    """A whole number in words; digit by digit when it starts with 0 or is above 999,999."""
    value = int(digits)
    if len(digits) > 6 or (digits[0] == "0" and len(digits) > 1):
        return " ".join(ONES[int(digit)] for digit in digits)
    if value < 20:
        return ONES[value]
    if value < 100:
        return TENS[value // 10] + (f" {ONES[value % 10]}" if value % 10 else "")
    unit, name = (1000, "thousand") if value >= 1000 else (100, "hundred")
    rest = f" {spell_number(str(value % unit))}" if value % unit else ""
    return f"{spell_number(str(value // unit))} {name}{rest}"


def normal_words(text: str) -> str:
    """The words of a text as they are compared, separated by single spaces."""
    text = _THOUSANDS.sub("", _APOSTROPHES.sub("", text.lower()))
    words = re.findall(r"\d+|[^\W\d_]+", text)
    return " ".join(spell_number(word) if word.isdecimal() else word for word in words)
