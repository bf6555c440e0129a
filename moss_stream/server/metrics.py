"""What the server measures, for Prometheus: `/metrics`.

Every app has a registry of its own, so several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moss_stream.engine.engine import EngineStats
from moss_stream.types import Timing, Usage

DELAY_BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Bounds around the half second live captions aim at."""
FILE_BUCKETS_S: Final = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)


class Metrics:
    """Counters, gauges and histograms of one server. Safe to use from several threads.

    Args:
        engine_stats: Looks at the engine whenever somebody reads the metrics.
    """

    def __init__(self, engine_stats: Callable[[], EngineStats] | None = None) -> None:
        self.registry = CollectorRegistry()
        if engine_stats is not None:
            self.registry.register(_EngineCollector(engine_stats))
        self._sessions = self._gauge("moss_sessions", "Live sessions open now.")
        self._opened = self._counter("moss_sessions_opened", "Live sessions opened.")
        self._refused = self._counter(
            "moss_sessions_refused", "Live sessions refused, by reason.", ["reason"]
        )
        self._audio = self._counter(
            "moss_audio_seconds", "Audio received, seconds, by kind.", ["kind"]
        )
        self._lag = self._histogram(
            "moss_lag_seconds", "Audio received minus audio covered by the last hypothesis."
        )
        self._partial_age = self._histogram(
            "moss_partial_age_seconds", "Age of the newest audio covered when a partial is sent."
        )
        self._final_delay = self._histogram(
            "moss_final_delay_seconds", "From the end of speech to the final."
        )
        self._viewers = self._gauge("moss_viewers", "Viewers of rooms here now.")
        self._viewers_dropped = self._counter(
            "moss_viewers_dropped", "Viewers of rooms that were too slow."
        )
        self._prompt_tokens = self._counter("moss_prompt_tokens", "Prompt positions of results.")
        self._prefix_hits = self._counter(
            "moss_prefix_hit_tokens", "Prompt positions whose KV was reused."
        )
        self._output_tokens = self._counter("moss_output_tokens", "Output tokens of results.")
        self._drafted = self._counter(
            "moss_draft_tokens", "Tokens proposed by drafts and as tags that are foreseen."
        )
        self._accepted = self._counter(
            "moss_draft_accepted_tokens", "Those of them the model agreed with."
        )
        self._stages = self._counter(
            "moss_stage_seconds", "Time of requests by stage; a shared step counts for each.",
            ["stage"],
        )  # fmt: skip
        self._files = self._counter(
            "moss_file_requests", "Requests with a recording, by HTTP status.", ["status"]
        )
        self._files_active = self._gauge("moss_file_requests_active", "Recordings under way.")
        self._file_time = self._histogram(
            "moss_file_request_seconds", "Time of requests with a recording.", FILE_BUCKETS_S
        )

    def session_opened(self) -> None:
        """Count a live session that was let in."""
        self._opened.inc()
        self._sessions.inc()

    def session_closed(self) -> None:
        """Count the end of a live session."""
        self._sessions.dec()

    def session_refused(self, reason: str) -> None:
        """Count a live session that was not let in, by the code of the error."""
        self._refused.labels(reason).inc()

    def viewer_opened(self) -> None:
        """Count a viewer of a room."""
        self._viewers.inc()

    def viewer_closed(self, was_dropped: bool) -> None:
        """Count the end of a viewer, who may have been too slow."""
        self._viewers.dec()
        self._viewers_dropped.inc(was_dropped)

    def observe_audio(self, seconds: float, kind: str) -> None:
        """Count received audio; `kind` is `live` or `file`."""
        self._audio.labels(kind).inc(seconds)

    def observe_lag(self, seconds: float) -> None:
        """Note how far a session's text is behind its audio."""
        self._lag.observe(seconds)

    def observe_partial_age(self, seconds: float) -> None:
        """Note the age of a partial that is sent."""
        self._partial_age.observe(seconds)

    def observe_final_delay(self, seconds: float) -> None:
        """Note the delay of a final that is sent."""
        self._final_delay.observe(seconds)

    def observe_result(self, usage: Usage, timing: Timing) -> None:
        """Add what one result of the engine cost, live or of a recording."""
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._prefix_hits.inc(usage.prefix_hit_tokens)
        self._output_tokens.inc(usage.output_tokens)
        self._drafted.inc(usage.draft_tokens)
        self._accepted.inc(usage.draft_accepted)
        self._stages.labels("queue").inc(timing.queue_s)
        self._stages.labels("encode").inc(timing.encode_s)
        self._stages.labels("prefill").inc(timing.prefill_s)
        self._stages.labels("decode").inc(timing.decode_s)

    def file_opened(self) -> None:
        """Count a recording that is being worked on."""
        self._files_active.inc()

    def file_closed(self) -> None:
        """Count the end of the work on a recording."""
        self._files_active.dec()

    def observe_file(self, status: int, seconds: float) -> None:
        """Count an answer to a request with a recording; 499 when the client left before it."""
        self._files.labels(str(status)).inc()
        self._file_time.observe(seconds)

    def routes(self) -> list[Route]:
        """Route `GET /metrics`."""

        # Not a coroutine: looking at the engine waits for its lock, so a thread does it.
        def metrics(_request: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

        return [Route("/metrics", metrics)]

    def _counter(self, name: str, text: str, labels: Iterable[str] = ()) -> Counter:
        return Counter(name, text, tuple(labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets_s: tuple[float, ...] = DELAY_BUCKETS_S
    ) -> Histogram:
        return Histogram(name, text, buckets=buckets_s, registry=self.registry)


class _EngineCollector(Collector):
    """Reads the engine's own counts when they are asked for."""

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self._engine_stats = engine_stats

    def collect(self) -> Iterable[Metric]:
        stats = self._engine_stats()
        yield GaugeMetricFamily(
            "moss_engine_waiting", "Requests waiting for admission.", stats.waiting
        )
        yield GaugeMetricFamily("moss_engine_active", "Requests that hold KV.", stats.active)
        blocks = GaugeMetricFamily("moss_kv_blocks", "KV blocks by state.", labels=["state"])
        blocks.add_metric(["used"], stats.kv_used)
        blocks.add_metric(["cached"], stats.kv_cached)
        blocks.add_metric(["free"], stats.kv_blocks - stats.kv_used - stats.kv_cached)
        yield blocks
        windows = CounterMetricFamily(
            "moss_encoder_windows",
            "Windows by where their embeddings came from.",
            labels=["source"],
        )
        windows.add_metric(["cache"], stats.encoder_hits)
        windows.add_metric(["encoder"], stats.encoder_misses)
        yield windows
        yield CounterMetricFamily("moss_engine_steps", "Forwards of the decoder.", stats.steps)
