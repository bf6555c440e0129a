"""The room page in a real browser: what is said in a room, as its viewers read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from support.browser import (
    AFTER_SPEECH,
    CHROMIUM,
    launch_options,
    wait_until_recorded,
    write_speech,
)
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running, make_backend, open_client, running
from support.relay import Relay, relay

from moss_stream.model.checkpoint import Model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Page, expect = playwright.Page, playwright.expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

PATIENCE_MS = PATIENCE_S * 1000
SPEECH = load_clip("mix_duo_002")[: 16_000 * 7]
FINALS = "#finals .final"
WORDS = "right you can see"
"""Words that the small checkpoint gets right in spite of the browser's gain."""


@pytest.fixture(scope="module")
def server(mini: Model) -> Iterator[Running]:
    with make_backend(mini) as backend, running(backend, preset="captions") as server:
        yield server


@pytest.fixture
def network(server: Running) -> Iterator[Relay]:
    with relay(server.port) as network:
        yield network


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    errors: list[str] = []
    with playwright.sync_playwright() as api:
        speech = write_speech(tmp_path / "speech.wav", SPEECH)
        browser = api.chromium.launch(executable_path=CHROMIUM, args=launch_options(speech))
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        page.screenshot(path=tmp_path / "room.png")
        browser.close()
    assert errors == []


@pytest.fixture
def room(server: Running) -> dict[str, Any]:
    return call(server, "POST", "/v1/rooms", title="Weekly")


def call(server: Running, method: str, path: str, token: str = "", **body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body else None
    with urlopen(Request(server.http + path, data, headers, method=method)) as answer:
        return json.loads(answer.read() or b"null")


def speak(
    server: Running, room: dict[str, Any], participant: str, samples: np.ndarray, query: str = ""
) -> None:
    """Say something in a room and wait until all of it is transcribed."""

    async def play() -> None:
        client = await open_client(
            server,
            f"&room={room['room']}&participant={participant}&token={room['publish_token']}{query}",
        )
        await client.append(samples)
        await client.send("moss.finish")
        assert await client.rest() == 1000

    # The browser's driver has a loop in this thread.
    with ThreadPoolExecutor(1) as elsewhere:
        elsewhere.submit(lambda: asyncio.run(play())).result()


def num_segments(server: Running, room: dict[str, Any]) -> int:
    """How many segments the room has settled."""
    path = f"/v1/rooms/{room['room']}/transcript?format=srt&token={room['view_token']}"
    with urlopen(server.http + path) as answer:
        return int(answer.read().decode().count("-->"))


def look(page: Page, address: str, room: dict[str, Any], token: str = "view_token") -> None:
    page.goto(f"{address}/room.html?room={room['room']}&token={room[token]}")
    expect(page.locator("#status")).to_have_text("Live", timeout=PATIENCE_MS)


def test_viewer_sees_the_history_and_what_is_said(
    page: Page, server: Running, room: dict[str, Any]
) -> None:
    speak(server, room, "Ana", SPEECH)
    look(page, server.http, room)
    expect(page.locator("h1")).to_have_text("Weekly")
    page.locator(FINALS).first.wait_for()
    assert "token" not in page.url
    assert set(page.locator("#finals .name").all_inner_texts()) == {"Ana"}
    speak(server, room, "Ben", SPEECH)
    expect(page.locator(FINALS)).to_have_count(num_segments(server, room))
    assert set(page.locator("#finals .name").all_inner_texts()) == {"Ana", "Ben"}
    assert page.locator("#finals button.name").count() == 0  # to look is not to name


def test_viewer_misses_nothing_when_the_network_fails(
    page: Page, server: Running, network: Relay, room: dict[str, Any]
) -> None:
    look(page, network.http, room)
    speak(server, room, "Ana", SPEECH)
    page.locator(FINALS).first.wait_for()
    network.go_away()
    expect(page.locator("#status")).to_have_text("Reconnecting")
    speak(server, room, "Ben", SPEECH)
    network.come_back()
    expect(page.locator("#finals .name", has_text="Ben").first).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(FINALS)).to_have_count(num_segments(server, room))


def test_caption_page_speaks_into_a_room(page: Page, server: Running, room: dict[str, Any]) -> None:
    token = room["publish_token"]
    page.goto(f"{server.http}/?room={room['room']}&participant=Ana&token={token}")
    page.click("#start")
    wait_until_recorded(page, AFTER_SPEECH)
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)
    look(page, server.http, room)
    expect(page.locator(FINALS)).to_have_count(num_segments(server, room))
    assert set(page.locator("#finals .name").all_inner_texts()) == {"Ana"}
    assert WORDS in page.inner_text("#finals").lower()


def test_speakers_are_named_for_everybody(
    page: Page, server: Running, room: dict[str, Any]
) -> None:
    speak(server, room, "Desk", SPEECH, "&shared=1")
    look(page, server.http, room, "publish_token")
    page.locator("#finals button.name").first.click()
    page.fill("#name", "Ana <b>")
    page.click("#name-form [type=submit]")
    expect(page.locator("#finals .name").first).to_have_text("Ana <b>")
    state = call(server, "GET", f"/v1/rooms/{room['room']}", room["view_token"])
    assert "Ana <b>" in state["names"].values()
    page.locator("#finals button.name").first.click()
    page.fill("#name", "")
    page.click("#name-form [type=submit]")
    expect(page.locator("#finals .name").first).to_have_text("Speaker 1")


def test_speaker_is_made_one_with_another(
    page: Page, server: Running, room: dict[str, Any], tmp_path: Path
) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    speak(server, room, "Ana", SPEECH)
    look(page, server.http, room, "publish_token")
    page.locator("#finals button.name").first.click()
    expect(page.locator("#name")).to_be_visible()
    expect(page.get_by_label("The same person as")).to_be_hidden()  # there is nobody else
    page.click("#name-cancel")
    speak(server, room, "Phone", SPEECH)
    viewer = page.context.browser.new_page()
    look(viewer, server.http, room)
    page.locator("#finals button.name", has_text="Phone").first.click()
    choice = page.get_by_label("The same person as")
    expect(choice.locator("option")).to_have_text(["nobody else here", "Ana"])
    choice.select_option(label="Ana")
    expect(page.locator("#name")).to_be_disabled()
    page.screenshot(path=tmp_path / "same-as.png")
    box = choice.bounding_box()
    assert box["height"] >= 44
    assert box["x"] >= 0 and box["x"] + box["width"] <= 390
    page.click("#name-form [type=submit]")
    for reader in (page, viewer):
        expect(reader.locator("#finals .name", has_text="Phone")).to_have_count(0)
    speak(server, room, "Phone", SPEECH)
    for reader in (page, viewer):
        expect(reader.locator(FINALS)).to_have_count(num_segments(server, room))
        assert set(reader.locator("#finals .name").all_inner_texts()) == {"Ana"}


def test_speaker_who_is_the_other_already_is_told_to_be_so(
    page: Page, server: Running, room: dict[str, Any]
) -> None:
    speak(server, room, "Ana", SPEECH)
    speak(server, room, "Phone", SPEECH)
    look(page, server.http, room, "publish_token")
    page.locator("#finals button.name", has_text="Phone").first.click()
    page.get_by_label("The same person as").select_option(label="Ana")
    path = f"/v1/rooms/{room['room']}/speakers"  # somebody else is quicker
    call(server, "POST", path, room["publish_token"], speaker="Phone", same_as="Ana")
    expect(page.locator("#finals .name", has_text="Phone")).to_have_count(0)
    page.click("#name-form [type=submit]")
    expect(page.locator("#notices")).to_contain_text("The speaker was not changed.")


def test_large_text_is_read_across_a_room(
    page: Page, server: Running, room: dict[str, Any], tmp_path: Path
) -> None:
    speak(server, room, "Ana", SPEECH)
    look(page, server.http, room)
    page.click("#large")
    expect(page.locator(".top")).to_be_hidden()
    size = page.locator("#finals p").first.evaluate("(text) => getComputedStyle(text).fontSize")
    assert float(size.removesuffix("px")) >= 720 / 15
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.screenshot(path=tmp_path / "large.png")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=tmp_path / "large-phone.png")
    page.click("#large")
    expect(page.locator(".top")).to_be_visible()


def test_room_asks_for_a_token_that_fits(page: Page, server: Running, room: dict[str, Any]) -> None:
    speak(server, room, "Ana", SPEECH)
    page.goto(f"{server.http}/room.html?room={room['room']}&token=rv_of-another-room")
    page.fill("#key", room["view_token"])
    page.click("#key-form [type=submit]")
    page.locator(FINALS).first.wait_for()


def test_room_that_is_not_there_or_is_deleted_is_told(
    page: Page, server: Running, room: dict[str, Any]
) -> None:
    page.goto(f"{server.http}/room.html?room=000000000000&token={room['view_token']}")
    expect(page.locator("#notices")).to_contain_text("There is no such room")
    look(page, server.http, room)
    call(server, "DELETE", f"/v1/rooms/{room['room']}", room["publish_token"])
    expect(page.locator("#notices")).to_contain_text("The room has ended")
    expect(page.locator("#status")).to_have_text("Closed")
