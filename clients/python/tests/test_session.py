from __future__ import annotations

import json
from typing import Any

import pytest

from moss_stream_client import ProtocolError, Refused, Resumed, Unknown
from moss_stream_client.session import OutOfStep, Session, SessionOptions


def event(kind: str, seq: int | None, **fields: Any) -> str:
    return json.dumps({"type": kind, "moss": {} if seq is None else {"seq": seq}, **fields})


def session_of(rate_hz: int) -> dict[str, Any]:
    return {
        "audio": {"input": {"format": {"type": "audio/pcm", "rate": rate_hz}}},
        "moss": {"resume_token": "token", "grace_s": 30},
    }


@pytest.fixture
def session() -> Session:
    """A configured session with 1000 samples sent."""
    session = Session(SessionOptions())
    session.connecting()
    session.receive(event("session.created", 1, session=session_of(24000)))
    assert "session.update" in str(session.next_frame())
    session.receive(event("session.updated", 2, session=session_of(16000)))
    session.backlog.append(bytes(2000))
    assert session.next_frame() == bytes(2000)
    return session


def test_session_sends_again_from_where_the_server_resumes(session: Session) -> None:
    assert session.connecting()["last_seq"] == "2"
    assert session.next_frame() is None
    resumed = session.receive(event("moss.resumed", None, received_samples=600, replayed=0))
    assert resumed == Resumed(600, 0)
    assert session.next_frame() == bytes(800)


def test_session_ignores_a_second_copy_of_resumed(session: Session) -> None:
    session.connecting()
    resumed = event("moss.resumed", None, received_samples=600, replayed=0)
    session.receive(resumed)
    session.next_frame()
    assert session.receive(resumed) is None
    assert session.next_frame() is None


@pytest.mark.parametrize("received_samples", [200, 1001])
def test_session_refuses_to_resume_at_a_position_that_loses_audio(
    session: Session, received_samples: int
) -> None:
    session.receive(
        event("moss.ack", 3, received_samples=300, decoded_samples=0, lag_ms=0, degraded=False)
    )
    session.connecting()
    with pytest.raises(ProtocolError, match=f"resumes at sample {received_samples}"):
        session.receive(event("moss.resumed", None, received_samples=received_samples, replayed=0))


def test_session_refuses_an_ack_of_audio_never_sent(session: Session) -> None:
    with pytest.raises(ProtocolError, match="confirms 1001 samples of 1000"):
        session.receive(
            event("moss.ack", 3, received_samples=1001, decoded_samples=0, lag_ms=0, degraded=False)
        )


MERGE = {"type": "moss.merge_speakers", "speaker": "S02", "into": "S01"}


def resume(session: Session, replayed: int) -> None:
    session.connecting()
    session.receive(event("moss.resumed", None, received_samples=1000, replayed=replayed))


def test_session_asks_again_for_a_merge_that_was_lost(session: Session) -> None:
    session.merge_speakers("S02", "S01")
    assert json.loads(str(session.next_frame())) == MERGE
    assert session.next_frame() is None
    resume(session, replayed=0)
    assert json.loads(str(session.next_frame())) == MERGE


def test_session_waits_for_the_replay_before_it_asks_again(session: Session) -> None:
    session.merge_speakers("S02", "S01")
    session.next_frame()
    session.finish()
    assert session.next_frame() == '{"type":"moss.finish"}'
    resume(session, replayed=2)
    assert session.next_frame() is None
    session.receive(event("moss.new", 3))
    assert session.next_frame() is None
    session.receive(event("moss.relabel", 4, speaker="S02", replaced_by="S01"))
    assert session.next_frame() == '{"type":"moss.finish"}'


@pytest.mark.parametrize("param", ["speaker", "into", "type"])
def test_session_does_not_ask_again_for_a_merge_that_was_refused(
    session: Session, param: str
) -> None:
    session.merge_speakers("S02", "S01")
    session.merge_speakers("S03", "S01")
    session.next_frame()
    session.next_frame()
    session.receive(event("error", 3, error={"type": "x", "message": "no", "param": param}))
    resume(session, replayed=0)
    assert json.loads(str(session.next_frame())) == MERGE | {"speaker": "S03"}
    assert session.next_frame() is None


def test_session_keeps_a_merge_when_another_speaker_is_relabelled(session: Session) -> None:
    session.merge_speakers("S02", "S01")
    session.next_frame()
    session.receive(event("moss.relabel", 3, speaker="S03", replaced_by="S01"))
    session.receive(event("error", 4, error={"type": "x", "message": "no", "param": "session"}))
    resume(session, replayed=0)
    assert json.loads(str(session.next_frame())) == MERGE


def test_session_gives_up_on_events_that_are_never_replayed(session: Session) -> None:
    late = event("moss.new", 5)
    for _ in range(3):
        with pytest.raises(OutOfStep, match="events from 3 to before 5"):
            session.receive(late)
        session.connecting()
        session.receive(event("moss.resumed", None, received_samples=0, replayed=1))
    with pytest.raises(ProtocolError, match="does not replay events from 3 to before 5"):
        session.receive(late)


def test_session_refuses_an_end_before_all_audio(session: Session) -> None:
    session.finish()
    with pytest.raises(ProtocolError, match="finished after 999 samples, 1000 were given"):
        session.receive(event("moss.finished", 3, received_samples=999))


def test_session_passes_events_it_does_not_know(session: Session) -> None:
    got = session.receive(event("moss.new", 3, value=1))
    assert isinstance(got, Unknown)
    assert got.raw["value"] == 1


@pytest.mark.parametrize("message", ["{", "[]", "{}", b"\xff", '{"type": 3}'])
def test_session_refuses_what_is_no_event(session: Session, message: str | bytes) -> None:
    with pytest.raises(ProtocolError):
        session.receive(message)


def test_session_refuses_a_server_without_resume() -> None:
    session = Session(SessionOptions())
    session.connecting()
    with pytest.raises(ProtocolError, match="not a moss-stream server"):
        session.receive(event("session.created", None, session={"id": "sess_1"}))


def test_session_reports_a_refused_configuration() -> None:
    session = Session(SessionOptions(rate_hz=8000))
    session.connecting()
    session.receive(event("session.created", 1, session=session_of(24000)))
    session.next_frame()
    with pytest.raises(Refused, match="bad rate"):
        session.receive(event("error", 2, error={"type": "x", "message": "bad rate"}))


def test_session_refuses_another_rate_than_it_asked_for() -> None:
    session = Session(SessionOptions(rate_hz=8000))
    session.connecting()
    session.receive(event("session.created", 1, session=session_of(24000)))
    session.next_frame()
    with pytest.raises(Refused, match="asked for 8000 Hz, the server took 24000"):
        session.receive(event("session.updated", 2, session=session_of(24000)))
