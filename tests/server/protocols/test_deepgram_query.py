from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.audio.pcm import Encoding
from moss_stream.errors import ClientError
from moss_stream.server.protocols.deepgram_query import ListenOptions, read_query


def query(**parameters: str) -> ListenOptions:
    return read_query(parameters.items())


def refused(**parameters: str) -> ClientError:
    with pytest.raises(ClientError) as caught:
        query(**parameters)
    return caught.value


def test_query_of_nothing_listens_to_a_container() -> None:
    assert query() == ListenOptions()


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("linear16", Encoding.S16LE),
        ("linear32", Encoding.F32LE),
        ("mulaw", Encoding.MULAW),
        ("alaw", Encoding.ALAW),
    ],
)
def test_query_names_bare_samples(name: str, encoding: Encoding) -> None:
    options = query(encoding=name, sample_rate="44100", channels="2")

    assert (options.encoding, options.rate_hz, options.channels) == (encoding, 44_100, 2)
    assert options.num_streams == 1


@pytest.mark.parametrize(("name", "container"), [("ogg-opus", "ogg"), ("flac", "flac")])
def test_query_names_a_container(name: str, container: str) -> None:
    options = query(encoding=name, sample_rate="48000")

    assert (options.encoding, options.container) == (None, container)


def test_query_has_the_telephone_rate_when_it_names_none() -> None:
    assert query(encoding="mulaw").rate_hz == 8_000
    assert refused(encoding="linear16").field == "sample_rate"


def test_query_of_several_channels_makes_a_stream_of_each() -> None:
    raw = query(encoding="linear16", sample_rate="16000", channels="3", multichannel="true")

    assert raw.num_streams == 3
    assert query(multichannel="true").num_streams == 2
    assert query(multichannel="true", channels="1").num_streams == 1


def test_query_sets_the_silence_that_ends_an_utterance() -> None:
    assert query(endpointing="900").live.endpoint_s == pytest.approx(0.9)
    assert query(endpointing="10").live.endpoint_s == pytest.approx(0.3)
    assert query(endpointing="10").live.endpoint_max_s == pytest.approx(0.3)
    assert query().live.endpoint_s == query(endpointing="true").live.endpoint_s


def test_query_without_endpoints_still_ends_utterances() -> None:
    options = query(endpointing="false")

    assert not options.tells_endpoints
    assert options.live == query().live


def test_query_that_names_speakers_keeps_their_context() -> None:
    assert query().live.context_s == 0
    assert query(diarize="true").live.context_s > 0
    assert query(diarize_model="latest").diarize
    assert query(diarize="true", preset="agent").live.context_s == 0


def test_query_collects_words_to_expect() -> None:
    options = read_query(
        [
            ("keyterm", "Ana Lovelace"),
            ("keywords", "moss:2.5"),
            ("keywords", "a:b"),
            ("keyterm", ""),
        ]
    )

    assert options.keywords == ("Ana Lovelace", "moss", "a:b")


def test_query_says_what_has_no_effect() -> None:
    options = query(redact="pci", numerals="true", replace="", profanity_filter="false")

    assert options.ignored == ("numerals", "redact")


def test_query_of_real_clients_is_taken() -> None:
    options = query(
        model="nova-3",
        language="multi",
        punctuate="True",
        smart_format="true",
        no_delay="true",
        filler_words="true",
        mip_opt_out="false",
        interim_results="True",
        vad_events="TRUE",
        utterance_end_ms="1000",
        encoding="linear16",
        sample_rate="16000",
    )

    assert options.interim_results
    assert options.vad_events
    assert options.utterance_end_ms == 1000


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"encoding": "opus", "sample_rate": "16000"}, "encoding"),
        ({"encoding": "linear16", "sample_rate": "10"}, "sample_rate"),
        ({"encoding": "linear16", "sample_rate": "16k"}, "sample_rate"),
        ({"encoding": "linear16", "sample_rate": "١٦"}, "sample_rate"),
        ({"channels": "0"}, "channels"),
        ({"channels": "21"}, "channels"),
        ({"channels": "-1"}, "channels"),
        ({"multichannel": "yes"}, "multichannel"),
        ({"interim_results": "1"}, "interim_results"),
        ({"endpointing": "soon"}, "endpointing"),
        ({"endpointing": "60001"}, "endpointing"),
        ({"utterance_end_ms": "999"}, "utterance_end_ms"),
        ({"keyterm": "x" * 101}, "keyterm"),
        ({"keywords": "x" * 101}, "keywords"),
        ({"preset": "podcast"}, "preset"),
        ({"callback": "https://example.org"}, "callback"),
    ],
)
def test_query_refuses_a_wrong_value_by_its_name(parameters: dict[str, str], field: str) -> None:
    error = refused(**parameters)

    assert error.field == field
    assert field in error.message


def test_query_refuses_too_many_words() -> None:
    with pytest.raises(ClientError):
        read_query([("keyterm", f"word {i}") for i in range(101)])


NAMES = (
    "encoding sample_rate channels multichannel interim_results endpointing utterance_end_ms "
    "vad_events diarize keyterm keywords preset callback redact"
).split()


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.text(max_size=12))))
def test_query_is_taken_or_refused_whatever_it_holds(parameters: list[tuple[str, str]]) -> None:
    try:
        options = read_query(parameters)
    except ClientError as error:
        assert error.field
        assert len(error.message) < 300
    else:
        assert options.num_streams >= 1
        assert options.live.endpoint_s > 0
