import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moss_stream.transcript.markup import MarkupParser, parse_markup, write_markup
from moss_stream.types import Segment

# What markup is made of, so that random text often comes close to it.
PIECES = st.one_of(
    st.sampled_from(
        ["[", "]", "[S01]", "[S02]", "S0", "[1.50]", "[12.5]", "[5]", "[0:07]", "3", ".", ":"]
        + ["hello", " ", "\n", "[laughs]", "[5 apples]", "[[", "[S", "[99999999.9]", "é"]
    ),
    st.text(max_size=4),
)
MESSY = st.lists(PIECES, max_size=25).map("".join)
WORDS = st.lists(st.sampled_from(["so", "the", "rain,", "isn't", "über", "7", "-"]), min_size=1)


@st.composite
def well_formed(draw, min_size=0):
    """Segments as the model should write them: times to 0.01 s, rising within each."""
    segments = []
    for words in draw(st.lists(WORDS, min_size=min_size, max_size=7)):
        start = draw(st.integers(0, 500_000))
        end = start + draw(st.integers(0, 3000))
        speaker = f"S{draw(st.integers(1, 9)):02}"
        segments.append(Segment(start / 100, end / 100, speaker, " ".join(words)))
    return segments


def feed_pieces(text, cuts, duration_s):
    parser = MarkupParser(duration_s)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    segments = []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        segments += parser.feed(text[begin:end])
    return segments + parser.finish(), parser.repairs


@settings(max_examples=500)
@given(MESSY, st.none() | st.floats(0, 100))
def test_parser_takes_any_text_and_gives_valid_segments(text, duration_s):
    for segment in parse_markup(text, duration_s).segments:
        assert 0 <= segment.start_s <= segment.end_s
        assert segment.text
        assert segment.text == segment.text.strip()


@settings(max_examples=300)
@given(MESSY, st.lists(st.integers(0, 200), max_size=10))
def test_parser_gives_the_same_for_any_pieces(text, cuts):
    whole = parse_markup(text, 30.0)

    for pieces in (cuts, range(len(text))):
        assert feed_pieces(text, pieces, 30.0) == (list(whole.segments), list(whole.repairs))


@given(well_formed())
def test_parser_reads_back_what_is_written_without_repairs(segments):
    parsed = parse_markup(write_markup(segments))

    assert parsed.segments == tuple(segments)
    assert parsed.repairs == ()


@settings(max_examples=300)
@given(well_formed(min_size=4), st.data())
def test_parser_finds_segments_two_away_from_damage(segments, data):
    damaged = data.draw(st.integers(0, len(segments) - 1))
    units = [write_markup([segment]) for segment in segments]
    unit = units[damaged]
    begin = data.draw(st.integers(0, len(unit)))
    end = data.draw(st.integers(begin, len(unit)))
    inserted = data.draw(st.text("[]S0123456789.: ab", max_size=6))
    units[damaged] = unit[:begin] + inserted + unit[end:]

    parsed = parse_markup("".join(units), 6000.0)

    found = list(parsed.segments)
    for segment in [*segments[: max(0, damaged - 1)], *segments[damaged + 2 :]]:
        assert segment in found
        found.remove(segment)


@pytest.mark.parametrize(
    ("text", "segments", "codes"),
    [
        ("", [], []),
        (" \n ", [], []),
        # one tag is missing
        ("[1.00]hi[2.00]", [(1, 2, "", "hi")], ["speaker_missing"]),
        (
            "[0.00][S02]oh[1.00][1.00]hi[2.00]",
            [(0, 1, "S02", "oh"), (1, 2, "S02", "hi")],
            ["speaker_missing"],
        ),
        ("[S01]hi[2.00]", [(0, 2, "S01", "hi")], ["start_missing"]),
        ("[1.00][S01]hi", [(1, 9, "S01", "hi")], ["end_missing"]),
        (
            "[1.00][S01]hi[2.00][S02]yo[3.00]",
            [(1, 2, "S01", "hi"), (2, 3, "S02", "yo")],
            ["start_missing"],
        ),
        (
            "[1.00][S01]hi[S02][2.00]yo[3.00]",
            [(1, 2, "S01", "hi"), (2, 3, "S02", "yo")],
            ["end_missing"],
        ),
        (
            "[1.00][S01]hi[2.00]yo[3.00]",
            [(1, 2, "S01", "hi"), (2, 3, "S01", "yo")],
            ["start_missing", "speaker_missing"],
        ),
        (
            "Sorry, I hear nothing.",
            [(0, 9, "", "Sorry, I hear nothing.")],
            ["end_missing", "start_missing", "speaker_missing"],
        ),
        # times
        ("[5.00][S01]hi[3.00]", [(5, 5, "S01", "hi")], ["end_before_start"]),
        ("[1.00][S01]hi[5]", [(1, 5, "S01", "hi")], []),
        ("[1:02.50][S01]hi[1:02:03]", [(62.5, 3723, "S01", "hi")], []),
        ("[12][S01]hi[15][16][S02]yo[17]", [(12, 15, "S01", "hi"), (16, 17, "S02", "yo")], []),
        (
            "[5.00][S01]a[6.00][2.00][S02]b[3.00]",
            [(5, 6, "S01", "a"), (2, 3, "S02", "b")],
            [],
        ),
        # the speaker changes within
        (
            "[1.00][S01]abcd[S02] efghijkl[4.00]",
            [(1, 2, "S01", "abcd"), (2, 4, "S02", "efghijkl")],
            ["time_estimated"],
        ),
        ("[1.00][S01]hi[S01]there[2.00]", [(1, 2, "S01", "hi there")], ["tag_extra"]),
        # nothing said, or a tag too many
        ("[1.00][S01][2.00][3.00][S02]yo[4.00]", [(3, 4, "S02", "yo")], ["segment_empty"]),
        ("[1.00][S01]hi[2.00][3.00][S02]", [(1, 2, "S01", "hi")], ["segment_empty"]),
        ("[1.00][2.00][S01]hi[3.00]", [(2, 3, "S01", "hi")], ["tag_extra"]),
        ("[1.00][S01][S02]hi[3.00]", [(1, 3, "S02", "hi")], ["tag_extra"]),
        ("[S01][1.00]hi[3.00]", [(1, 3, "S01", "hi")], []),
        ("[1.00][S01]hi[S02]", [(1, 9, "S01", "hi")], ["segment_empty", "end_missing"]),
        # the output ends within a tag
        ("[1.00][S01]hi [3.2", [(1, 9, "S01", "hi")], ["tag_broken", "end_missing"]),
        ("[1.00][S01]hi[3.00][", [(1, 3, "S01", "hi")], ["tag_broken"]),
        ("[1.00][S01]hi[3.00][3.50][S0", [(1, 3, "S01", "hi")], ["tag_broken", "segment_empty"]),
        # broken tags
        ("[[1.00]][S01]hi[2.00]", [(1, 2, "S01", "hi")], ["tag_broken", "tag_broken"]),
        (
            "[1.00]S01]hi[2.00]",
            [(1, 2, "", "hi")],
            ["tag_broken", "speaker_missing"],
        ),
        (
            "[1.00][S01]hi[2.00]2.50][S02]yo[3.00]",
            [(1, 2, "S01", "hi"), (2, 3, "S02", "yo")],
            ["tag_broken", "start_missing"],
        ),
        ("[1..0][S01]hi[2.00]", [(0, 2, "S01", "hi")], ["tag_broken", "start_missing"]),
        ("[1.00][]hi[2.00]", [(1, 2, "", "hi")], ["tag_broken", "speaker_missing"]),
        # brackets that are words
        ("[1.00][S01]take [5] now[2.00]", [(1, 2, "S01", "take [5] now")], []),
        ("[1.00][S01]John [3:16] says[2.00]", [(1, 2, "S01", "John [3:16] says")], []),
        ("[1.00][S01]that is [0.50] off[2.00]", [(1, 2, "S01", "that is [0.50] off")], []),
        ("[1.00][S01]ha [laughs][2.00]", [(1, 2, "S01", "ha [laughs]")], []),
        ("[1.00][S01][5 apples] [Some[2.00]", [(1, 2, "S01", "[5 apples] [Some")], []),
        ("[1.00][S01]call [5551234567][2.00]", [(1, 2, "S01", "call [5551234567]")], []),
    ],
)
def test_parser_repairs_and_reports(text, segments, codes):
    parsed = parse_markup(text, 9.0)

    assert parsed.segments == tuple(Segment(*segment) for segment in segments)
    assert [repair.code for repair in parsed.repairs] == codes


def test_parser_ends_last_segment_at_its_start_without_a_duration():
    assert parse_markup("[3.00][S01]hi").segments == (Segment(3, 3, "S01", "hi"),)


def test_parser_tells_where_a_repair_was():
    parsed = parse_markup("[1.00][S01]hi[2.00][4.00]yo[5.00]")

    assert [repair.at_s for repair in parsed.repairs] == [4.0]


def test_parser_gives_segments_as_they_close():
    parser = MarkupParser(4.0)

    assert parser.feed("[1.00][S01]hi the") == []
    assert parser.feed("re[2.0") == []
    assert parser.feed("0]") == [Segment(1, 2, "S01", "hi there")]
    assert parser.feed("[3.00][S02]yo") == []
    assert parser.finish() == [Segment(3, 4, "S02", "yo")]


def test_open_segment_shows_words_and_never_half_a_tag():
    parser = MarkupParser()
    shown = []
    for letter in "[1.00][S01]hi [laughs][2.00][3.00][S02]yo[S0":
        parser.feed(letter)
        if parser.open_segment:
            shown.append((parser.open_segment.speaker, parser.open_segment.text))

    assert list(dict.fromkeys(shown)) == [
        ("S01", "h"),
        ("S01", "hi"),
        *[("S01", f"hi {'[laughs]'[:n]}") for n in range(2, 9)],
        ("S02", "y"),
        ("S02", "yo"),
    ]


def test_open_segment_is_none_without_words():
    parser = MarkupParser()
    parser.feed("[1.00][S01] ")

    assert parser.open_segment is None
