"""What every benchmark shares: recordings, the conditions it ran under, tables and JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table

RATE_HZ = 16_000
DATA = Path(__file__).parents[1] / "tests" / "data"
TALK = {
    "several voices": ("mix_duo_002", "mix_long_001", "mix_trio_001"),
    "one voice": ("mix_mono_001", "mix_mono_000"),
}
"""Recordings in which somebody speaks most of the time."""


def talk(voices: str = "several voices") -> npt.NDArray[np.float32]:
    """All recordings of one kind of `TALK` in a row: [n] float32 at 16 kHz."""
    pieces = []
    for name in TALK[voices]:
        with av.open(str(DATA / f"{name}.flac")) as container:
            pieces += [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return np.concatenate(pieces).astype(np.float32) / 32768


def excerpts(
    count: int, duration_s: float, voices: str = "several voices"
) -> list[npt.NDArray[np.float32]]:
    """`count` stretches of talk, each starting elsewhere, so that no cache helps."""
    source = talk(voices)
    length = int(duration_s * RATE_HZ)
    looped = np.resize(source, len(source) + length)
    # A prime step in samples keeps the starts of all excerpts and of their windows apart.
    starts = [(index * 49_999) % len(source) for index in range(count)]
    return [looped[start : start + length].copy() for start in starts]


def conditions(**more: Any) -> dict[str, Any]:
    """Machine, versions and commit."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        **more,
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return described.stdout.strip() or "unknown"


def report(
    title: str,
    where: dict[str, Any],
    rows: Sequence[dict[str, Any]],
    json_path: Path | None,
) -> None:
    """Print one table and, if asked, write the same as JSON."""
    console = Console(width=160)
    console.print("  ".join(f"{key}={value}" for key, value in where.items()), style="dim")
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)
    if json_path is not None:
        json_path.write_text(json.dumps({"title": title, "conditions": where, "rows": list(rows)}))


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
