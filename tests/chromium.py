"""Headless Chromium over its DevTools pipe: enough to load a page, use its keyboard, measure it and photograph it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One browser with one page."""

    def __init__(self, profile: Path) -> None:
        if BINARY is None:
            raise RuntimeError("no Chromium: install it")
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [BINARY, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]

        def pipes() -> None:
            high = os.dup(from_browser)  # the two must not overwrite each other on their way to 3 and 4
            os.dup2(to_browser, 3)
            os.dup2(high, 4)

        self._process = subprocess.Popen(
            command, preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in, self._rest, self._number = ours_out, ours_in, b"", 0
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(found["targetId"] for found in targets if found["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self("Page.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)

    def __call__(self, method: str, **params: Any) -> Any:
        """A DevTools command to the page."""
        return self._call(method, self._session, **params)

    def open(self, url: str, width: int, height: int, dark: bool = False) -> None:
        mobile = width < 500
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=url)
        self.settle()

    def settle(self) -> None:
        """Wait until the page is loaded."""
        time.sleep(0.2)
        for _ in range(100):
            if self.value("document.readyState") == "complete":
                return
            time.sleep(0.05)
        raise TimeoutError("the page did not load")

    def value(self, expression: str) -> Any:
        """The value of a script's expression in the page (the page's own policy does not bind the debugger)."""
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "char" else {}
            if kind != "char" or text:
                self("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def type(self, text: str) -> None:
        self("Input.insertText", text=text)

    def photograph(self, path: Path) -> None:
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        shot = self("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self._message(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self._in, 1 << 16)
            if not part:
                raise RuntimeError("Chromium ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        found: dict[str, Any] = json.loads(message)
        return found
