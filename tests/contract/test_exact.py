"""Contract 1: in float32 on CPU, greedy token ids equal transformers' own `generate`.

On the same checkpoint and audio: one window and many, any prefill chunk, prefix hit or miss, draft
good, bad or empty, alone or in a mixed batch, both layouts.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.clips import load_clip
from support.engine import make_request, running
from support.reference import reference_generate

from moss_stream.model.checkpoint import Model, load_model

NEW_TOKENS = 48
ALL_TOKENS = 300
CLIPS = ["seen_voice_000", "asterisk_human_003", "mix_duo_002", "mix_trio_001", "nospeech_002"]
LONG = 2.3
"""Windows of the long audio that several tests share, so that the reference runs once."""


def long_audio(num_windows: float) -> npt.NDArray[np.float32]:
    """Real speech repeated to fill `num_windows` windows, each window different."""
    speech = np.concatenate([load_clip("mix_duo_002"), load_clip("mix_long_001")])
    return np.resize(speech, int(num_windows * 480_000)).astype(np.float32)


@pytest.fixture(scope="module", params=["mini", "tiny"])
def checkpoint(
    request: pytest.FixtureRequest, mini_directory: Path, tiny_directory: Path
) -> tuple[Path, Model]:
    directory = mini_directory if request.param == "mini" else tiny_directory
    return directory, request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", CLIPS)
def test_tokens_equal_reference(checkpoint: tuple[Path, Model], name: str) -> None:
    directory, model = checkpoint
    samples = load_clip(name)
    expected = reference_generate(directory, samples, max_new_tokens=ALL_TOKENS)
    with running(model) as engine:
        request = make_request(model, samples, max_new_tokens=ALL_TOKENS)
        result = engine.submit(request).result(60)
    assert list(result.token_ids) == expected


@pytest.mark.parametrize(
    ("windows", "chunk"),
    # A chunk of one token is one step for each of the prompt: shorter audio asks as much of it.
    [(1, 1), (1.5, 1), *itertools.product([1, 1.5, LONG, 4], [7, 64, 4096])],
)
def test_tokens_equal_reference_for_any_chunk(
    tiny: Model, tiny_directory: Path, windows: float, chunk: int
) -> None:
    samples = long_audio(windows)
    expected = reference_generate(tiny_directory, samples, max_new_tokens=NEW_TOKENS)
    with running(tiny, step_tokens=chunk) as engine:
        result = engine.submit(make_request(tiny, samples)).result(60)
    assert list(result.token_ids) == expected


def test_tokens_equal_reference_on_long_speech(mini: Model, mini_directory: Path) -> None:
    samples = long_audio(4)
    expected = reference_generate(mini_directory, samples, max_new_tokens=NEW_TOKENS)
    with running(mini, step_tokens=64) as engine:
        result = engine.submit(make_request(mini, samples)).result(60)
    assert list(result.token_ids) == expected


def test_original_layout_equals_its_native_twin(twins: tuple[Path, Path]) -> None:
    original, native = twins
    samples = load_clip("mix_duo_002")
    expected = reference_generate(native, samples, max_new_tokens=NEW_TOKENS)
    model, twin = (load_model(path, dtype="float32") for path in twins)
    # Only the instruction differs between the two, so the original runs with its twin's prompt.
    request = make_request(twin, samples)
    with running(model) as engine:
        assert list(engine.submit(request).result(60).token_ids) == expected


def test_prefix_hit_changes_nothing(checkpoint: tuple[Path, Model]) -> None:
    directory, model = checkpoint
    samples = long_audio(LONG)
    expected = reference_generate(directory, samples, max_new_tokens=NEW_TOKENS)
    with running(model) as engine:
        first = engine.submit(make_request(model, samples)).result(60)
        again = engine.submit(make_request(model, samples)).result(60)
    assert list(first.token_ids) == list(again.token_ids) == expected
    assert first.usage.prefix_hit_tokens == 0
    assert again.usage.prefix_hit_tokens > len(make_request(model, samples).prompt.ids) - 32
    assert again.usage.encoder_misses == 0


def test_prefix_hit_needs_the_same_audio(checkpoint: tuple[Path, Model]) -> None:
    # Audio positions all carry the same placeholder id: only the windows tell them apart.
    directory, model = checkpoint
    other, samples = load_clip("mix_duo_002"), load_clip("mix_trio_001")
    expected = reference_generate(directory, samples, max_new_tokens=NEW_TOKENS)
    with running(model) as engine:
        engine.submit(make_request(model, other[: len(samples)])).result(60)
        result = engine.submit(make_request(model, samples)).result(60)
    assert list(result.token_ids) == expected


def test_closed_windows_hit_when_audio_grows(checkpoint: tuple[Path, Model]) -> None:
    directory, model = checkpoint
    samples = long_audio(LONG)
    expected = reference_generate(directory, samples, max_new_tokens=NEW_TOKENS)
    with running(model) as engine:
        engine.submit(make_request(model, samples[: int(2.1 * 480_000)])).result(60)
        result = engine.submit(make_request(model, samples)).result(60)
    assert list(result.token_ids) == expected
    assert result.usage.prefix_hit_tokens >= 2 * 375
    assert result.usage.encoder_misses == 1


@pytest.mark.parametrize("kind", ["right", "wrong", "late", "shifted", "long", "ended", "empty"])
def test_draft_changes_nothing(checkpoint: tuple[Path, Model], kind: str) -> None:
    directory, model = checkpoint
    samples = load_clip("seen_voice_000")
    expected = reference_generate(directory, samples, max_new_tokens=NEW_TOKENS)
    stop_id = min(model.spec.stop_ids)
    drafts = {
        "right": expected,
        "wrong": [token + 1 for token in expected],
        "late": [*expected[:9], 11, *expected[10:]],
        "shifted": [*expected[:5], 11, 12, *expected[5:]],
        "long": [*expected, *range(100, 200)],
        "ended": [*expected[:12], stop_id, *expected[12:]],
        "empty": [],
    }
    accepted = {"right": len(expected), "wrong": 0, "late": 9, "ended": 12, "empty": 0}
    request = make_request(model, samples, draft=tuple(drafts[kind]))
    # At first the whole prompt goes before the draft, then what a hit leaves, then a bit at a time.
    with running(model) as engine:
        results = [engine.submit(request).result(60) for _ in range(2)]
    with running(model, step_tokens=7) as engine:
        results.append(engine.submit(request).result(60))
    for result in results:
        assert list(result.token_ids) == expected
        assert result.accepted_length == accepted.get(kind, result.accepted_length)


@pytest.mark.parametrize("name", CLIPS)
def test_foreseen_tags_and_earlier_hypotheses_change_nothing(
    checkpoint: tuple[Path, Model], name: str
) -> None:
    directory, model = checkpoint
    samples = load_clip(name)
    expected = reference_generate(directory, samples, max_new_tokens=ALL_TOKENS)
    # A draft that is wrong here and there, so that each has its turn.
    drafts = [(), tuple(token + (index % 7 == 3) for index, token in enumerate(expected))]
    with running(model) as engine:
        for draft in drafts:
            for earlier in ((), (tuple(expected), tuple(reversed(expected)))):
                request = make_request(
                    model,
                    samples,
                    max_new_tokens=ALL_TOKENS,
                    draft=draft,
                    earlier=earlier,
                    spelling=model.spelling,
                )
                assert list(engine.submit(request).result(60).token_ids) == expected


def test_foreseen_tags_save_decode_steps(mini: Model) -> None:
    samples = load_clip("mix_duo_002")
    request = make_request(mini, samples, max_new_tokens=ALL_TOKENS, spelling=mini.spelling)
    with running(mini) as engine:
        result = engine.submit(request).result(60)
    assert result.usage.decode_steps < 0.75 * len(result.token_ids)


def test_right_draft_saves_the_decode_steps(mini: Model) -> None:
    samples = load_clip("mix_duo_002")
    with running(mini) as engine:
        plain = engine.submit(make_request(mini, samples, max_new_tokens=ALL_TOKENS)).result(60)
        request = make_request(mini, samples, max_new_tokens=ALL_TOKENS, draft=plain.token_ids)
        drafted = engine.submit(request).result(60)
    assert drafted.token_ids == plain.token_ids
    assert plain.usage.decode_steps >= len(plain.token_ids) - 1
    assert drafted.usage.decode_steps <= 2


def test_forced_tokens_are_not_decided_again(checkpoint: tuple[Path, Model]) -> None:
    directory, model = checkpoint
    samples = load_clip("mix_duo_002")
    expected = reference_generate(directory, samples, max_new_tokens=NEW_TOKENS)
    with running(model) as engine:
        request = make_request(model, samples, forced=tuple(expected[:20]))
        assert list(engine.submit(request).result(60).token_ids) == expected
        forced = (*expected[:3], 21, 22)
        other = engine.submit(make_request(model, samples, forced=forced)).result(60)
    assert other.token_ids[: len(forced)] == forced


def test_mixed_batch_changes_nothing(checkpoint: tuple[Path, Model]) -> None:
    directory, model = checkpoint
    # The long one twice: siblings in one batch must not read what neither has written.
    clips = [load_clip(name) for name in CLIPS] + [long_audio(LONG)] * 2
    expected = [reference_generate(directory, c, max_new_tokens=NEW_TOKENS) for c in clips]
    with running(model, step_tokens=96, encode_windows=1) as engine:
        handles = [
            engine.submit(
                make_request(
                    model,
                    clip,
                    draft=tuple(ids[: 7 * index]),
                    spelling=model.spelling if index % 2 else None,
                )
            )
            for index, (clip, ids) in enumerate(zip(clips, expected, strict=True))
        ]
        results = [list(handle.result(60).token_ids) for handle in handles]
    assert results == expected
