import math

import pytest

from moss_stream.errors import ConfigError
from moss_stream.live.config import LiveConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pre_roll_s", 0.2),
        ("threshold", 1.5),
        ("endpoint_min_s", 0.1),
        ("endpoint_s", 0.3),
        ("endpoint_max_s", 0.5),
        ("refresh_max_s", 0.1),
        ("max_buffer_s", 30.0),
        ("split_search_s", 20.0),
        ("max_attempts", 0),
        ("context_s", 10.0),
    ],
)
def test_config_refuses_a_value_out_of_bounds_by_name(field: str, value: float) -> None:
    with pytest.raises(ConfigError) as caught:
        LiveConfig(**{field: value})
    assert caught.value.field == field


def test_presets_differ_in_context_and_patience() -> None:
    agent, captions = LiveConfig.agent(), LiveConfig.captions()
    assert agent.context_s == 0 < captions.context_s
    assert agent.endpoint_s < captions.endpoint_s
    assert min(agent.pre_roll_s, captions.pre_roll_s) >= 0.3


def test_manual_endpoints_are_never_decided_by_silence() -> None:
    assert LiveConfig.agent().with_manual_endpoints().endpoint_min_s == math.inf
