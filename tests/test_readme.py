from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.realtime import Running, running

from moss_stream import Transcriber, errors
from moss_stream.cli import main
from moss_stream.server.app import Backend

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


SERVER = "127.0.0.1:8000"
REQUESTS = [
    line
    for block in blocks("sh")
    for line in block.splitlines()
    if line.startswith("curl ") and SERVER in line
]
CLIENTS = [code for code in blocks("python") if SERVER in code]
PROGRAMS = [code for code in blocks("python") if SERVER not in code]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with Transcriber("mini", "cpu") as transcriber:
        backend = Backend(
            "mini", transcriber.model, transcriber.engine, transcriber.vad, transcriber
        )
        with running(backend) as served:
            yield served


def test_readme_has_examples() -> None:
    assert COMMANDS and REQUESTS and CLIENTS and PROGRAMS


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


@pytest.mark.parametrize("code", PROGRAMS)
def test_readme_python_runs(
    code: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "S01" in capsys.readouterr().out


@pytest.mark.parametrize("code", CLIENTS)
def test_readme_client_runs(
    code: str,
    server: Running,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("openai")
    monkeypatch.chdir(ROOT)
    code = code.replace(SERVER, f"127.0.0.1:{server.port}")
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "S01" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", REQUESTS)
def test_readme_request_is_answered(command: str, server: Running) -> None:
    arguments = shlex.split(command.replace(SERVER, f"127.0.0.1:{server.port}"))
    answer = subprocess.run(
        [*arguments, "--fail", "--silent"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "S01" in answer.stdout


@pytest.mark.parametrize("command", ["transcribe", "serve", "doctor"])
def test_readme_names_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    options = set(re.findall(r"--[a-z-]+|MOSS_STREAM_[A-Z_]+", capsys.readouterr().out))
    assert {option for option in options - {"--help"} if f"`{option}`" not in README} == set()


def test_readme_names_every_metric(server: Running) -> None:
    with urlopen(f"{server.http}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
        names = {family.name for family in families if family.type != "unknown"}
    named = set(re.findall(r"`(moss_\w+?)(?:_total)?[{`]", README))
    assert {name.removesuffix("_created") for name in names} == named


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
