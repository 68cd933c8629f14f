"""Headless Chromium for tests, driven over its debugging pipe with the standard library alone.

Install it with ``apt-get install chromium`` (Debian) or name one with LPLD_CHROMIUM. Tests that need it skip
where there is none, and fail where LPLD_REQUIRE is set, as in `.ci/run`.
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.conftest import REQUIRED

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
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
PATIENCE = 120.0
"""Seconds for one answer; a busy machine starts Chromium slowly."""
KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Tab": 9, "Enter": 13}


def find_chromium() -> str:
    """Return the browser's path; skip the test (at import: the file), or fail where one is required."""
    wanted = os.environ.get("LPLD_CHROMIUM")
    found = shutil.which(wanted) if wanted else shutil.which("chromium") or shutil.which("chromium-browser")
    if found is not None:
        return found
    message = "no Chromium; install Debian's package 'chromium' or set LPLD_CHROMIUM"
    if REQUIRED:
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


class Browser:
    """One page in one browser. events: everything the page reported, oldest first."""

    def __init__(self, profile: Path) -> None:
        program = find_chromium()
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        # The pipe's ends have to be descriptors 3 and 4 there, which only a shell can arrange safely.
        line = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        words = ["bash", "-c", line, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            words,
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; events that arrive meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(PATIENCE)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _receive(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._in, 1 << 20) if ready else b""
            if not chunk:
                raise TimeoutError(f"Chromium did not answer (exit code {self._process.poll()})")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a file from disk and wait until it is there."""
        self.events.clear()
        self.resize(width, height, dark=dark)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(PATIENCE))

    def resize(self, width: int, height: int, *, dark: bool = False, media: str = "") -> None:
        """Set the window's size, light or dark, and screen or print."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def evaluate(self, expression: str) -> Any:
        """Return what a JavaScript expression gives, awaited, as JSON values."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{element}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"{element}.getBoundingClientRect().toJSON()")
        where = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1
            )

    def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def pdf(self) -> bytes:
        """Return the page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def complaints(self) -> list[str]:
        """Return console messages, log entries and errors of the page."""
        methods = ("Runtime.consoleAPICalled", "Log.entryAdded", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in methods]

    def requests(self) -> list[str]:
        """Return the addresses the page asked for, its own aside; data in the page is no request."""
        asked = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        urls = [params["request"]["url"] for params in asked if params.get("type") != "Document"]
        return [url for url in urls if not url.startswith("data:")]

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self.call("Browser.close")
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)
