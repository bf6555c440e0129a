import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import ClientError, InvalidMessage, OutOfOrder, UnsupportedAudio
from moss_stream.server.protocols.settings import AudioFormat, SemanticVad, ServerVad, Settings

AGENT = Settings("agent")


def updated(session: dict, settings: Settings = AGENT, *, has_audio: bool = False) -> Settings:
    return settings.updated(session, has_audio=has_audio)[0]


def with_input(**given) -> dict:
    return {"type": "transcription", "audio": {"input": given}}


def test_update_changes_what_it_names_and_nothing_else() -> None:
    first = updated(with_input(turn_detection={"type": "server_vad", "threshold": 0.7}))
    second = updated(with_input(transcription={"language": "en"}), first)
    third = updated(with_input(turn_detection={"silence_duration_ms": 700}), second)
    assert third.turns == ServerVad(threshold=0.7, silence_duration_ms=700)
    assert third.language == "en"
    assert updated({}, third) == third


def test_null_turn_detection_leaves_turns_to_the_client() -> None:
    settings = updated(with_input(turn_detection=None))
    assert settings.turns is None
    assert math.isinf(settings.live.endpoint_s)
    assert settings.wire("mini")["audio"]["input"]["turn_detection"] is None


def test_null_transcription_clears_its_fields() -> None:
    settings = updated(with_input(transcription={"language": "de", "keywords": ["Zug"]}))
    assert settings.keywords == ("Zug",)
    assert updated(with_input(transcription=None), settings) == AGENT


def test_a_silence_that_is_given_holds_whatever_the_text_says() -> None:
    live = updated(with_input(turn_detection={"silence_duration_ms": 350})).live
    assert live.endpoint_min_s == live.endpoint_s == live.endpoint_max_s == 0.35


def test_a_silence_shorter_than_the_pause_shortens_the_pause() -> None:
    live = updated(with_input(turn_detection={"silence_duration_ms": 100})).live
    assert live.pause_s == live.endpoint_s == 0.1


def test_what_is_out_of_the_engines_bounds_is_moved_and_shown() -> None:
    knobs = {"type": "server_vad", "prefix_padding_ms": 0, "threshold": 1}
    shown = updated(with_input(turn_detection=knobs)).wire("mini")["audio"]["input"]
    assert shown["turn_detection"]["prefix_padding_ms"] == 300
    assert shown["turn_detection"]["threshold"] == 0.99


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto"])
def test_semantic_vad_waits_longest_in_the_middle_of_a_phrase(eagerness: str) -> None:
    knobs = {"type": "semantic_vad", "eagerness": eagerness}
    settings = updated(with_input(turn_detection=knobs))
    assert settings.turns == SemanticVad(eagerness)
    assert settings.live.endpoint_min_s < settings.live.endpoint_s < settings.live.endpoint_max_s


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "audio/pcm"}, AudioFormat("audio/pcm", 24_000)),
        ({"type": "audio/pcm", "rate": 16_000}, AudioFormat("audio/pcm", 16_000)),
        ({"type": "audio/pcmu"}, AudioFormat("audio/pcmu", 8_000)),
        ({"type": "audio/pcma", "rate": 8_000}, AudioFormat("audio/pcma", 8_000)),
    ],
)
def test_formats_of_the_contract_are_taken(given: dict, expected: AudioFormat) -> None:
    assert updated(with_input(format=given)).format == expected


@pytest.mark.parametrize(
    ("session", "field"),
    [
        (with_input(format={"type": "audio/opus"}), "session.audio.input.format.type"),
        (
            with_input(format={"type": "audio/pcm", "rate": 44_100}),
            "session.audio.input.format.rate",
        ),
        (
            with_input(format={"type": "audio/pcmu", "rate": 16_000}),
            "session.audio.input.format.rate",
        ),
        (with_input(turn_detection="server_vad"), "session.audio.input.turn_detection"),
        (with_input(turn_detection={"type": "none"}), "session.audio.input.turn_detection.type"),
        (
            with_input(turn_detection={"threshold": 1.5}),
            "session.audio.input.turn_detection.threshold",
        ),
        (
            with_input(turn_detection={"silence_duration_ms": float("nan")}),
            "session.audio.input.turn_detection.silence_duration_ms",
        ),
        (
            with_input(turn_detection={"type": "semantic_vad", "eagerness": []}),
            "session.audio.input.turn_detection.eagerness",
        ),
        (
            with_input(turn_detection={"type": "semantic_vad", "eagerness": "very"}),
            "session.audio.input.turn_detection.eagerness",
        ),
        (with_input(transcription={"language": 5}), "session.audio.input.transcription.language"),
        (
            with_input(transcription={"keywords": ["a"] * 101}),
            "session.audio.input.transcription.keywords",
        ),
        ({"audio": []}, "session.audio"),
        ({"type": "realtime"}, "session.type"),
        ({"moss": {"preset": "podcast"}}, "session.moss.preset"),
        ({"moss": {"acks": 1}}, "session.moss.acks"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(session: dict, field: str) -> None:
    with pytest.raises((InvalidMessage, UnsupportedAudio)) as caught:
        updated(session)
    assert caught.value.field == field


def test_format_and_preset_are_fixed_once_audio_came() -> None:
    same = with_input(format={"type": "audio/pcm", "rate": 24_000})
    assert updated(same, has_audio=True) == AGENT
    with pytest.raises(OutOfOrder, match="before the first audio"):
        updated(with_input(format={"type": "audio/pcmu"}), has_audio=True)
    with pytest.raises(OutOfOrder):
        updated({"moss": {"preset": "captions"}}, has_audio=True)


def test_fields_without_effect_are_named_and_unknown_ones_let_pass() -> None:
    session = with_input(
        noise_reduction={"type": "near_field"}, transcription={"prompt": "x", "model": "y"}, foo=1
    ) | {"include": ["item.input_audio_transcription.logprobs"], "bar": None}
    settings, ignored = AGENT.updated(session, has_audio=False)
    assert settings == AGENT
    assert sorted(ignored) == [
        "session.audio.input.noise_reduction",
        "session.audio.input.transcription.prompt",
        "session.include",
    ]


_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.sampled_from(["server_vad"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([
            "type", "audio", "input", "format", "rate", "turn_detection", "threshold", "moss",
            "silence_duration_ms", "transcription", "keywords", "language", "preset", "eagerness",
        ]), inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["type", "audio", "moss", "include"]), _values, max_size=4))
def test_any_update_gives_settings_that_work_or_a_clear_refusal(session: dict) -> None:
    try:
        settings = updated(session)
    except ClientError as error:
        assert error.field
    else:
        assert settings.live.endpoint_s > 0
        settings.wire("mini")
