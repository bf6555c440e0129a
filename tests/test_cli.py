from __future__ import annotations

import io
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from moss_stream.cli import MAX_IN_FLIGHT, in_order, main
from moss_stream.errors import ConfigError, UnsupportedAudio
from moss_stream.transcript.formats import FORMATS
from moss_stream.types import Segment, Transcript, TranscriptWarning


def transcript_of(name: str) -> Transcript:
    warnings = (TranscriptWarning("loop_cut", "a loop was cut", 0.5),) if "loop" in name else ()
    return Transcript(
        segments=(Segment(0.0, 1.0, "S01", f"words of {name}"),),
        markup=f"[0.00][S01]words of {name}[1.00]",
        token_ids=(1,),
        duration_s=1.0,
        coverage_end_s=1.0,
        truncated=False,
        warnings=warnings,
    )


class FakeTranscriber:
    """Answers with the file's name; a name says what happens to the file."""

    made: list[dict[str, Any]] = []
    submitted: list[dict[str, Any]] = []

    def __init__(self, **options: Any) -> None:
        if options["model"] == "absent":
            raise ConfigError("model is 'absent', there is no such checkpoint", field="model")
        self.made.append(options)
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> FakeTranscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def submit(self, source: Path, **options: Any) -> Future[Transcript]:
        self.submitted.append({"source": source, **options})
        if "refused" in source.name:
            raise UnsupportedAudio("not audio")
        return self._pool.submit(self._answer, source.name)

    @staticmethod
    def _answer(name: str) -> Transcript:
        if "bad" in name:
            raise UnsupportedAudio("no audio\nstream")
        if "bug" in name:
            raise ZeroDivisionError("a bug")
        if "interrupt" in name:
            raise KeyboardInterrupt
        return transcript_of(name)


@pytest.fixture(autouse=True)
def fake_transcriber(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeTranscriber]:
    module = ModuleType("moss_stream.transcriber")
    module.Transcriber = FakeTranscriber  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(FakeTranscriber, "made", [])
    monkeypatch.setattr(FakeTranscriber, "submitted", [])
    monkeypatch.chdir(tmp_path)
    return FakeTranscriber


def test_help_imports_neither_torch_nor_transformers() -> None:
    code = "import sys; from moss_stream.cli import main; main(['--help']); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Usage: moss-stream" in out.stdout
    assert not {"torch", "transformers", "av", "rich"} & set(out.stdout.splitlines()[-1].split())


def test_version_prints_name_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("moss-stream 0.")


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "transcribe" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["transcribe"], ["FILE"]),
        (["sing"], ["sing"]),
        (["transcribe", "a", "--loud"], ["--loud"]),
        (["transcribe", "a", "--format", "doc"], ["--format", "doc", *FORMATS]),
        (["transcribe", "a", "--dtype", "int4"], ["--dtype", "int4", "bfloat16"]),
        (["transcribe", "a", "--device", "gpu"], ["--device", "gpu", "cuda:N"]),
        (["transcribe", "a", "--device", "cuda:x"], ["--device", "cuda:x", "cuda:N"]),
        (["transcribe", "a", "--temperature", "10.5"], ["--temperature", "10.5", "0 to 10"]),
        (["transcribe", "a", "--temperature", "-1"], ["--temperature", "-1", "0 to 10"]),
        (["transcribe", "a", "--temperature", "nan"], ["--temperature", "nan", "0 to 10"]),
        (["transcribe", "a", "--max-new-tokens", "0"], ["--max-new-tokens", "1 to 131072"]),
        (["transcribe", "a", "--max-new-tokens", "1.5"], ["--max-new-tokens", "1 to 131072"]),
        (["transcribe", "a", "--threads", "1025"], ["--threads", "1025", "1 to 1024"]),
        (["transcribe", "a", "--model", "absent"], ["model", "absent"]),
        (["transcribe", "a", "--output", "nowhere/a.txt"], ["--output", "nowhere"]),
        (["transcribe", "a", "--output", "a"], ["--output", "'a'", "recordings"]),
    ],
)
def test_wrong_usage_exits_2_with_one_line(
    arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("moss-stream: ") and err.count("\n") == 1
    assert [word for word in named if word not in err] == []


def test_output_refuses_a_file_for_several_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["transcribe", "a", "b", "--output", "taken"]) == 2
    assert "--output" in capsys.readouterr().err


def test_options_reach_the_transcriber(fake_transcriber: type[FakeTranscriber]) -> None:
    line = (
        "transcribe a.wav --model m --device cuda:1 --dtype float32 --threads 3 --prompt hello "
        "--temperature 0.5 --max-new-tokens 7"
    )
    assert main([*line.split(), "--hotwords", " New York,, Zürich "]) == 0
    assert fake_transcriber.made == [
        {"model": "m", "device": "cuda:1", "dtype": "float32", "threads": 3}
    ]
    assert fake_transcriber.submitted == [
        {
            "source": Path("a.wav"),
            "prompt": "hello",
            "hotwords": ("New York", "Zürich"),
            "temperature": 0.5,
            "max_new_tokens": 7,
        }
    ]


def test_environment_gives_defaults_that_options_override(
    fake_transcriber: type[FakeTranscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSS_STREAM_MODEL", "from-environment")
    monkeypatch.setenv("MOSS_STREAM_THREADS", "5")
    assert main(["transcribe", "a", "--threads", "6"]) == 0
    assert fake_transcriber.made[0]["model"] == "from-environment"
    assert fake_transcriber.made[0]["threads"] == 6


def test_one_file_prints_no_header(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "a.wav"]) == 0
    out, err = capsys.readouterr()
    assert "words of a.wav" in out and "==>" not in out and out.endswith("\n")
    assert err == ""


def test_several_files_print_in_order_under_headers(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"{i}.wav" for i in range(3 * MAX_IN_FLIGHT)]
    assert main(["transcribe", *names]) == 0
    out = capsys.readouterr().out
    headers = [line for line in out.splitlines() if line.startswith("==>")]
    assert headers == [f"==> {name} <==" for name in names]


def test_json_of_several_files_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "a.wav", "b.wav", "--format", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["file"] for line in lines] == ["a.wav", "b.wav"]
    assert "words of b.wav" in json.dumps(lines[1])


def test_one_bad_file_is_one_line_and_the_others_finish(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["transcribe", "bad.wav", "refused.wav", "good.wav"]) == 1
    out, err = capsys.readouterr()
    assert "words of good.wav" in out
    assert err.splitlines() == [
        "moss-stream: bad.wav: no audio stream",
        "moss-stream: refused.wav: not audio",
    ]


def test_warnings_go_to_stderr_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "loop.wav"]) == 0
    assert capsys.readouterr().err == (
        "moss-stream: loop.wav: warning at 0.50 s: a loop was cut [loop_cut]\n"
    )


@pytest.mark.parametrize("format_", FORMATS)
def test_output_file_holds_what_stdout_would(
    format_: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", "a.wav", "--format", format_]) == 0
    printed = capsys.readouterr().out
    assert main(["transcribe", "a.wav", "--format", format_, "--output", "result"]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "result").read_text(encoding="utf-8") == printed


def test_output_directory_numbers_inputs_of_one_stem(tmp_path: Path) -> None:
    files = ["x/talk.wav", "y/talk.mp3", "TALK.ogg", "other.wav"]
    assert main(["transcribe", *files, "--output", "new/results"]) == 0
    written = {path.name: path.read_text() for path in (tmp_path / "new/results").iterdir()}
    assert set(written) == {"talk.txt", "talk-2.txt", "TALK-3.txt", "other.txt"}
    assert "talk.mp3" in written["talk-2.txt"]


def test_output_directory_that_exists_takes_a_single_file(tmp_path: Path) -> None:
    assert main(["transcribe", "a.wav", "--format", "srt", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "a.srt").exists()


def test_interrupt_exits_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "interrupt.wav"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        main(["transcribe", "bug.wav"])


def test_stdout_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["transcribe", "a.wav"]) == 1
    assert capsys.readouterr().err == (
        "moss-stream: a.wav: cannot write to stdout: No space left on device\n"
    )


def test_broken_pipe_is_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(SystemExit) as left:
        main(["transcribe", "a.wav"])
    assert left.value.code == 1
    assert capsys.readouterr().err == ""


def test_progress_shows_on_a_terminal_and_spares_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["transcribe", "a.wav", "b.wav"]) == 0
    assert "transcribing" in terminal.getvalue()
    assert "words of" not in terminal.getvalue()
    assert "transcribing" not in capsys.readouterr().out


def test_in_order_keeps_a_bounded_number_unfinished() -> None:
    started: list[Future[Transcript]] = []
    most = 0

    def submit(file: Path) -> Future[Transcript]:
        nonlocal most
        started.append(Future())
        unfinished = [future for future in started if not future.done()]
        most = max(most, len(unfinished))
        if len(unfinished) == MAX_IN_FLIGHT:
            unfinished[-1].set_result(
                transcript_of(file.name)
            )  # never the first: it holds the rest
        return started[-1]

    files = [Path(str(i)) for i in range(5 * MAX_IN_FLIGHT)]
    assert [file for file, _ in in_order(files, submit)] == files
    assert most == MAX_IN_FLIGHT
