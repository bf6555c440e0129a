from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from support.http import serving

from moss_stream.engine.engine import EngineStats
from moss_stream.server import health
from moss_stream.server.metrics import Metrics
from moss_stream.server.problems import EXCEPTION_HANDLERS
from moss_stream.types import Timing, Usage

STATS = EngineStats(
    waiting=1,
    active=2,
    finals=1,
    kv_blocks=10,
    kv_used=3,
    kv_cached=4,
    encoder_hits=5,
    encoder_misses=6,
    steps=7,
)


def exposed(metrics: Metrics) -> dict[str, float]:
    with serving(Starlette(routes=metrics.routes())) as url:
        answer = httpx.get(f"{url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = (line for line in answer.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_show_the_engine_as_it_is_now() -> None:
    values = exposed(Metrics(lambda: STATS))

    assert values["moss_engine_waiting"] == 1
    assert values["moss_engine_active"] == 2
    assert values['moss_kv_blocks{state="used"}'] == 3
    assert values['moss_kv_blocks{state="cached"}'] == 4
    assert values['moss_kv_blocks{state="free"}'] == 3
    assert values['moss_encoder_windows_total{source="cache"}'] == 5
    assert values['moss_encoder_windows_total{source="encoder"}'] == 6
    assert values["moss_engine_steps_total"] == 7


def test_metrics_add_up_what_sessions_and_results_report() -> None:
    metrics = Metrics()
    metrics.session_opened()
    metrics.session_opened()
    metrics.session_closed()
    metrics.session_refused("too_many_streams")
    metrics.observe_audio(1.5, "live")
    metrics.observe_lag(0.4)
    metrics.observe_partial_age(0.6)
    metrics.observe_final_delay(0.15)
    usage = Usage(prompt_tokens=9, prefix_hit_tokens=4, draft_tokens=8, draft_accepted=6)
    metrics.observe_result(usage, Timing(queue_s=0.1, encode_s=0.2, prefill_s=0.3, decode_s=0.4))
    metrics.observe_file(200, 1.0)

    values = exposed(metrics)

    assert values["moss_sessions"] == 1
    assert values["moss_sessions_opened_total"] == 2
    assert values['moss_sessions_refused_total{reason="too_many_streams"}'] == 1
    assert values['moss_audio_seconds_total{kind="live"}'] == 1.5
    assert values['moss_lag_seconds_bucket{le="0.5"}'] == 1
    assert values["moss_partial_age_seconds_sum"] == 0.6
    assert values['moss_final_delay_seconds_bucket{le="0.2"}'] == 1
    assert values['moss_final_delay_seconds_bucket{le="0.1"}'] == 0
    assert values["moss_prefix_hit_tokens_total"] == 4
    assert values["moss_draft_accepted_tokens_total"] == 6
    assert values['moss_stage_seconds_total{stage="encode"}'] == 0.2
    assert values['moss_file_requests_total{status="200"}'] == 1


def test_two_servers_in_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.session_opened()

    assert other.registry.get_sample_value("moss_sessions") == 0


@pytest.mark.parametrize(
    ("reason", "status"), [(None, 200), ("draining", 503), ("engine stopped", 503)]
)
def test_readiness_says_why_not(reason: str | None, status: int) -> None:
    with serving(Starlette(routes=health.routes(lambda: reason))) as url:
        ready, alive = httpx.get(f"{url}/readyz"), httpx.get(f"{url}/healthz")

    assert ready.status_code == status
    assert ready.json().get("reason") == reason
    assert alive.status_code == 200


def test_bug_answers_without_a_detail() -> None:
    def broken() -> str | None:
        raise ZeroDivisionError("a detail")

    app = Starlette(routes=health.routes(broken), exception_handlers=EXCEPTION_HANDLERS)
    with serving(app) as url:
        answer = httpx.get(f"{url}/readyz")

    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "a detail" not in answer.text
