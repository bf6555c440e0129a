from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from moss_stream import errors
from moss_stream.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


COMMANDS = [
    line
    for block in blocks("console")
    for line in block.splitlines()
    if line.startswith("moss-stream ")
]


def test_readme_has_examples() -> None:
    assert COMMANDS and blocks("python")


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_command_runs(
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "moss_stream").symlink_to(ROOT / "moss_stream")  # results stay out of the checkout
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(command)
    assert main(arguments) == 0, capsys.readouterr()


@pytest.mark.parametrize("code", blocks("python"))
def test_readme_python_runs(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "S01" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["transcribe", "doctor"])
def test_readme_names_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    options = set(re.findall(r"--[a-z-]+|MOSS_STREAM_[A-Z]+", capsys.readouterr().out))
    assert {option for option in options - {"--help"} if f"`{option}`" not in README} == set()


def test_readme_names_every_error() -> None:
    named = set(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", README, re.MULTILINE))
    known = {
        (name, error.code)
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.MossStreamError)
    }
    assert named == known - {("MossStreamError", "error")}


def test_readme_lists_every_module() -> None:
    (tree,) = (block for block in blocks("text") if block.startswith("moss_stream/"))
    modules = {path.name for path in (ROOT / "moss_stream").rglob("*.py")} - {"__init__.py"}
    assert {name for name in modules if not re.search(rf"\b{re.escape(name)}\b", tree)} == set()
