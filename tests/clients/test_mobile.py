"""The caption page on a phone: installed, without a network, and with one that fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.browser import (
    AFTER_SPEECH,
    CHROMIUM,
    MID_SPEECH,
    launch_options,
    wait_until_recorded,
    write_speech,
)
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running, make_backend, running
from support.relay import Relay, relay

from moss_stream.model.checkpoint import Model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Page, Browser, expect = playwright.Page, playwright.Browser, playwright.expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}
WORDS = ("right you can see", "built in")
"""From the second half of the speech; the browser's gain makes the rest hard for the small
checkpoint."""
FINALS = "#finals .final"
PATIENCE_MS = PATIENCE_S * 1000
MICROPHONES = """
    const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    window.microphones = [];
    navigator.mediaDevices.getUserMedia = async (constraints) => {
        const stream = await open(constraints);
        window.microphones.push(stream.getAudioTracks()[0]);
        return stream;
    };
    window.contexts = [];
    const Context = window.AudioContext;
    window.AudioContext = class extends Context {
        constructor(...options) { super(...options); window.contexts.push(this); }
    };
"""
"""Remembers what the page opens, so that a test can do to it what a phone does."""
KEPT = """async () => {
    const stores = await Promise.all((await caches.keys()).map((name) => caches.open(name)));
    const kept = await Promise.all(stores.map((store) => store.keys()));
    return kept.flat().map(({ url }) => new URL(url).pathname);
}"""


@pytest.fixture(scope="module")
def server(mini: Model) -> Iterator[Running]:
    with make_backend(mini) as backend, running(backend, preset="captions") as server:
        yield server


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven seconds of speech."""
    path = tmp_path_factory.mktemp("speech") / "speech.wav"
    return write_speech(path, load_clip("mix_duo_002")[: 16_000 * 7])


@pytest.fixture
def network(server: Running) -> Iterator[Relay]:
    with relay(server.port) as network:
        yield network


@pytest.fixture
def page(server: Running, network: Relay, speech: Path, tmp_path: Path) -> Iterator[Page]:
    """The page on a phone, over a network that can fail."""
    errors: list[str] = []
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=CHROMIUM, args=launch_options(speech))
        page = browser.new_context(**PHONE).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.add_init_script(MICROPHONES)
        page.goto(network.http)
        yield page
        page.screenshot(path=tmp_path / "phone.png")
        browser.close()
    assert errors == []
    assert server.sessions_end()


def start(page: Page, until: str = MID_SPEECH) -> list[Any]:
    """Record for a while; returns the sockets, which grow."""
    sockets: list[Any] = []
    page.on("websocket", lambda socket: sockets.append(socket))
    page.tap("#start")
    wait_until_recorded(page, until)
    return sockets


def stop(page: Page) -> None:
    """Stop and wait for the last words."""
    page.tap("#stop")
    expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)


def captions(page: Page) -> str:
    """Stop when the speech is over; returns what was said."""
    wait_until_recorded(page, AFTER_SPEECH)
    stop(page)
    return " ".join(page.locator(FINALS).all_inner_texts()).lower()


def check_words(said: str) -> None:
    assert [words for words in WORDS if words not in said] == []


def check_nothing_is_lost(page: Page, sockets: list[Any]) -> None:
    check_words(captions(page))
    assert len(sockets) > 1
    assert all("resume=" in socket.url for socket in sockets[1:])
    notices = page.inner_text("#notices")
    assert "lost" not in notices and "new session" not in notices


def test_phone_shows_captions_in_its_width(page: Page) -> None:
    start(page)
    check_words(captions(page))
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["viewport"]["width"]
    size = page.locator("#finals p").first.evaluate("(text) => getComputedStyle(text).fontSize")
    assert float(size.removesuffix("px")) >= 18


def test_page_can_be_installed(network: Relay, tmp_path: Path, speech: Path) -> None:
    with playwright.sync_playwright() as api:
        # The other contexts are private ones, from which nothing is installed.
        context = api.chromium.launch_persistent_context(
            tmp_path, executable_path=CHROMIUM, args=launch_options(speech)
        )
        page = context.new_page()
        page.goto(network.http)
        page.evaluate("navigator.serviceWorker.ready")
        inspector = context.new_cdp_session(page)
        assert inspector.send("Page.getInstallabilityErrors") == {"installabilityErrors": []}
        assert inspector.send("Page.getAppManifest")["errors"] == []
        context.close()


def test_page_opens_without_a_network(page: Page, network: Relay) -> None:
    page.evaluate("navigator.serviceWorker.ready")
    network.go_away()
    page.context.set_offline(True)
    page.goto(f"{network.http}/?token=sk-of-nobody")
    expect(page.locator("h1")).to_have_text("Live captions")
    expect(page.locator("#start")).to_be_visible()
    kept = page.evaluate(KEPT)
    assert {"/", "/room.html", "/manifest.webmanifest", "/icon-192.png"} <= set(kept)
    assert [path for path in kept if path.startswith("/v1") or "token" in path] == []
    assert page.evaluate("fetch('v1/models').then(() => 'answered', () => 'failed')") == "failed"


def test_page_is_the_one_of_the_server_when_there_is_a_network(page: Page) -> None:
    page.evaluate("navigator.serviceWorker.ready")
    with page.expect_response(lambda response: response.url.endswith("/")) as answer:
        page.reload()
    assert answer.value.from_service_worker
    with page.expect_response("**/v1/models") as answer:
        page.reload()
    assert not answer.value.from_service_worker


def test_page_keeps_what_is_said_while_it_is_offline(page: Page, network: Relay) -> None:
    sockets = start(page)
    network.go_away()
    page.context.set_offline(True)
    expect(page.locator("#status")).to_have_text("Reconnecting")
    expect(page.locator("#lag")).to_have_text(re.compile(r"[1-9]\d* s kept"))
    network.come_back()
    page.context.set_offline(False)
    expect(page.locator("#status")).to_have_text("Listening", timeout=PATIENCE_MS)
    check_nothing_is_lost(page, sockets)


def test_page_loses_nothing_when_its_sockets_are_killed(page: Page, network: Relay) -> None:
    sockets = start(page)
    for _ in range(3):
        with page.expect_event("websocket"):
            network.cut()
        expect(page.locator("#status")).to_have_text("Listening", timeout=PATIENCE_MS)
    check_nothing_is_lost(page, sockets)
    assert len(sockets) >= 4


def test_page_leaves_a_socket_that_hangs_when_the_network_changes(
    page: Page, network: Relay
) -> None:
    sockets = start(page)
    network.strand()
    with page.expect_event("websocket"):
        page.evaluate("window.dispatchEvent(new Event('online'))")
    expect(page.locator("#status")).to_have_text("Listening", timeout=PATIENCE_MS)
    check_nothing_is_lost(page, sockets)


def test_page_takes_another_microphone_when_its_own_ends(page: Page) -> None:
    start(page, "0:01")
    page.evaluate("microphones[0].stop(); microphones[0].dispatchEvent(new Event('ended'))")
    page.wait_for_function("microphones.length === 2")
    before = page.inner_text("#elapsed")
    expect(page.locator("#elapsed")).not_to_have_text(before, timeout=PATIENCE_MS)
    expect(page.locator("#status")).to_have_text("Listening")
    stop(page)


def test_page_says_when_the_system_mutes_it(page: Page) -> None:
    start(page, "0:01")
    page.evaluate("microphones[0].dispatchEvent(new Event('mute'))")
    expect(page.locator("#status")).to_have_text("Not hearing")
    expect(page.locator("#notices")).to_contain_text("muted")
    page.evaluate("microphones[0].dispatchEvent(new Event('unmute'))")
    expect(page.locator("#status")).to_have_text("Listening")
    expect(page.locator(".notice")).to_have_count(0)
    stop(page)


def test_page_goes_on_when_a_call_is_over(page: Page) -> None:
    start(page, "0:01")
    page.evaluate("contexts[0].suspend()")
    expect(page.locator("#status")).to_have_text("Not hearing")
    page.get_by_role("button", name="Try again").tap()
    expect(page.locator("#status")).to_have_text("Listening")
    expect(page.locator(".notice")).to_have_count(0)
    before = page.inner_text("#elapsed")
    expect(page.locator("#elapsed")).not_to_have_text(before, timeout=PATIENCE_MS)
    stop(page)
