"""The page for people, in a real browser: on a desk, on a phone, in the dark, and with a keyboard alone."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from engine.api.app import proof_app
from fixtures.synthetic import SyntheticProvider
from tests.integration.chromium import Page, browse, find
from tests.needs import missing_program
from verifiable.session.head import Head
from verifiable.session.receipt import Receipt

SHOTS = os.environ.get("VERIFIABLE_SHOTS")
"""A folder that keeps the photographs, for somebody to look at."""


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyntheticProvider]:
    found = SyntheticProvider(tmp_path_factory.mktemp("page"), name="Acme<b>&")
    for _ in range(40):
        found.answer("q", 2)
    found.publish()
    yield found
    found.close()


@pytest.fixture(scope="module")
def url(provider: SyntheticProvider) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(proof_app(provider), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    program = find()
    if program is None:
        missing_program("no Chromium: install the system package chromium")
    with browse(program) as page:
        yield page


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    folder = Path(SHOTS) if SHOTS else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (390, False), (320, True)])
def test_the_page_fits_and_reads(
    browser: Page, url: str, shots: Path, provider: SyntheticProvider, width: int, dark: bool
) -> None:
    browser.device(width, 800, dark=dark)
    browser.open(url)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width  # nothing sticks out to the side
    assert browser.evaluate("document.title").startswith("Acme<b>&")  # escaped: shown as it is written
    assert browser.evaluate("document.querySelectorAll('main section').length") == 4
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 20
    assert browser.evaluate("getComputedStyle(document.body).maxWidth") == "896px"  # the style sheet passed its policy
    luminance = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert luminance == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    newest = provider.store.sessions(1)[0][1].session.hex()
    assert newest in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.querySelectorAll('script').length") == 0
    shot = shots / f"page-{width}-{'dark' if dark else 'light'}.png"
    browser.screenshot(shot)
    assert shot.stat().st_size > 10_000


def test_contrast_is_enough(browser: Page, url: str) -> None:
    """WCAG 2.2 AA: 4.5 to 1 for text, in both colour schemes."""
    script = """(() => {
      const lum = (c) => { const v = c.match(/[0-9.]+/g).slice(0, 3).map((x) => x / 255)
        .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
      const back = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor;
        if (!/, 0\\)$/.test(c)) return c; e = e.parentElement } return 'rgb(255,255,255)' };
      return Math.min(...[...document.querySelectorAll('p,dt,dd,td,th,a,code,label,button,caption,span')].map((e) => {
        const a = lum(getComputedStyle(e).color), b = lum(back(e));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) })) })()"""
    for dark in (False, True):
        browser.device(1200, 800, dark=dark)
        browser.open(url)
        assert browser.evaluate(script) >= 4.5


def test_a_receipt_is_looked_up_with_the_keyboard_alone(
    browser: Page, url: str, provider: SyntheticProvider, shots: Path
) -> None:
    receipt = provider.answer("mine", 3)
    provider.publish()
    head = Head.peek(Receipt.parse(receipt).head)
    browser.device(390, 800)
    browser.open(url)
    order = []
    for _ in range(3):
        browser.press("Tab", 9)
        order.append(browser.evaluate("document.activeElement.className || document.activeElement.tagName"))
    assert order == ["skip", "TEXTAREA", "BUTTON"]
    browser.evaluate("document.querySelector('textarea').focus()")
    browser.type(base64.urlsafe_b64encode(receipt).rstrip(b"=").decode())
    browser.press("Tab", 9)
    with browser.loading():
        browser.press("Enter", 13)
    text = browser.evaluate("document.querySelector('[role=status]').innerText")
    assert "genuine" in text
    assert head.session.hex() in text
    assert f"entry {provider.store.index_of(head.session, head.size)} of" in text
    assert browser.evaluate("document.querySelector('textarea').value") == ""  # a receipt is a key: not written back
    browser.screenshot(shots / "lookup-390.png")


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("0" * 32, "no signed head"),
        ("hello", "neither"),
        ("<script>alert(1)</script>", "neither"),
        ("QUJD", "not one of this provider"),
        ("x" * 100_000, "not one of this provider"),
    ],
)
def test_what_is_not_there_is_said_to_be_not_there(url: str, what: str, says: str) -> None:
    answer = httpx.post(f"{url}/lookup", data={"what": what})
    assert answer.status_code == 200
    assert says in answer.text
    assert "<script" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("body", [b"", b"other=1", b"what=1&what=2", b"\xff\xfe", b"a" * (3 << 20)])
def test_forms_that_no_page_sends_are_refused(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert httpx.post(f"{url}/lookup", content=body, headers=headers).status_code == 400


def test_a_changed_receipt_is_told_from_a_genuine_one(url: str, provider: SyntheticProvider) -> None:
    receipt = bytearray(provider.answer("mine", 3))
    receipt[60] ^= 1
    answer = httpx.post(f"{url}/lookup", data={"what": base64.b64encode(receipt).decode()})
    assert "not one of this provider" in answer.text
    assert "genuine" not in answer.text


def test_the_browser_verifier_is_served_and_checks_a_receipt(
    browser: Page, url: str, provider: SyntheticProvider, shots: Path
) -> None:
    receipt = provider.answer("checked in a browser", 3)
    pasted = base64.urlsafe_b64encode(receipt).rstrip(b"=").decode()
    for key, passes in ((provider.keys.provider.public.vkey(), True), (provider.keys.session.public.vkey(), False)):
        browser.device(1000, 1400)
        browser.open(f"{url}/verify")
        browser.evaluate(f"document.querySelector('#pasted').value = {pasted!r}")
        browser.evaluate(f"document.querySelector('#trusted').value = {key!r}")
        browser.evaluate("document.querySelector('#form').requestSubmit()")
        deadline = time.monotonic() + 20
        while not (text := browser.evaluate("document.querySelector('#result').innerText")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        browser.screenshot(shots / f"verify-{passes}.png")
        assert ("not trusted" in text) is not passes, text
        assert (provider.keys.provider.public.name in text) is passes
