"""Three hours of speech on the fake clock: what is kept and what is done stay level."""

import sys
from dataclasses import replace

import pytest
from support.live import CODEC, Word, World, say, tiles

from moss_stream.live.config import LiveConfig
from moss_stream.live.events import Final
from moss_stream.live.session import LiveSession

HOUR_S = 3600
CONFIGS = {
    "agent": LiveConfig(refresh_s=4.0),
    "captions": replace(LiveConfig.captions(), refresh_s=4.0, context_s=60.0),
}


class HourlyWorld(World):
    """A world that counts instead of keeping."""

    finals = 0
    requested_samples = 0

    def take(self, outputs: list) -> None:
        super().take(outputs)
        self.finals += len(self.all(Final))
        self.events.clear()


def deep_size(value: object, seen: set[int]) -> int:
    """Bytes reachable from `value` within this package's own objects."""
    if id(value) in seen or isinstance(value, type):
        return 0
    seen.add(id(value))
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        size += sum(deep_size(k, seen) + deep_size(v, seen) for k, v in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "popleft"):
        size += sum(deep_size(item, seen) for item in value)
    if hasattr(value, "__dict__"):
        size += deep_size(vars(value), seen)
    for name in getattr(type(value), "__slots__", ()):
        size += deep_size(getattr(value, name, None), seen)
    return size


@pytest.mark.parametrize("preset", CONFIGS)
def test_three_hours_leave_memory_and_work_flat(preset: str) -> None:
    turn = "some words of a meeting that go on for a while."
    words: list[Word] = []
    world = HourlyWorld(LiveSession(CONFIGS[preset], CODEC), words, keep_requests=False)
    sizes, finals, requested = [], [], []
    at = 1.0
    for hour in range(3):
        before = (world.finals, world.session._planner._num_requests)
        for minute in range(60):
            end_s = hour * HOUR_S + (minute + 1) * 60
            while at < end_s + 10:
                words += say(at, turn, "AB"[round(at) % 2])
                at = words[-1].end_s + 2.0 + (20.0 if minute % 10 == 9 else 0.0)
            # The world's own scripts are not to grow either: what a context may hold is enough.
            del words[: max(0, len(words) - 400)]
            world.feed_until(end_s, chunk_s=2.0)
        sizes.append(deep_size(world.session, set()))
        finals.append(world.finals - before[0])
        requested.append(world.session._planner._num_requests - before[1])
    assert tiles(world.session)
    assert finals[0] > 500
    assert max(finals) - min(finals) <= 5
    assert max(requested) <= 1.05 * min(requested)
    assert max(sizes[1:]) <= 1.5 * sizes[0] + 2_000_000
    assert max(sizes) < 40_000_000
