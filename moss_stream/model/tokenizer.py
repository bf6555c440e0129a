"""Text to token ids and back, from a checkpoint's `tokenizer.json` and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as _Tokenizer
from tokenizers.decoders import DecodeStream

from moss_stream.errors import UnsupportedModelError
from moss_stream.model.spec import read_json


class Tokenizer:
    """A checkpoint's tokenizer and chat template.

    Args:
        directory: Checkpoint directory.

    Raises:
        UnsupportedModelError: The tokenizer or the template is missing or broken.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedModelError(f"{directory} has no tokenizer.json", field="model")
        try:
            self._tokenizer = _Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for a broken file
            raise UnsupportedModelError(f"{path} is broken: {error}", field="model") from error
        self.special_tokens = tuple(
            token.content
            for token in self._tokenizer.get_added_tokens_decoder().values()
            if token.special
        )
        """Text forms of the tokens that steer the model."""
        self.markup_ids = self._find_markup_ids()
        """Tokens that times and speaker tags are made of."""
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(_chat_template(directory))

    def _find_markup_ids(self) -> frozenset[int]:
        times = self.encode("[0123456789.]")
        tags = [token_id for number in range(100) for token_id in self.encode(f"[S{number:02d}]")]
        return frozenset((*times, *tags))

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognised."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def token(self, token_id: int) -> str:
        """The text form of one special token.

        Raises:
            UnsupportedModelError: There is no such token.
        """
        text = self._tokenizer.id_to_token(token_id)
        if text is None:
            raise UnsupportedModelError(f"the tokenizer has no token {token_id}", field="model")
        return text

    def render(self, content: Sequence[dict[str, Any]]) -> str:
        """Chat-template text of one user message with `content`, ready for the answer."""
        message = {"role": "user", "content": list(content)}
        return self._template.render(messages=[message], add_generation_prompt=True)

    def text_stream(self) -> TextStream:
        """Start turning a stream of token ids into text."""
        return TextStream(self)


class TextStream:
    """Token ids to text as they come, never splitting a UTF-8 character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._emitted = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Text that has become certain with `ids`."""
        self._ids.extend(ids)
        pieces = (self._stream.step(self._tokenizer._tokenizer, token_id) for token_id in ids)
        text = "".join(piece for piece in pieces if piece)
        self._emitted += len(text)
        return text

    def finish(self) -> str:
        """What is left at the end: bytes that never became a character, as U+FFFD."""
        return self._tokenizer.decode(self._ids)[self._emitted :]


def _chat_template(directory: Path) -> str:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = read_json(directory / name, required=False).get("chat_template")
        if isinstance(template, str):
            return template
    raise UnsupportedModelError(f"{directory} has no chat template", field="model")
