"""The caption page in a real browser: it hears a file through its microphone and shows the text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.browser import (
    CHROMIUM,
    MID_SPEECH,
    launch_options,
    wait_until_recorded,
    write_speech,
)
from support.clips import load_clip
from support.realtime import PATIENCE_S, Running, make_backend, running

from moss_stream.model.checkpoint import Model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
Page, WebSocketRoute, expect = playwright.Page, playwright.WebSocketRoute, playwright.expect

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")

WORDS = "for that"
"""The end of what is said: the browser's gain makes the rest hard for the small checkpoint."""
FINALS = "#finals .final"
PATIENCE_MS = PATIENCE_S * 1000


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
def page(server: Running, speech: Path, tmp_path: Path) -> Iterator[Page]:
    """The page of the server, in a browser whose microphone hears the speech once."""
    errors: list[str] = []
    with playwright.sync_playwright() as api:
        browser = api.chromium.launch(executable_path=CHROMIUM, args=launch_options(speech))
        page = browser.new_page(viewport={"width": 375, "height": 812})
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server.http)
        yield page
        page.screenshot(path=tmp_path / "page.png")
        browser.close()
    assert errors == []
    assert server.sessions_end()


def stop(page: Page) -> list[str]:
    """Stop the recording and wait for its last words; returns the captions."""
    page.click("#stop")
    expect(page.locator("#status")).to_have_text("Ready", timeout=PATIENCE_MS)
    return [text.strip() for text in page.locator(FINALS).all_inner_texts()]


def test_page_shows_what_is_said(page: Page) -> None:
    page.click("#start")
    expect(page.locator("#status")).to_have_text("Listening", timeout=PATIENCE_MS)
    page.locator("#live .turn").first.wait_for()
    page.locator(FINALS).first.wait_for()
    captions = stop(page)
    assert WORDS in " ".join(captions).lower()
    assert page.locator("#finals .name").first.inner_text() == "Speaker 1"


def test_page_saves_the_captions_as_subtitles(page: Page) -> None:
    page.click("#start")
    page.locator(FINALS).first.wait_for()
    stop(page)
    page.click("#downloads summary")
    with page.expect_download() as download:
        page.click("[data-format=srt]")
    number, times, words = download.value.path().read_text().splitlines()[:3]
    assert number == "1"
    assert " --> " in times
    assert words.startswith("S01: ")
    assert WORDS in words.lower()


def test_page_loses_no_words_when_its_socket_is_cut(page: Page, server: Running) -> None:
    links: list[tuple[WebSocketRoute, WebSocketRoute]] = []
    page.route_web_socket(
        "**/v1/realtime*", lambda link: links.append((link, link.connect_to_server()))
    )
    page.click("#start")
    wait_until_recorded(page, MID_SPEECH)
    link, upstream = links[0]
    upstream.close(code=4000)
    link.close(code=4000)
    page.locator(FINALS).first.wait_for()
    captions = stop(page)
    assert len(links) == 2
    assert "resume=" in links[1][0].url
    assert WORDS in " ".join(captions).lower()
    assert "new session" not in page.inner_text("#notices")


def test_page_goes_on_after_a_pause(page: Page) -> None:
    elapsed = page.locator("#elapsed")
    page.click("#start")
    expect(page.locator("#status")).to_have_text("Listening", timeout=PATIENCE_MS)
    page.click("#pause")
    expect(page.locator("#status")).to_have_text("Paused")
    before = elapsed.inner_text()
    page.click("#pause")
    expect(elapsed).not_to_have_text(before, timeout=PATIENCE_MS)
    stop(page)
