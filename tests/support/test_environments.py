from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from support.environments import program, python_with


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that asks for nothing, so that nothing is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "nothing.txt"
    path.write_text("# one\n")
    return path


def test_environment_is_built_once_for_each_content(requirements: Path) -> None:
    python = python_with(requirements)
    mark = python.parent / "mark"
    mark.touch()

    assert python_with(requirements) == python and mark.exists()
    (python.parents[1] / "complete").unlink()  # as when its making was interrupted
    assert python_with(requirements) == python and not mark.exists()
    assert subprocess.run([python, "-c", "import moss_stream"], capture_output=True).returncode == 1
    requirements.write_text("# two\n")
    assert python_with(requirements) != python


def test_program_that_fails_fails_its_test(tmp_path: Path, requirements: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json\nprint(json.dumps({'kind': 'hello'}))\ninput()\n")

    async def play() -> list[str]:
        async with program(python_with(requirements), script) as greeting:
            await greeting.until("hello")
            return greeting.kinds()

    with pytest.raises(AssertionError):  # the end of its orders is an EOFError for `input`
        asyncio.run(play())
