"""Headless Chromium for tests: open pages, press keys, and keep all console messages.

It is driven through a pipe by NUL-terminated messages of the DevTools protocol. One thread at a time.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.optional import without
from tests.waiting import wait_until

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason=without("chromium"))
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-default-apps", "--disable-dev-shm-usage", "--disable-extensions", "--disable-sync", "--hide-scrollbars",
    "--metrics-recording-only", "--mute-audio", "--no-first-run", "--no-sandbox", "--remote-debugging-pipe",
)
TIMEOUT_SECONDS = 60.0
KEYS = {
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "PageUp": 33,
    "PageDown": 34, "Enter": 13, "Tab": 9, " ": 32, "/": 191, "l": 76, "n": 78, "p": 80,
}
TEXTS = {" ": " ", "Enter": "\r", "/": "/", "l": "l", "n": "n", "p": "p"}


class NotDone(RuntimeError):
    """The browser refused a command: a page being closed has no answer."""


class Browser:
    """One page of a browser."""

    def __init__(self, writes: int, reads: int) -> None:
        self.complaints: list[str] = []
        """Messages of the console since the page was opened, uncaught errors among them."""
        self.requested: list[str] = []
        """The addresses that were requested."""
        self._writes, self._reads = writes, reads
        self._buffer = bytearray()
        self._number = 0
        self._session = ""
        self._loaded = set[str]()
        (target,) = [one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        found = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)
        self.resize(1200, 900)

    def open(self, place: Path | str) -> None:
        """Open a page, and wait until it and its resources are loaded."""
        self._navigate("about:blank")  # or a page that differs in its fragment only would not be loaded again
        self.complaints.clear()
        self.requested.clear()
        self._navigate(place.as_uri() if isinstance(place, Path) else place)

    def evaluate(self, expression: str, **where: Any) -> Any:
        """Return the value of an expression, as JSON. Promises are awaited."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, **where)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def evaluate_in_frame(self, number: int, expression: str) -> Any:
        """Return the value of an expression in a frame of the page, whose document scripts of the page cannot reach."""
        frame = self._ask("Page.getFrameTree")["frameTree"]["childFrames"][number]["frame"]["id"]
        world = self._ask("Page.createIsolatedWorld", frameId=frame)["executionContextId"]
        return self.evaluate(expression, contextId=world)

    def wait_for(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""

        def value() -> Any:
            with suppress(NotDone):
                return self.evaluate(expression)
            return None

        return wait_until(value, TIMEOUT_SECONDS, expression)

    def press(self, key: str) -> None:
        code = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        kind = {"type": "keyDown", "text": TEXTS[key]} if key in TEXTS else {"type": "rawKeyDown"}
        self._ask("Input.dispatchKeyEvent", **kind, **code)
        self._ask("Input.dispatchKeyEvent", type="keyUp", **code)

    def write(self, text: str) -> None:
        self._ask("Input.insertText", text=text)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def resize(self, width: int, height: int) -> None:
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Set the preferred color scheme, ``light`` or ``dark``."""
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self) -> bytes:
        """Return a PNG of the visible part."""
        return base64.b64decode(self._ask("Page.captureScreenshot", format="png")["data"])

    def _navigate(self, address: str) -> None:
        self._loaded.clear()
        found = self._ask("Page.navigate", url=address)
        assert "errorText" not in found, found
        self._wait_until(lambda: found["loaderId"] in self._loaded)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        sent = memoryview(json.dumps(message).encode() + b"\0")
        while sent:
            sent = sent[os.write(self._writes, sent) :]
        answers: list[dict[str, Any]] = []
        self._wait_until(
            lambda: bool(answers), lambda found: answers.append(found) if found.get("id") == self._number else None,
        )
        if "error" in answers[0]:
            raise NotDone(f"{method}: {answers[0]['error']}")
        result: dict[str, Any] = answers[0]["result"]
        return result

    def _wait_until(
        self, is_done: Callable[[], bool], each: Callable[[dict[str, Any]], object] = lambda message: None,
    ) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while not is_done():
            message = self._next(end)
            each(message)
            self._note(message)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reads], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            read = os.read(self._reads, 1 << 20)
            assert read, "Chromium has ended"
            self._buffer += read
        message, _, rest = bytes(self._buffer).partition(b"\0")
        self._buffer = bytearray(rest)
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        match message.get("method"):
            case "Page.lifecycleEvent" if told["name"] == "load":
                self._loaded.add(told["loaderId"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(told["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(told["args"]))
            case "Log.entryAdded":
                self.complaints.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))
            case "Network.requestWillBeSent":
                self.requested.append(told["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Run a browser with its profile in a folder; it ends with the context."""
    assert PROGRAM is not None
    folder.mkdir(parents=True, exist_ok=True)
    pipes = [os.pipe() for _ in range(2)]
    # Clear of the numbers that the descriptors get in the new process.
    high = [tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe) for pipe in pipes]
    for end in (*pipes[0], *pipes[1]):
        os.close(end)
    (theirs_in, ours_out), (ours_in, theirs_out) = high
    words = [PROGRAM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    environment = os.environ | {"HOME": str(folder)}
    silent = os.open(os.devnull, os.O_RDWR)
    process = os.posix_spawn(PROGRAM, words, environment, setsid=True, file_actions=[
        *((os.POSIX_SPAWN_DUP2, silent, number) for number in range(3)),
        (os.POSIX_SPAWN_DUP2, theirs_in, 3), (os.POSIX_SPAWN_DUP2, theirs_out, 4),
    ])
    for end in (silent, theirs_in, theirs_out):
        os.close(end)
    try:
        yield Browser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
