"""Whatever the network does: every event once and in order, every sample once."""

from __future__ import annotations

import asyncio
import random
import wave
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_server import FAULTS, FakeServer, Plan, fake_server, fault_at, random_faults

from moss_stream_client import (
    Ack,
    AudioError,
    Backoff,
    Completed,
    Event,
    EventsUnread,
    Finished,
    Gap,
    Hypothesis,
    ProtocolError,
    Relabel,
    Resumed,
    ResumeExpired,
    ServerError,
    StreamLost,
    UsageError,
    connect,
)

PCM = random.Random(0).randbytes(2 * 2900)
BLOCKS = [PCM[at : at + 640] for at in range(0, len(PCM), 640)]
MERGES = [Relabel("S03", "S02"), Relabel("S02", "S01")]
QUICK = Backoff(base_s=0.001, cap_s=0.004)


async def speak(server: FakeServer, blocks: Sequence[bytes] = BLOCKS) -> list[Event]:
    """Send all blocks, each as soon as the one before was taken, and return all events.

    On the way two speakers are said to be one, twice.
    """
    async with connect(server.url, backoff=QUICK) as stream:

        async def send() -> None:
            merges = dict(enumerate(MERGES, start=3))
            for number, block in enumerate(blocks):
                await stream.send(block)
                if merge := merges.get(number):
                    await stream.merge_speakers(merge.speaker, merge.replaced_by)
                await asyncio.sleep(0)
            await stream.finish()

        sending = asyncio.create_task(send())
        events = [event async for event in stream]
        await sending
        assert stream.unacknowledged_samples == 0
        return events


def lasting(events: Sequence[Event]) -> list[Event]:
    """Leave out snapshots, where a newer one may replace one, and what comes at another time."""
    return [e for e in events if not isinstance(e, Ack | Hypothesis | Resumed | Relabel)]


def relabels(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, Relabel)]


def run(plan: Plan) -> tuple[list[Event], FakeServer]:
    async def main() -> tuple[list[Event], FakeServer]:
        async with fake_server(plan) as server:
            return await speak(server), server

    return asyncio.run(main())


@pytest.fixture(scope="module")
def undisturbed() -> tuple[list[Event], int]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
            patch.delenv(name, raising=False)
        events, server = run(lambda _: None)
    assert bytes(server.session.pcm) == PCM
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Completed) for event in events) == 3
    return lasting(events), server.num_points


@pytest.mark.parametrize("fault", FAULTS)
def test_stream_loses_and_repeats_nothing_when_one_point_fails(
    fault: str, undisturbed: tuple[list[Event], int]
) -> None:
    expected, num_points = undisturbed
    for point in range(num_points):
        events, server = run(fault_at(point, fault))
        assert lasting(events) == expected, f"{fault} at {point}"
        assert relabels(events) == MERGES, f"{fault} at {point}"
        assert bytes(server.session.pcm) == PCM, f"{fault} at {point}"


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_stream_loses_and_repeats_nothing_when_many_points_fail(
    share: float, undisturbed: tuple[list[Event], int]
) -> None:
    expected, _ = undisturbed
    for seed in range(60):
        events, server = run(random_faults(seed, share))
        assert lasting(events) == expected, f"seed {seed}"
        assert relabels(events) == MERGES, f"seed {seed}"
        assert bytes(server.session.pcm) == PCM, f"seed {seed}"
        for item in {event.item_id for event in events if isinstance(event, Hypothesis)}:
            revisions = [
                e.revision for e in events if isinstance(e, Hypothesis) and e.item_id == item
            ]
            assert revisions == sorted(set(revisions)), f"seed {seed}"


def test_stream_reports_each_resume() -> None:
    events, server = run(fault_at(12, "cut_after"))
    assert [event for event in events if isinstance(event, Resumed)]
    assert len(server.connections) == 2


def test_merge_speakers_is_answered_while_send_waits() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url, max_buffer_s=1) as stream:
            server.session.holds_acks = True
            sending = asyncio.create_task(stream.send(bytes(2 * 17000)))
            async for event in stream:
                if isinstance(event, Completed):
                    break
            assert not sending.done()
            await stream.merge_speakers("S02", "S01")
            await stream.merge_speakers("S02", "S01")
            answers: list[Relabel | ServerError] = []
            while len(answers) < 2:
                if isinstance(event := await anext(stream), Relabel | ServerError):
                    answers.append(event)
            refused = ServerError("invalid_request_error", "not_found", "no", "speaker")
            assert answers == [Relabel("S02", "S01"), refused]
            sending.cancel()

    asyncio.run(main())


def test_merge_speakers_waits_for_the_next_connection() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url, backoff=QUICK) as stream:
            server.status = 503
            server.connections[0].transport.abort()
            await server.connections[0].wait_closed()
            await stream.merge_speakers("S03", "S02")
            await stream.merge_speakers("S02", "S01")
            await stream.finish()
            server.status = None
            events = [event async for event in stream]
            assert relabels(events) == MERGES
            assert server.session.merges == [("S03", "S02"), ("S02", "S01")]
            with pytest.raises(UsageError, match="closed"):
                await stream.merge_speakers("S01", "S02")

    asyncio.run(main())


def test_send_waits_when_too_much_is_unconfirmed() -> None:
    async def main() -> None:
        async with (
            fake_server() as server,
            connect(server.url, rate_hz=8000, max_buffer_s=1) as stream,
        ):
            server.session.holds_acks = True
            sending = asyncio.create_task(stream.send(bytes(2 * 12000)))
            async for event in stream:
                if isinstance(event, Completed) and event.item_id == "item_5":
                    break
            assert not sending.done()
            assert stream.unacknowledged_samples == 8000
            assert server.session.received_samples == 8000
            server.session.emit(
                "moss.ack", received_samples=8000, decoded_samples=0, lag_ms=0, degraded=True
            )
            await sending
            await stream.finish()
            server.session.holds_acks = False
            *_, last = [event async for event in stream]
            assert last == Finished(12000)

    asyncio.run(main())


def test_send_takes_int16_arrays_and_refuses_others() -> None:
    np = pytest.importorskip("numpy")

    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            await stream.send(np.arange(500, dtype=np.int16))
            with pytest.raises(AudioError, match="int16"):
                await stream.send(np.zeros(10, dtype=np.float32))
            with pytest.raises(AudioError, match="mono"):
                await stream.send(np.zeros((10, 2), dtype=np.int16))
            with pytest.raises(AudioError, match="whole"):
                await stream.send(b"abc")
            await stream.finish()
            assert [event async for event in stream][-1] == Finished(500)
            assert bytes(server.session.pcm) == np.arange(500, dtype="<i2").tobytes()

    asyncio.run(main())


def write_wave(path: Path, pcm: bytes, rate_hz: int) -> Path:
    with wave.open(str(path), "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate_hz)
        writer.writeframes(pcm)
    return path


def send_file(path: Path, realtime: bool) -> bytes:
    async def main() -> bytes:
        async with fake_server() as server, connect(server.url) as stream:
            await stream.send_file(path, realtime)
            await stream.finish()
            assert [event async for event in stream][-1] == Finished(2900)
            return bytes(server.session.pcm)

    return asyncio.run(main())


def test_send_file_waits_until_each_block_would_have_been_spoken(
    tmp_path: Path, pauses: list[float]
) -> None:
    assert send_file(write_wave(tmp_path / "a.wav", PCM, 16000), realtime=True) == PCM
    assert len(pauses) == 2
    assert pauses[0] <= 0.1 < pauses[1] <= 2900 / 16000


def test_send_file_does_not_wait_when_not_in_real_time(tmp_path: Path, pauses: list[float]) -> None:
    assert send_file(write_wave(tmp_path / "a.wav", PCM, 16000), realtime=False) == PCM
    assert pauses == []


def test_send_file_refuses_another_rate_than_the_stream(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="connect with rate_hz=8000"):
        send_file(write_wave(tmp_path / "a.wav", PCM, 8000), realtime=False)


def test_send_refuses_audio_after_finish() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            await stream.finish()
            with pytest.raises(UsageError, match="finish"):
                await stream.send(b"ab")

    asyncio.run(main())


def test_stream_gives_up_when_the_session_is_unknown() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url, backoff=QUICK) as stream:
            server.session.holds_acks = True
            await stream.send(bytes(2 * 1600))
            first = await anext(stream)
            assert not isinstance(first, Finished)
            server.sessions.clear()
            server.connections[0].transport.abort()
            with pytest.raises(ResumeExpired, match="no longer knows.*0.1 s") as caught:
                async for _ in stream:
                    pass
            assert caught.value.unacknowledged_samples == 1600
            with pytest.raises(ResumeExpired):
                await stream.send(b"ab")

    asyncio.run(main())


def test_stream_gives_up_when_the_grace_time_is_over() -> None:
    async def main() -> None:
        async with (
            fake_server(grace_s=0.2) as server,
            connect(server.url, backoff=QUICK) as stream,
        ):
            server.status = 503
            server.connections[0].transport.abort()
            with pytest.raises(StreamLost, match="not resumed within 0.2 s"):
                await anext(stream)
            assert len(server.requests) > 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(1012, "restarting"), (4408, "inactivity"), (4409, "took"), (1009, "large"), (1008, "rules")],
)
def test_stream_says_why_a_close_is_final(code: int, meaning: str) -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url, backoff=QUICK) as stream:
            await server.connections[0].close(code, "said so")
            with pytest.raises(StreamLost, match=f"{meaning}.*said so") as caught:
                await anext(stream)
            assert caught.value.close_code == code
            assert len(server.connections) == 1

    asyncio.run(main())


def test_stream_gives_the_events_before_a_final_close() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            for number in range(100):
                server.session.emit("moss.gap", start_samples=number, end_samples=0, reason="")
            server.session.close_code = 1012
            events = []
            with pytest.raises(StreamLost, match="restarting"):
                async for event in stream:
                    events.append(event)
            assert events == [Gap(number, 0, "") for number in range(100)]

    asyncio.run(main())


@pytest.mark.parametrize("code", [1000, 1001, 1011, 1013])
def test_stream_resumes_after_a_close_that_is_not_final(code: int) -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url, backoff=QUICK) as stream:
            await server.connections[0].close(code)
            assert await anext(stream) == Resumed(received_samples=0, replayed=0)

    asyncio.run(main())


def test_stream_ends_with_an_error_when_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moss_stream_client.stream._MAX_UNREAD_EVENTS", 20)

    async def main() -> None:
        async with fake_server() as server, connect(server.url, max_buffer_s=1) as stream:
            with pytest.raises(EventsUnread, match="20 events"):
                await stream.send(bytes(2 * 64000))

    asyncio.run(main())


def test_stream_keeps_only_the_newest_unread_snapshot() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            await stream.send(PCM)
            await stream.finish()
            await server.connections[0].wait_closed()
            events = [event async for event in stream]
            assert len([event for event in events if isinstance(event, Ack)]) == 1
            assert [e.revision for e in events if isinstance(e, Hypothesis)] == [3, 3, 2]

    asyncio.run(main())


def test_stream_names_the_event_that_breaks_the_contract() -> None:
    async def main() -> None:
        async with fake_server() as server, connect(server.url) as stream:
            server.session.emit("moss.gap", start_samples="zero", end_samples=1, reason="none")
            with pytest.raises(ProtocolError, match="moss.gap: start_samples must be int, got str"):
                await anext(stream)

    asyncio.run(main())
