"""The model's prompt: text around audio slots with time markers between them.

Source: transformers `MossTranscribeDiarizeProcessor.replace_audio_token` for the markers and the
checkpoint's own chat template for the text. The marker position truncates `tokens_per_s *
marker_every_s` to a whole number, so with 12.5 tokens a second and a marker every 5 s it drifts;
that is part of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from moss_stream.errors import ConfigError, UnsupportedModelError
from moss_stream.model.spec import Layout, ModelSpec
from moss_stream.model.tokenizer import Tokenizer
from moss_stream.types import TEXT_SLOT, Prompt

ORIGINAL_INSTRUCTION = (
    "请将音频转写为文本，每一段需以起始时间戳和说话人编号"
    "（[S01]、[S02]、[S03]…）开头，正文为对应的语音内容，"
    "并在段末标注结束时间戳，以清晰标明该段语音范围。"
)
"""Instruction the original checkpoint was trained with. Source: OpenMOSS
`inference_utils.DEFAULT_PROMPT`; the native layout has it in its chat template."""


class PromptBuilder:
    """Builds prompts for one checkpoint.

    Raises:
        UnsupportedModelError: The chat template does not place exactly one audio token, or a digit
            is not a token of its own.
    """

    def __init__(self, spec: ModelSpec, tokenizer: Tokenizer) -> None:
        self.spec = spec
        self.tokenizer = tokenizer
        self._audio_token = tokenizer.token(spec.audio_token_id)
        self._digits = {digit: self._digit_id(digit) for digit in "0123456789"}
        before, after = self._text(None, ())
        self._text_tokens = len(before) + len(after)

    def build(
        self,
        window_samples: Sequence[int],
        *,
        text: str | None = None,
        hotwords: Sequence[str] = (),
    ) -> Prompt:
        """Build the prompt for audio of consecutive windows.

        Args:
            window_samples: Samples in each window; all but the last are full.
            text: Instruction; None for the checkpoint's own.
            hotwords: Words likely to be said.

        Returns:
            Ids and audio slots.

        Raises:
            ConfigError: `text` or `hotwords` contain one of the model's special tokens.
        """
        for field, value in (("prompt", text or ""), ("hotwords", " ".join(hotwords))):
            for token in self.tokenizer.special_tokens:
                if token in value:
                    raise ConfigError(f"{field} contains the special token {token}", field=field)
        before, after = self._text(text, hotwords)
        window_tokens = tuple(self.spec.audio.audio_tokens(n) for n in window_samples)
        ids, slots = self._audio_span(sum(window_tokens))
        return Prompt(
            ids=(*before, *ids, *after),
            audio_slots=(*[TEXT_SLOT] * len(before), *slots, *[TEXT_SLOT] * len(after)),
            window_tokens=window_tokens,
        )

    def count(self, window_samples: Sequence[int]) -> int:
        """Length of the prompt that `build` makes for these windows with the default text."""
        tokens = sum(self.spec.audio.audio_tokens(n) for n in window_samples)
        return self._text_tokens + tokens + sum(len(str(s)) for s in self._marker_seconds(tokens))

    def _digit_id(self, digit: str) -> int:
        ids = self.tokenizer.encode(digit)
        if len(ids) != 1:
            raise UnsupportedModelError(
                f"the tokenizer writes the digit {digit} as {len(ids)} tokens, expected 1",
                field="model",
            )
        return ids[0]

    def _text(self, text: str | None, hotwords: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids before and after the audio."""
        parts = self.tokenizer.render(self._content(text, hotwords)).split(self._audio_token)
        if len(parts) != 2:
            raise UnsupportedModelError(
                f"the chat template places {len(parts) - 1} audio tokens, expected 1", field="model"
            )
        return self.tokenizer.encode(parts[0]), self.tokenizer.encode(parts[1])

    def _content(self, text: str | None, hotwords: Sequence[str]) -> list[dict[str, object]]:
        content: list[dict[str, object]] = [{"type": "audio"}]
        if self.spec.layout is Layout.ORIGINAL:
            # The original template knows no keywords: its authors append them to the instruction.
            instruction = text or ORIGINAL_INSTRUCTION
            if hotwords:
                instruction += "热词提示：" + "、".join(hotwords)
            content.append({"type": "text", "text": instruction})
            return content
        if text:
            content.append({"type": "text", "text": text})
        if hotwords:
            content.append({"type": "keywords", "keywords": list(hotwords)})
        return content

    def _marker_seconds(self, num_tokens: int) -> range:
        """Elapsed seconds that get a marker within `num_tokens` audio tokens."""
        audio = self.spec.audio
        if int(audio.tokens_per_s * audio.marker_every_s) <= 0:
            return range(0)
        last_s = int(num_tokens / audio.tokens_per_s)
        return range(audio.marker_every_s, last_s + 1, audio.marker_every_s)

    def _audio_span(self, num_tokens: int) -> tuple[list[int], list[int]]:
        """Ids and slots of `num_tokens` audio tokens with the markers between them."""
        audio = self.spec.audio
        tokens_per_marker = int(audio.tokens_per_s * audio.marker_every_s)
        ids: list[int] = []
        slots: list[int] = []
        placed = 0
        for second in self._marker_seconds(num_tokens):
            position = second // audio.marker_every_s * tokens_per_marker
            ids.extend([self.spec.audio_token_id] * (position - placed))
            slots.extend(range(placed, position))
            placed = position
            ids.extend(self._digits[digit] for digit in str(second))
            slots.extend([TEXT_SLOT] * len(str(second)))
        ids.extend([self.spec.audio_token_id] * (num_tokens - placed))
        slots.extend(range(placed, num_tokens))
        return ids, slots
