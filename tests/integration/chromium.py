"""Drives a headless Chromium over its DevTools protocol, through a pair of pipes: no port, no other package."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_LAUNCH = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
"""Chromium reads commands from descriptor 3 and writes answers to descriptor 4."""


def find() -> str | None:
    """The browser's program, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class BrowserError(Exception):
    """The browser answered with an error, or went away."""


class Page:
    """One page of a browser. Keeps what the page complained of, and every address that it asked for."""

    def __init__(self, browser: _Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, parameters, self)

    def open(self, url: str) -> None:
        """Go to an address and wait until it has loaded."""
        with self.loading():
            self.call("Page.navigate", url=url)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """What is done inside makes the page load another address; wait until it has."""
        self.loaded = False
        yield
        while not self.loaded:
            self._browser.read(self)

    def evaluate(self, expression: str) -> Any:
        """The JSON value of an expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise BrowserError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def device(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be a screen of this size, in a light or dark scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str, code: int) -> None:
        """Press and release a key; `code` is its Windows virtual key code."""
        held: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="rawKeyDown", **held)
        if key == "Enter":
            self.call("Input.dispatchKeyEvent", type="char", text="\r", **held)
        self.call("Input.dispatchKeyEvent", type="keyUp", **held)

    def type(self, text: str) -> None:
        """Put text in where the focus is."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Save the whole page as a picture."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def note(self, event: dict[str, Any]) -> None:
        """Take in an event."""
        name, parameters = event["method"], event["params"]
        if name == "Page.loadEventFired":
            self.loaded = True
        elif name == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif name == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif name == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(parameters["entry"]["text"])


class _Browser:
    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._buffer = b""
        self._number = 0

    def call(self, method: str, parameters: dict[str, Any], page: Page | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if page is not None:
            message["sessionId"] = page._session
        data = memoryview(json.dumps(message).encode() + b"\0")
        while data:
            data = data[os.write(self._commands, data) :]
        while True:
            answer = self.read(page)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def read(self, page: Page | None) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = self._answers.read(1 << 20)
            if not data:
                raise BrowserError("the browser ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        if page is not None and answer.get("sessionId") == page._session and "method" in answer:
            page.note(answer)
        return answer


@contextmanager
def browse(program: str) -> Iterator[Page]:
    """A page of a browser of its own, with a profile of its own; both are gone afterwards."""
    with TemporaryDirectory(prefix="chromium-") as profile:
        near, far = os.pipe(), os.pipe()
        # Away from 3 and 4, which the launcher overwrites.
        child = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (near[0], far[1])]
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _LAUNCH,
                *map(str, child),
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=child,
        )
        for descriptor in (near[0], far[1], *child):
            os.close(descriptor)
        try:
            browser = _Browser(near[1], far[0])
            target = browser.call("Target.createTarget", {"url": "about:blank"})["targetId"]
            attached = browser.call("Target.attachToTarget", {"targetId": target, "flatten": True})
            yield Page(browser, attached["sessionId"])
        finally:
            os.close(near[1])  # the browser ends when its pipe does
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
