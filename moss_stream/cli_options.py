"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

DTYPES: Final = ("auto", "float32", "bfloat16")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")


def number(kind: type[int] | type[float], low: int, high: int) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:  # also refuses NaN
            raise typer.BadParameter(f"{text!r}, allowed are {low} to {high}")
        return value

    return parse


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Return a parser that accepts `names` alone."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r}, allowed are {', '.join(names)}")
        return text

    return parse


def _device(text: str) -> str:
    if not _DEVICE.fullmatch(text):
        raise typer.BadParameter(f"{text!r}, allowed are auto, cpu, cuda, cuda:N")
    return text


ModelOption = Annotated[
    str,
    typer.Option(
        "--model", envvar="MOSS_STREAM_MODEL", help="mini, a checkpoint directory or a hub id."
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device",
        envvar="MOSS_STREAM_DEVICE",
        parser=_device,
        metavar="NAME",
        help="auto, cpu, cuda or cuda:N.",
    ),
]
DtypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        envvar="MOSS_STREAM_DTYPE",
        parser=one_of(DTYPES),
        metavar="NAME",
        help="auto, float32 or bfloat16.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        envvar="MOSS_STREAM_THREADS",
        parser=number(int, 1, 1024),
        metavar="N",
        help="Threads of the model on CPU, 1 to 1024; by default all cores, one less for serve.",
    ),
]
