"""Word error rate over a directory of recordings, ours and transformers' side by side.

python tests/accuracy/word_error_rate.py DIRECTORY [--model MODEL] [--compare-transformers]

DIRECTORY holds recordings and refs.jsonl (`audio`, `segments` with `text`, `set`). Everything is
greedy, in float32 on CPU, without guards: the model's own output. Recordings without speech count
the words written for them. With the comparison the exit status is 1 when token ids differ anywhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.checkpoints import MINI
from support.clips import clip_references
from support.reference import reference_decode, reference_generate
from support.words import normal_words

from moss_stream import Transcriber
from moss_stream.audio.media import load_media
from moss_stream.recordings.request import output_budget
from moss_stream.transcript.markup import parse_markup


@dataclass
class Score:
    """Sums over recordings."""

    clips: int = 0
    words: int = 0
    errors: int = 0
    reference_errors: int = 0
    equal: int = 0

    def add(self, other: Score) -> None:
        self.clips += other.clips
        self.words += other.words
        self.errors += other.errors
        self.reference_errors += other.reference_errors
        self.equal += other.equal


def count_errors(reference: str, hypothesis: str) -> int:
    """Words to substitute, delete and insert."""
    measured = jiwer.process_words([normal_words(reference)], [normal_words(hypothesis)])
    return measured.substitutions + measured.deletions + measured.insertions


def transformers_output(directory: Path, recording: Path) -> tuple[list[int], str]:
    """Output ids and words of the reference on the same checkpoint."""
    media = load_media(recording, rate_hz=16_000)
    budget = output_budget(media.duration_s)
    ids = reference_generate(directory, media.samples, max_new_tokens=budget)
    segments = parse_markup(reference_decode(directory, ids), media.duration_s).segments
    return ids, " ".join(segment.text for segment in segments if segment.text)


def score_clip(
    transcriber: Transcriber, directory: Path, line: dict[str, Any], reference_model: Path | None
) -> Score:
    """Transcribe one recording and compare it with what was said."""
    recording = directory / line["audio"]
    said = " ".join(segment["text"] for segment in line["segments"])
    transcript = transcriber.transcribe(recording, guards=False)
    score = Score(1, len(normal_words(said).split()), count_errors(said, transcript.text))
    if reference_model is not None:
        ids, words = transformers_output(reference_model, recording)
        score.reference_errors = count_errors(said, words)
        score.equal = int(tuple(ids) == transcript.token_ids)
        if not score.equal:
            print(f"{line['audio']}: token ids differ\n  {transcript.text}\n  {words}")
    return score


def print_table(rows: Iterable[tuple[str, Score]], *, compared: bool) -> None:
    """One line for each set and one for all."""
    head = f"{'set':20} {'clips':>5} {'words':>6} {'errors':>6} {'WER %':>6}"
    print(head + (f" {'transformers':>12} {'ids equal':>9}" if compared else ""))
    for name, score in rows:
        line = f"{name:20} {score.clips:5} {score.words:6} {score.errors:6}"
        line += f" {_percent(score.errors, score.words):>6}"
        if compared:
            line += f" {_percent(score.reference_errors, score.words):>12}"
            line += f" {score.equal:4} / {score.clips:2}"
        print(line)


def _percent(errors: int, words: int) -> str:
    return f"{100 * errors / words:.1f}" if words else "-"


def main() -> int:
    """Read the arguments, score every recording, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--model", default="mini", help="mini, or a directory in native layout")
    parser.add_argument("--compare-transformers", action="store_true")
    arguments = parser.parse_args()
    reference_model = None
    if arguments.compare_transformers:
        reference_model = MINI if arguments.model == "mini" else Path(arguments.model)

    sets: defaultdict[str, Score] = defaultdict(Score)
    total = Score()
    begun_s = time.perf_counter()
    with Transcriber(model=arguments.model, device="cpu", dtype="float32") as transcriber:
        for line in clip_references(arguments.directory):
            score = score_clip(transcriber, arguments.directory, line, reference_model)
            sets[line["set"]].add(score)
            total.add(score)
    print_table([*sorted(sets.items()), ("all", total)], compared=reference_model is not None)
    print(f"{time.perf_counter() - begun_s:.0f} s")
    return int(reference_model is not None and total.equal != total.clips)


if __name__ == "__main__":
    sys.exit(main())
