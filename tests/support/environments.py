"""Virtual environments for programs of others whose packages do not go with ours.

An environment is built once for each content of its requirements file, and kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.realtime import PATIENCE_S

ROOT = Path(__file__).parents[2]

Json = dict[str, Any]


def python_with(requirements: Path) -> Path:
    """The interpreter of an environment that has the packages of a requirements file."""
    content = f"{sys.version}\n{requirements.read_text()}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    home = _cache() / f"{requirements.stem}-{digest}"
    python = home / "bin" / "python"
    complete = home / "complete"
    if not complete.exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*command, "--requirement", str(requirements)], check=True)
        complete.touch()
    return python


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "moss-stream" / "environments" if base else ROOT / "build" / "environments"


class Program:
    """A program that takes orders line by line and prints JSON objects, one a line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[Json] = []

    async def order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def next(self) -> Json:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise AssertionError(f"nothing came after {self.told}") from None
        assert line, f"the program ended after {self.told}"
        self.told.append(json.loads(line))
        return self.told[-1]

    async def until(self, kind: str) -> Json:
        """Read on to the next object of a kind."""
        while (told := await self.next())["kind"] != kind:
            pass
        return told

    def kinds(self) -> list[str]:
        return [told["kind"] for told in self.told]

    def of(self, kind: str) -> list[Json]:
        return [told for told in self.told if told["kind"] == kind]


@asynccontextmanager
async def program(
    python: Path, script: Path, *arguments: str, **variables: str
) -> AsyncIterator[Program]:
    """Run a script; the end of its orders ends it, and what went wrong in it fails the test."""
    process = await asyncio.create_subprocess_exec(
        python,
        script,
        *arguments,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | variables,
    )
    try:
        yield Program(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def service(python: Path, script: Path, **variables: str) -> AsyncIterator[None]:
    """Run a script that goes on until it is told to stop."""
    process = await asyncio.create_subprocess_exec(python, script, env=os.environ | variables)
    try:
        yield
        assert process.returncode is None, "the service has ended"
    finally:
        process.terminate()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
