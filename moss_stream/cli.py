"""Command line: `moss-stream transcribe`, `moss-stream serve` and `moss-stream doctor`.

The only reader of argv and the environment. Results go to stdout, everything else to stderr, one
line each. Exit codes: 0 done, 1 something failed, 2 wrong usage, 130 interrupted. The engine is
imported inside the commands, so that help and usage errors answer at once.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import typer

from moss_stream import __version__
from moss_stream.cli_options import (
    DeviceOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    number,
    one_of,
)
from moss_stream.errors import ConfigError, MossStreamError
from moss_stream.serve_command import serve
from moss_stream.transcript.formats import FORMATS, render
from moss_stream.types import Transcript, TranscriptWarning

if TYPE_CHECKING:
    from rich.progress import Progress

MAX_IN_FLIGHT: Final = 8
"""Most files that are decoded side by side: each holds its samples in memory."""

SPIN_COUNT: Final = "2000"
"""How often a thread looks for work before it sleeps. By default it does for milliseconds, and two
programs on the same cores wait for each other's waiting: 4 to 9 instead of 3 s for two recordings.
"""

EXTENSIONS: Final = {"text": "txt"}
"""File name endings of formats that are not their own."""

app = typer.Typer(
    help="Speech to speaker-labelled, timestamped text.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


FilesArgument = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="Recordings, in any format FFmpeg reads."),
]
FormatOption = Annotated[
    str,
    typer.Option("--format", parser=one_of(FORMATS), metavar="NAME", help=f"{', '.join(FORMATS)}."),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "--output", metavar="PATH", help="A file; for several inputs a directory; - is stdout."
    ),
]
PromptOption = Annotated[
    str | None, typer.Option("--prompt", help="Instruction, in place of the checkpoint's own.")
]
HotwordsOption = Annotated[
    str, typer.Option("--hotwords", metavar="A,B", help="Words to expect, between commas.")
]
TemperatureOption = Annotated[
    float,
    typer.Option(
        "--temperature",
        parser=number(float, 0, 10),
        metavar="X",
        help="0 takes the likeliest token; up to 10.",
    ),
]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        parser=number(int, 1, 131072),
        metavar="N",
        help="Most output tokens of a file, 1 to 131072; by default 10 a second, at least 512.",
    ),
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"moss-stream {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def transcribe(
    files: FilesArgument,
    format_: FormatOption = "text",
    output: OutputOption = "-",
    model: ModelOption = "mini",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    prompt: PromptOption = None,
    hotwords: HotwordsOption = "",
    temperature: TemperatureOption = 0.0,
    max_new_tokens: MaxNewTokensOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Transcribe recordings, several side by side, in the order given."""
    targets = plan_targets(files, output, format_)
    from moss_stream.transcriber import Transcriber  # imports torch

    with _loading(model):
        transcriber = Transcriber(model=model, device=device, dtype=dtype, threads=threads)
    with transcriber, _Report(len(files)) as report:
        submit = partial(
            transcriber.submit,
            prompt=prompt,
            hotwords=tuple(word.strip() for word in hotwords.split(",") if word.strip()),
            temperature=temperature,
            max_new_tokens=max_new_tokens,
        )
        several = len(files) > 1
        failed = False
        for (file, future), target in zip(in_order(files, submit), targets, strict=True):
            try:
                transcript = future.result()
                if target is None:
                    report.result(printable(file, transcript, format_, several=several))
                else:
                    _save(target, render(transcript, format_))
            except MossStreamError as error:
                failed = True
                # Errors of media files name the file themselves.
                report.problem(f"{_shown(file)}: {str(error).removeprefix(f'file {file}: ')}")
            else:
                for warning in transcript.warnings:
                    report.problem(f"{_shown(file)}: {_described(warning)}")
            report.advance()
    if failed:
        raise typer.Exit(1)


@app.command()
def doctor(
    model: ModelOption = "mini",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Check the machine and the installation."""
    from moss_stream.doctor import examine  # imports torch

    failed = False
    for check in examine(model, device, dtype):
        colour = {"ok": "green", "warn": "yellow", "fail": "red"}[check.status]
        typer.secho(f"{check.status:<5}", fg=colour, nl=False)
        typer.echo(f"{check.name:<18} {check.detail}")
        if check.advice:
            typer.echo(f"     {'':<18} -> {check.advice}")
        failed = failed or check.status == "fail"
    if failed:
        raise typer.Exit(1)


app.command()(serve)


def plan_targets(files: Sequence[Path], output: str, format_: str) -> list[Path | None]:
    """Decide where each result goes, before any work starts.

    Returns:
        For each of `files` its path, or None for stdout. A directory for several is created.

    Raises:
        typer.BadParameter: Nothing can be written there, or it would overwrite an input.
    """
    if output == "-":
        return [None] * len(files)
    place = Path(output)
    single = len(files) == 1 and not place.is_dir()
    folder = place.parent if single else place
    if not single:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _bad_output(
                f"{output!r} cannot be a directory for {len(files)} results: {error.strerror}"
            ) from error
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise _bad_output(f"{str(folder)!r} is not a directory that can be written to")
    targets = [place] if single else _numbered(files, folder, EXTENSIONS.get(format_, format_))
    inputs = {file.resolve() for file in files}
    for target in targets:
        if target.resolve() in inputs:
            raise _bad_output(f"{str(target)!r} is one of the recordings")
    return [*targets]


def _bad_output(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="'--output'")


def _numbered(files: Sequence[Path], folder: Path, extension: str) -> list[Path]:
    """Name a result after each file; a stem that is taken gets a number."""
    taken: set[str] = set()
    names = []
    for file in files:
        stem, number = file.stem, 1
        while stem.casefold() in taken:  # some file systems fold case
            number += 1
            stem = f"{file.stem}-{number}"
        taken.add(stem.casefold())
        names.append(folder / f"{stem}.{extension}")
    return names


def in_order(
    files: Sequence[Path], submit: Callable[[Path], Future[Transcript]]
) -> Iterator[tuple[Path, Future[Transcript]]]:
    """Submit files, at most `MAX_IN_FLIGHT` unfinished at once, and yield them in their order.

    The futures that come out may still be running.
    """
    waiting: deque[tuple[Path, Future[Transcript]]] = deque()
    running: set[Future[Transcript]] = set()
    for file in files:
        if len(running) == MAX_IN_FLIGHT:
            running = wait(running, return_when=FIRST_COMPLETED).not_done
        try:
            future = submit(file)
        except MossStreamError as error:  # refused at the door: this file's failure alone
            future = Future()
            future.set_exception(error)
        running.add(future)
        waiting.append((file, future))
        while waiting and waiting[0][1].done():
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def printable(file: Path, transcript: Transcript, format_: str, *, several: bool) -> str:
    """Return a result for stdout; among several it says which file it is of."""
    text = render(transcript, format_)
    if not several:
        return _lines(text)
    if format_ == "json":
        return _lines(orjson.dumps({"file": _shown(file), **orjson.loads(text)}).decode())
    return f"==> {_shown(file)} <==\n{_lines(text)}"


def _save(target: Path, text: str) -> None:
    try:
        target.write_text(_lines(text), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(target)!r}: {error.strerror}", field="output"
        ) from error


def _lines(text: str) -> str:
    """End the last line, if there is one."""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _shown(file: Path) -> str:
    """Return a file name that any UTF-8 stream takes."""
    return os.fsencode(file).decode("utf-8", "replace")


def _described(warning: TranscriptWarning) -> str:
    place = "" if warning.at_s is None else f" at {warning.at_s:.2f} s"
    return f"warning{place}: {warning.message} [{warning.code}]"


class _Report:
    """Results on stdout and problems on stderr; on a terminal a progress bar below them."""

    def __init__(self, num_files: int) -> None:
        self._bar = _progress_bar(num_files) if sys.stderr.isatty() else None

    def __enter__(self) -> _Report:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def result(self, text: str) -> None:
        with self._bar_hidden():
            try:
                sys.stdout.write(text)
                sys.stdout.flush()
            except BrokenPipeError:  # whoever reads has read enough
                raise
            except OSError as error:
                raise ConfigError(f"cannot write to stdout: {error.strerror}") from error

    def problem(self, message: str) -> None:
        with self._bar_hidden():
            _complain(message)

    def advance(self) -> None:
        if self._bar:
            self._bar.advance(self._bar.task_ids[0])

    @contextmanager
    def _bar_hidden(self) -> Iterator[None]:
        if not self._bar:
            yield
            return
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


@contextmanager
def _loading(model: str) -> Iterator[None]:
    """Say on a terminal what takes so long."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    message = f"loading {model} (the first time, functions are compiled for this machine)"
    with Console(stderr=True).status(message):
        yield


def _progress_bar(total: int) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    bar = Progress(
        "transcribing",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,  # results may be going to a file
        redirect_stderr=False,
    )
    bar.add_task("", total=total)
    return bar


def _complain(message: str) -> None:
    print(f"moss-stream: {' '.join(message.split())}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments without the program's name; None takes the process's own.

    Returns:
        The exit code. Errors that are not this package's own, that is bugs, are raised.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)  # read when torch is imported
    try:
        code = app(args=argv, prog_name="moss-stream", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.TyperException as error:
        _complain(error.format_message())
        return error.exit_code
    except ConfigError as error:
        _complain(str(error))
        return 2
    except MossStreamError as error:
        _complain(str(error))
        return 1
