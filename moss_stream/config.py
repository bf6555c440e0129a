"""Options with checked bounds, validated when they are made."""

from __future__ import annotations

from dataclasses import dataclass

from moss_stream.errors import ConfigError


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside `low`..`high`.

    Raises:
        ConfigError: It is outside, or not a number at all.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}, allowed are {low:.15g} to {high:.15g}", field=name)


def check_whole(name: str, value: int, low: int, high: int) -> None:
    """Refuse what is not a whole number from `low` to `high`.

    Raises:
        ConfigError: It is outside, or not a whole number at all.
    """
    if not isinstance(value, int):
        raise ConfigError(
            f"{name} is {value!r}, allowed are whole numbers from {low} to {high}", field=name
        )
    check_range(name, value, low, high)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes and limits of one engine.

    Raises:
        ConfigError: A value is outside its bounds.
    """

    block_tokens: int = 16
    """KV positions in a block: the unit of sharing, so a larger one wastes more and shares less."""
    kv_bytes: int = 2 << 30
    """Memory for KV, bytes; allocated lazily by the operating system on CPU, at once on CUDA."""
    step_tokens: int = 4096
    """Most tokens one step feeds, over all rows."""
    max_rows: int = 64
    """Most sequences that hold KV at once."""
    max_waiting: int = 1024
    """Most requests waiting for admission; one more is refused."""
    encode_windows: int = 2
    """Most windows of files encoded between two steps; while live requests are served, one."""
    encoder_cache_entries: int = 64
    """Most windows whose embeddings are kept."""
    encoder_cache_bytes: int = 4 << 30
    """Most bytes of embeddings kept."""
    coalesce_target: int = 4
    """Prefills worth waiting for when others are on their way in."""
    coalesce_wait_s: float = 0.0
    """Longest a lone prefill waits for `coalesce_target`; 0 starts at once."""
    stream_interval_s: float = 0.05
    """Least time between two token deliveries of a request, the first and the last apart."""

    def __post_init__(self) -> None:
        check_whole("block_tokens", self.block_tokens, 1, 4096)
        check_whole("kv_bytes", self.kv_bytes, 1 << 10, 1 << 44)
        check_whole("step_tokens", self.step_tokens, 1, 1 << 20)
        check_whole("max_rows", self.max_rows, 1, 4096)
        check_whole("max_waiting", self.max_waiting, 1, 1 << 20)
        check_whole("encode_windows", self.encode_windows, 1, 256)
        check_whole("encoder_cache_entries", self.encoder_cache_entries, 0, 1 << 20)
        check_whole("encoder_cache_bytes", self.encoder_cache_bytes, 0, 1 << 44)
        check_whole("coalesce_target", self.coalesce_target, 1, 1024)
        check_range("coalesce_wait_s", self.coalesce_wait_s, 0, 1)
        check_range("stream_interval_s", self.stream_interval_s, 0, 10)
