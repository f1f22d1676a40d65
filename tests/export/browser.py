"""A headless Chromium driven over its DevTools pipe: real mouse clicks, the page's own errors, and what it fetched."""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
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
    "--window-size=1400,1200",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The browser's program, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Page:
    """One tab. `requests` are the URLs it asked for, `errors` what its script or its policy complained of."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive = send, receive
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._receive, 1 << 16)
            assert part, "the browser ended"
            self._rest += part
        line, self._rest = self._rest.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif message.get("method") == "Page.loadEventFired":
            self._loaded = True
        return message

    def open(self, path: Path) -> None:
        """Load a file and wait until it is there."""
        self._loaded = False
        self.call("Page.navigate", url=path.as_uri())
        while not self._loaded:
            self._read()

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, element: str) -> None:
        """Press and release the mouse in the middle of the element that an expression gives."""
        x, y = self.value(
            f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center', inline: 'center'}});"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, path: Path) -> None:
        """Write the whole page as a PNG."""
        import base64

        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """A tab of a browser of its own; the program reads its commands from descriptor 3 and answers on 4."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]

    def descriptors() -> None:
        os.dup2(high[0], 3)
        os.dup2(high[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=descriptors,
        close_fds=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for fd in (theirs_in, theirs_out, *high):
        os.close(fd)
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.kill()
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
