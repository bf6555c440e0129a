from hypothesis import given
from hypothesis import strategies as st
from support.live import CODEC

from moss_stream.live.commit import CommitPolicy
from moss_stream.live.text import plain_text


def observe(policy: CommitPolicy, markup: str, edge_s: float) -> bool:
    return policy.observe(CODEC.encode(markup), edge_s)


def test_nothing_is_committed_by_one_hypothesis() -> None:
    policy = CommitPolicy(CODEC.decode, 1.0)
    observe(policy, "[0.00][S01]one two[1.00]", 10.0)
    assert policy.committed == ()


def test_what_two_hypotheses_agree_on_is_committed() -> None:
    policy = CommitPolicy(CODEC.decode, 1.0)
    observe(policy, "[0.00][S01]one two[1.00][1.20][S01]tree", 10.0)
    observe(policy, "[0.00][S01]one two[1.00][1.20][S02]three", 10.0)
    assert CODEC.decode(policy.committed) == "[0.00][S01]one two[1.00][1.20]"
    assert policy.committed_text == "one two"


def test_text_close_to_the_end_of_the_audio_is_not_committed() -> None:
    policy = CommitPolicy(CODEC.decode, 1.0)
    for _ in range(2):
        observe(policy, "[0.00][S01]one two[2.00][2.10][S01]three four[4.20]", 4.2)
    assert policy.committed_text == "one two three"


def test_committed_text_ends_at_a_word() -> None:
    policy = CommitPolicy(CODEC.decode, 0.0)
    observe(policy, "[0.00][S01]one twofold[2.00]", 2.0)
    observe(policy, "[0.00][S01]one twosome[2.00]", 2.0)
    assert policy.committed_text == "one"


def test_hypothesis_that_contradicts_the_committed_changes_nothing() -> None:
    policy = CommitPolicy(CODEC.decode, 0.0)
    for _ in range(2):
        observe(policy, "[0.00][S01]one[1.00]", 5.0)
    committed = policy.committed
    assert committed
    assert not observe(policy, "[0.00][S01]other[1.00]", 5.0)
    assert not observe(policy, "[0.00][S01]other[1.00]", 5.0)
    assert policy.committed == committed


WORDS = st.lists(st.sampled_from(["one", "two", "tvo", "你好", "née", "[1.00]", "[1.50]", "[S01]"]))


@given(st.lists(st.tuples(WORDS, st.floats(0, 5)), max_size=8))
def test_committed_only_grows_and_shows_whole_characters(
    hypotheses: list[tuple[list[str], float]],
) -> None:
    policy = CommitPolicy(CODEC.decode, 0.5)
    committed: tuple[int, ...] = ()
    for words, edge_s in hypotheses:
        observe(policy, "[0.00][S01]" + " ".join(words), edge_s)
        assert policy.committed[: len(committed)] == committed
        assert plain_text(CODEC.decode(policy.committed)).startswith(
            plain_text(CODEC.decode(committed))
        )
        assert "\ufffd" not in CODEC.decode(policy.committed)
        committed = policy.committed
