"""The in-process API: recordings in, transcripts out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from moss_stream.audio.media import Media, load_media
from moss_stream.audio.resample import check_rate
from moss_stream.audio.samples import check_samples
from moss_stream.audio.speech import speech_regions
from moss_stream.config import EngineConfig, check_whole
from moss_stream.engine.delivery import Handle
from moss_stream.engine.engine import Engine
from moss_stream.engine.request import Result
from moss_stream.errors import ConfigError, EngineStopped, StateError
from moss_stream.model.checkpoint import Model, load_model
from moss_stream.model.threads import side_threads
from moss_stream.model.tokenizer import Tokenizer
from moss_stream.model.vad import Vad, load_vad
from moss_stream.recordings.outcome import guarded_transcript, raw_transcript, silent_transcript
from moss_stream.recordings.request import Options, build_request, max_audio_s
from moss_stream.transcript.guards import check_times
from moss_stream.transcript.markup import MarkupParser
from moss_stream.types import Segment, Transcript

Source = str | os.PathLike[str] | bytes | npt.NDArray[np.float32]
"""A path, the bytes of a media file, or float32 mono samples (then with a sample rate)."""
SIDE_BY_SIDE = 16
"""Recordings that `submit` works on at the same time; more wait."""
SCORING = 2
"""Recordings whose speech is looked for at the same time, while others are decoded."""


class TranscribeOptions(TypedDict, total=False):
    """Options every way of transcribing takes; see `Options` for what they mean."""

    prompt: str | None
    hotwords: Sequence[str]
    temperature: float
    seed: int
    max_new_tokens: int | None
    guards: bool


@dataclass(frozen=True, slots=True)
class _Recording:
    """A recording ready for the model."""

    media: Media
    options: Options
    speech: tuple[tuple[float, float], ...]
    """Regions with speech, seconds; not looked for without guards."""

    @property
    def is_silent(self) -> bool:
        return self.options.guards and not self.speech

    def silent(self) -> Transcript:
        return silent_transcript(self.media.duration_s, self.media.warnings)

    def transcript(self, result: Result, markup: str) -> Transcript:
        duration_s, warnings = self.media.duration_s, self.media.warnings
        if not self.options.guards:
            return raw_transcript(result, markup, duration_s, warnings)
        return guarded_transcript(result, markup, duration_s, warnings, self.speech)

    def checked(self, segments: list[Segment]) -> list[Segment]:
        if not self.options.guards:
            return segments
        return list(check_times(segments, self.media.duration_s)[0])


class SegmentStream(Iterator[Segment]):
    """Segments of one recording as they close, then its whole transcript.

    Iterating raises what `Transcriber.transcribe` would. What guards find only at the end (a loop
    that was cut, speech that is missing) is in `transcript` alone; its segments are the ones to
    keep.
    """

    def __init__(self, tokenizer: Tokenizer, recording: _Recording, handle: Handle | None) -> None:
        self._tokenizer = tokenizer
        self._recording = recording
        self._handle = handle
        self._transcript: Transcript | None = None
        self._segments = self._run()

    def __next__(self) -> Segment:
        return next(self._segments)

    @property
    def transcript(self) -> Transcript:
        """The whole transcript with its warnings, usage and timing.

        Raises:
            StateError: The stream has not ended yet.
        """
        if self._transcript is None:
            raise StateError("the transcript is there once the stream has ended")
        return self._transcript

    def close(self) -> None:
        """Cancel what is left; safe at any time."""
        if self._handle is not None:
            self._handle.cancel()

    def _run(self) -> Iterator[Segment]:
        recording, handle = self._recording, self._handle
        if handle is None:
            self._transcript = recording.silent()
            return
        text = self._tokenizer.text_stream()
        parser = MarkupParser(recording.media.duration_s)
        try:
            for token_ids in handle.tokens():
                yield from recording.checked(parser.feed(text.feed(token_ids)))
            yield from recording.checked(parser.feed(text.finish()))
            yield from recording.checked(parser.finish())
        finally:
            handle.cancel()
        result = handle.result()
        self._transcript = recording.transcript(result, self._tokenizer.decode(result.token_ids))


def _check_names(model: object, device: object, dtype: object) -> None:
    if not isinstance(model, (str, os.PathLike)):
        raise ConfigError(f"model is {model!r}, expected a name or a directory", field="model")
    for field, value in (("device", device), ("dtype", dtype)):
        if not isinstance(value, str):
            raise ConfigError(f"{field} is {value!r}, expected its name", field=field)


class Transcriber:
    """One loaded model with its engine. Safe to use from several threads.

    Args:
        model: `mini`, a checkpoint directory, or a hub id.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        dtype: `auto`, `float32` or `bfloat16`.
        threads: CPU threads of the model; None for all cores.
        config: Sizes and limits of the engine.

    Raises:
        ConfigError: A bad option.
        ModelError: The checkpoint cannot be used.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = "mini",
        device: str = "auto",
        dtype: str = "auto",
        *,
        threads: int | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        if threads is not None:
            check_whole("threads", threads, 1, 1024)
        _check_names(model, device, dtype)
        self._model = load_model(model, device=device, dtype=dtype)
        self._vad = load_vad()
        self._threads = threads or os.cpu_count() or 1
        self._engine = Engine(self._model, config, threads=self._threads)
        self._scoring = side_threads(SCORING, "moss-scoring")
        self._pool = ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="moss-recording")
        self._max_audio_s = max_audio_s(self._model, self._engine.max_tokens)
        self._closed = threading.Event()

    @property
    def model(self) -> Model:
        """The loaded checkpoint."""
        return self._model

    @property
    def engine(self) -> Engine:
        """The engine behind this transcriber; others may share it."""
        return self._engine

    @property
    def vad(self) -> Vad:
        """The voice activity detector; without state of its own."""
        return self._vad

    @property
    def description(self) -> dict[str, Any]:
        """What is loaded and where it runs."""
        return {
            "model": str(self._model.spec.directory),
            "layout": str(self._model.spec.layout),
            "parameters": self._model.parameters,
            "device": str(self._model.device),
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "threads": self._threads,
            "max_audio_s": self._max_audio_s,
        }

    def transcribe(
        self,
        source: Source,
        sample_rate: int | None = None,
        **options: Unpack[TranscribeOptions],
    ) -> Transcript:
        """Transcribe one recording and wait for it.

        Args:
            source: A path, the bytes of a media file, or float32 mono samples.
            sample_rate: Samples a second; for samples only.
            **options: `prompt` (instruction; None for the checkpoint's own), `hotwords` (words
                likely to be said), `temperature` (0 takes the likeliest token), `seed`,
                `max_new_tokens` (None for max(512, 10 a second of audio)), `guards` (False for the
                model's raw output: no silence gate, no loop cut, no repair).

        Raises:
            ConfigError: A bad option.
            ClientError: The audio cannot be used, or is too long.
            EngineError: The engine failed or is closed.
        """
        recording = self._prepare(source, sample_rate, Options(**options))
        if recording.is_silent:
            return recording.silent()
        result = self._submit(recording).result()
        return recording.transcript(result, self._model.tokenizer.decode(result.token_ids))

    def submit(
        self,
        source: Source,
        sample_rate: int | None = None,
        **options: Unpack[TranscribeOptions],
    ) -> Future[Transcript]:
        """Transcribe in the background; recordings submitted together are decoded side by side.

        Arguments and errors are those of `transcribe`; errors come from the future.

        Raises:
            EngineStopped: The transcriber is closed.
        """
        try:
            return self._pool.submit(self.transcribe, source, sample_rate, **options)
        except RuntimeError as error:  # the pool's way to say that it was shut down
            raise EngineStopped("the transcriber is closed") from error

    def stream(
        self,
        source: Source,
        sample_rate: int | None = None,
        **options: Unpack[TranscribeOptions],
    ) -> SegmentStream:
        """Transcribe one recording and yield its segments as they close.

        Arguments and errors are those of `transcribe`.
        """
        recording = self._prepare(source, sample_rate, Options(**options))
        handle = None if recording.is_silent else self._submit(recording)
        return SegmentStream(self._model.tokenizer, recording, handle)

    def close(self) -> None:
        """Stop the engine; recordings still under way fail with `EngineStopped`."""
        self._closed.set()
        self._engine.close()
        self._pool.shutdown()
        self._scoring.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, source: Source, sample_rate: int | None, options: Options) -> _Recording:
        self._check_open()
        media = self._load(source, sample_rate)
        if not options.guards:
            return _Recording(media, options, ())
        try:
            speech = self._scoring.submit(self._speech, media)
        except RuntimeError as error:  # closed since it was checked
            raise EngineStopped("the transcriber is closed") from error
        return _Recording(media, options, speech.result())

    def _load(self, source: Source, sample_rate: int | None) -> Media:
        rate_hz, limit_s = self._model.spec.audio.rate_hz, self._max_audio_s
        if isinstance(source, np.ndarray):
            if sample_rate is None:
                raise ConfigError("samples need a sample_rate", field="sample_rate")
            check_rate(sample_rate, field="sample_rate")
            samples = check_samples(source, sample_rate, max_duration_s=limit_s)
            return Media(samples, len(samples) / rate_hz)
        if not isinstance(source, (str, os.PathLike, bytes)):
            raise ConfigError(
                f"source is a {type(source).__name__}, allowed are a path, the bytes of a file and "
                "a NumPy array of samples",
                field="source",
            )
        if sample_rate is not None:
            raise ConfigError(
                "sample_rate goes with samples only; a media file says its own", field="sample_rate"
            )
        return load_media(source, rate_hz=rate_hz, max_duration_s=limit_s, check=self._check_open)

    def _speech(self, media: Media) -> tuple[tuple[float, float], ...]:
        """Regions of a recording with speech, seconds."""
        probabilities = []
        for stretch in self._vad.probabilities_by_stretch(media.samples):
            self._check_open()
            probabilities.append(stretch)
        return tuple(speech_regions(np.concatenate(probabilities)))

    def _check_open(self) -> None:
        """Asked again and again, so that hours of audio do not keep `close` waiting."""
        if self._closed.is_set():
            raise EngineStopped("the transcriber is closed")

    def _submit(self, recording: _Recording) -> Handle:
        request = build_request(
            self._model,
            recording.media.samples,
            recording.options,
            max_tokens=self._engine.max_tokens,
        )
        return self._engine.submit(request)
