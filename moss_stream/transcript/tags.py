"""Tags and text of the model's markup: a lexer fed with any pieces of output.

A tag is `[12.56]`, `[1:02.5]`, `[1:02:03]` or `[S01]`. What cannot be a tag stays text (`[laughs]`,
`[5 apples]`); what can only be the remains of one is `Broken`: `[`, `[S0` or `[3.2` before
something that cannot go on with it, and brackets around nothing but `S`, digits, dots and colons
that are no tag. The tokens do not depend on how the text was cut: the lexer holds back what may
still become a tag.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Time:
    """A time tag."""

    value_s: float
    """Seconds."""
    raw: str
    """The tag as written."""

    @property
    def is_certain(self) -> bool:
        """Whether nobody would speak of it so: a number in brackets may be words, `[12.56]` not."""
        return "." in self.raw


@dataclass(frozen=True, slots=True)
class Speaker:
    """A speaker tag."""

    label: str
    """Such as `S01`, as written."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text between tags."""

    text: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The remains of a tag."""

    raw: str


Token = Time | Speaker | Text | Broken

_TAG = re.compile(
    r"\[(?:(?P<speaker>S[0-9]{1,3})"
    r"|(?:(?:(?P<hours>[0-9]{1,3}):)?(?P<minutes>[0-9]{1,3}):(?=[0-5][0-9]))?"
    r"(?P<seconds>[0-9]{1,6}(?:\.[0-9]{1,6})?))\]"
)
_TAG_START = re.compile(r"\[(?:S[0-9]{0,3}|[0-9][0-9:.]{0,15})?")
"""Everything a tag can begin with; longer ones are not tags."""


class Lexer:
    """Splits markup into tokens as it comes."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> list[Token]:
        """Take the next piece of output and give the tokens that are certain now."""
        held = self._held + text
        tokens: list[Token] = []
        done = 0
        while done < len(held):
            bracket = held.find("[", done)
            text_end = len(held) if bracket < 0 else bracket
            if text_end > done:
                tokens.append(Text(held[done:text_end]))
                done = text_end
                continue
            start = _TAG_START.match(held, done)
            if start is None or start.end() == len(held):
                break  # it may still become a tag
            token, done = _bracket(held, done, start.end())
            tokens.append(token)
        self._held = held[done:]
        return tokens

    def finish(self) -> list[Token]:
        """End the output; a tag that it cuts in the middle is broken."""
        held, self._held = self._held, ""
        return [Broken(held)] if held else []


def _bracket(held: str, begin: int, end: int) -> tuple[Token, int]:
    """Decide what an opening bracket is, and where that ends.

    Args:
        held: Text with the bracket at `begin`.
        begin: Where the bracket is.
        end: Where the longest start of a tag ends; the character there cannot go on with it.
    """
    if tag := _TAG.match(held, begin):
        return _tag(tag), tag.end()
    start, following = held[begin:end], held[end]
    is_speaker = start.startswith("[S") and len(start) > 2
    is_time = "." in start or ":" in start
    is_empty = start in ("[", "[S") and following == "]"
    if is_speaker or is_time or is_empty or following == "[":
        return Broken(start), end + (following == "]")
    return Text("["), begin + 1


def _tag(tag: re.Match[str]) -> Token:
    if tag["speaker"]:
        return Speaker(tag["speaker"])
    minutes = int(tag["hours"] or 0) * 60 + int(tag["minutes"] or 0)
    return Time(minutes * 60 + float(tag["seconds"]), tag[0])
