"""A live session in a made-up world: scripted words, a decoder that reads them from the samples,
a clock that is the audio's own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from moss_stream.errors import MossStreamError
from moss_stream.live.events import (
    CancelDecode,
    DecodeKind,
    DecodeRequest,
    Event,
    Failed,
    Final,
    Hypothesis,
    Output,
)
from moss_stream.live.session import LiveSession

RATE = 16_000
FRAME = 512
_SCALE = 2.0**24  # sample i is (i // 16) / 2**24: float32 holds it exactly for four hours


class Bytes:
    """A codec whose tokens are the bytes of UTF-8: tags and characters can be cut anywhere."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


CODEC = Bytes()


@dataclass(frozen=True)
class Word:
    start_s: float
    end_s: float
    text: str
    speaker: str = "A"


def say(start_s: float, text: str, speaker: str = "A", word_s: float = 0.3) -> list[Word]:
    """The words of `text`, spoken evenly without pauses from `start_s` on."""
    return [
        Word(start_s + i * word_s, start_s + (i + 1) * word_s, word, speaker)
        for i, word in enumerate(text.split())
    ]


def audio(start: int, end: int) -> np.ndarray:
    """Samples that carry their own position."""
    return ((np.arange(start, end) // 16) / _SCALE).astype(np.float32)


def probability(words: Sequence[Word], frame: int) -> float:
    """High while one of `words`, which follow one another, is spoken."""
    start_s, end_s = frame * FRAME / RATE, (frame + 1) * FRAME / RATE
    begun = bisect_left(words, end_s, key=lambda word: word.start_s)
    return 0.9 if begun and start_s < words[begun - 1].end_s else 0.05


def runs(samples: np.ndarray) -> list[tuple[float, float, float]]:
    """Stretches of continuous session audio: model start, session start, session end, seconds."""
    at_ms = np.rint(samples.astype(np.float64) * _SCALE).astype(np.int64)
    breaks = np.flatnonzero((np.diff(at_ms) < 0) | (np.diff(at_ms) > 1)) + 1
    edges = [0, *breaks.tolist(), len(samples)]
    return [
        (a / RATE, at_ms[a] / 1000, at_ms[a] / 1000 + (b - a) / RATE)
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]


@dataclass
class FakeDecoder:
    """Writes the scripted words that the samples of a request hold, as the model would."""

    words: Sequence[Word]

    def markup(self, request: DecodeRequest) -> str:
        """Of the request's own utterance; a word that the audio's end cuts is misheard."""
        samples = np.concatenate([window.samples for window in request.windows])
        own_s = (len(samples) - (request.end_at - request.start_at)) / RATE
        labels: dict[str, str] = {}
        segments: list[tuple[float, float, str, list[str]]] = []
        for model_s, start_s, end_s in runs(samples):
            for word in self.words:
                if not start_s - 0.01 <= word.start_s < end_s - 0.05:
                    continue
                label = labels.setdefault(word.speaker, f"S{len(labels) + 1:02d}")
                begin = model_s + word.start_s - start_s
                end = model_s + min(word.end_s, end_s) - start_s
                text = word.text if word.end_s <= end_s + 0.01 else word.text[:1] + "~"
                if begin < own_s - 0.01:
                    continue
                last = segments[-1] if segments else None
                if last and last[2] == label and begin - last[1] < 0.5:
                    segments[-1] = (last[0], end, label, [*last[3], text])
                else:
                    segments.append((begin, end, label, [text]))
        return "".join(
            f"[{begin:.2f}][{label}]{' '.join(texts)}[{end:.2f}]"
            for begin, end, label, texts in segments
        )

    def ids(self, request: DecodeRequest, base: int) -> tuple[int, ...]:
        """The output; `base` leading forced tokens belong to the context."""
        ids = request.forced[:base] + tuple(CODEC.encode(self.markup(request)))
        assert ids[: len(request.forced)] == request.forced, "committed text was not stable"
        return ids


@dataclass
class World:
    """Feeds a session and answers its requests, some time after they were made."""

    session: LiveSession
    words: Sequence[Word]
    latency_s: Callable[[], float] = lambda: 0.0
    faults: Callable[[DecodeRequest], MossStreamError | None] = lambda request: None
    now_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    requests: list[DecodeRequest] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    late: list[tuple[float, DecodeRequest]] = field(default_factory=list)
    keep_requests: bool = True
    _base: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder = FakeDecoder(self.words)

    def take(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case DecodeRequest():
                    if self.keep_requests:
                        self.requests.append(output)
                    # Until something is committed all that is forced is context.
                    self._base.setdefault(output.utterance_id, len(output.forced))
                    self.late.append((self.now_s + self.latency_s(), output))
                case CancelDecode():
                    self.cancelled.add(output.request_id)
                case _:
                    self.events.append(output)

    def answer(self) -> None:
        """Answer what is due, and what comes of that."""
        while due := [entry for entry in self.late if entry[0] <= self.now_s]:
            self.late = [entry for entry in self.late if entry[0] > self.now_s]
            for _, request in due:
                if request.request_id in self.cancelled:
                    self.cancelled.discard(request.request_id)
                    continue
                error = self.faults(request)
                if error is not None:
                    self.take(self.session.failed(request.request_id, error, self.now_s))
                    continue
                is_link = request.kind is DecodeKind.LINK
                base = len(request.forced) if is_link else self._base[request.utterance_id]
                ids = self.decoder.ids(request, base)
                self.take(self.session.hypothesis(request.request_id, ids, self.now_s))

    def examine(self, batch: int = 1 << 30) -> None:
        """Score pending frames, `batch` at a time."""
        while len(frames := self.session.pending_frames().samples):
            first = self.session.pending_frames().first_frame
            count = min(batch, len(frames))
            scores = [probability(self.words, first + i) for i in range(count)]
            self.take(self.session.probabilities(first, scores, self.now_s))

    def feed(self, num_samples: int, batch: int = 1 << 30) -> None:
        start = self.session.received_at
        self.now_s = (start + num_samples) / RATE
        self.take(self.session.receive(audio(start, start + num_samples), self.now_s))
        self.examine(batch)
        self.answer()

    def feed_until(self, at_s: float, chunk_s: float = 0.1) -> None:
        while (left := round(at_s * RATE) - self.session.received_at) > 0:
            self.feed(min(left, round(chunk_s * RATE)))

    def finish(self) -> None:
        """End the stream and let everything come to its end."""
        self.take(self.session.finish(self.now_s))
        self.examine()
        self.answer()
        for _ in range(1000):
            if self.session.is_finished:
                return
            self.now_s += 0.25
            self.take(self.session.tick(self.now_s))
            self.answer()

    def all(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def finals(self) -> list[tuple[int, int, int, str, tuple]]:
        return [
            (final.utterance_id, final.start_at, final.end_at, final.text, final.segments)
            for final in sorted(self.all(Final), key=lambda final: final.utterance_id)
        ]

    def of_kind(self, kind: DecodeKind) -> list[DecodeRequest]:
        return [request for request in self.requests if request.kind is kind]


def tiles(session: LiveSession) -> bool:
    """Whether the account has each received sample once."""
    stretches = session.accounted()
    touching = all(a.end_at == b.start_at for a, b in zip(stretches, stretches[1:], strict=False))
    ends = not stretches or stretches[-1].end_at == session.received_at
    return touching and ends and sum(session.totals().values()) == session.received_at


def resolved(events: Iterable[Event]) -> Iterator[int]:
    """Ids of the utterances that have their final or failure, in order of the events."""
    for event in events:
        if isinstance(event, (Final, Failed)):
            yield event.utterance_id


def committed_only_grows(events: Iterable[Event]) -> bool:
    shown: dict[int, str] = {}
    for event in events:
        if isinstance(event, Hypothesis):
            if not event.committed_text.startswith(shown.get(event.utterance_id, "")):
                return False
            shown[event.utterance_id] = event.committed_text
    return True
