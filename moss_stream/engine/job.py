"""What the engine keeps of one request beside its sequence: who waits for it, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from moss_stream.engine.delivery import Receiver
from moss_stream.engine.request import Result
from moss_stream.engine.runner import Embeddings
from moss_stream.engine.sequence import Sequence
from moss_stream.types import Timing, Usage


@dataclass(slots=True)
class Job:
    """One request on its way through the engine."""

    sequence: Sequence
    receiver: Receiver
    embeddings: Embeddings
    submitted_s: float
    admitted_s: float | None = None
    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    encoder_hits: int = 0
    encoder_misses: int = 0
    unsent: list[int] = field(default_factory=list)
    """Tokens emitted and not delivered yet."""
    sent_s: float | None = None
    """When tokens were last delivered."""

    def result(self) -> Result:
        """The finished request's result."""
        sequence = self.sequence
        assert sequence.stop_reason is not None
        prompt = sequence.request.prompt
        admitted_s = self.submitted_s if self.admitted_s is None else self.admitted_s
        return Result(
            token_ids=tuple(sequence.output),
            stop_reason=sequence.stop_reason,
            accepted_length=sequence.draft.accepted_length,
            usage=Usage(
                audio_tokens=prompt.audio_tokens,
                prompt_tokens=len(prompt.ids),
                prefix_hit_tokens=sequence.prefix_hit_tokens,
                encoder_hits=self.encoder_hits,
                encoder_misses=self.encoder_misses,
                draft_tokens=sequence.draft_tokens,
                draft_accepted=sequence.draft_accepted,
                output_tokens=len(sequence.output),
                decode_steps=sequence.decode_steps,
            ),
            timing=Timing(
                queue_s=admitted_s - self.submitted_s,
                encode_s=self.encode_s,
                prefill_s=self.prefill_s,
                decode_s=self.decode_s,
            ),
        )
