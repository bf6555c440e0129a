import pytest
from hypothesis import given
from hypothesis import strategies as st

from moss_stream.errors import StateError
from moss_stream.live.ledger import Ledger, Outcome, Stretch


def test_ledger_joins_touching_silences() -> None:
    ledger = Ledger()
    ledger.silence_until(10)
    ledger.silence_until(20)
    assert ledger.stretches(20) == (Stretch(0, 20, Outcome.SILENCE),)


def test_utterance_is_pending_until_resolved() -> None:
    ledger = Ledger()
    ledger.utterance(1, 10)
    assert ledger.totals(15)[Outcome.PENDING] == 15
    ledger.resolve(1, Outcome.TRANSCRIPT)
    assert ledger.stretches(15)[0] == Stretch(0, 10, Outcome.TRANSCRIPT, 1)
    with pytest.raises(StateError):
        ledger.resolve(1, Outcome.GAP)


def test_folded_stretches_still_count() -> None:
    ledger = Ledger()
    for index in range(1000):
        ledger.silence_until(10 * index + 3)
        ledger.utterance(index, 10 * index + 10)
        ledger.resolve(index, Outcome.TRANSCRIPT)
    assert ledger.stretches(10_000)[0].start_at > 0
    totals = ledger.totals(10_000)
    assert totals[Outcome.SILENCE] == 3000
    assert totals[Outcome.TRANSCRIPT] == 7000


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from("sgu")), max_size=1500))
def test_ledger_tiles_and_stays_short(steps: list[tuple[int, str]]) -> None:
    ledger, at = Ledger(), 0
    for index, (length, kind) in enumerate(steps):
        at += length
        match kind:
            case "s":
                ledger.silence_until(at)
            case "g":
                ledger.gap_until(at)
            case _:
                ledger.utterance(index, at)
                ledger.resolve(index, Outcome.TRANSCRIPT)
    stretches = ledger.stretches(at + 1)
    assert stretches[-1].end_at == at + 1
    assert all(a.end_at == b.start_at for a, b in zip(stretches, stretches[1:], strict=False))
    assert sum(ledger.totals(at + 1).values()) == at + 1
    assert len(stretches) <= 513
