"""Headless Chromium, spoken to over a pipe: what a page looks like, asks for and complains of."""

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

import pytest

ANSWER_S = 60.0


class Browser:
    """A page that can be opened at several widths; DevTools messages, each ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if program is None:
            pytest.skip("there is no chromium")
        read_in, self._out = os.pipe()
        self._in, write_out = os.pipe()

        def wire() -> None:  # Chromium reads from descriptor 3 and writes to 4
            os.dup2(read_in, 50)
            os.dup2(write_out, 51)
            os.dup2(50, 3)
            os.dup2(51, 4)

        options = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
        self._process = subprocess.Popen(
            [program, *options, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_in)
        os.close(write_out)
        self._number, self._buffer, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command's result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda m: m.get("id") == self._number)
        assert "error" not in answer, answer
        return dict(answer.get("result", {}))

    def open(self, url: str, width: int, height: int = 900) -> None:
        """Load a page and wait until it is there."""
        # Not as a telephone: that would widen the page's view to whatever sticks out of it.
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._wait(lambda m: m.get("method") == "Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page; a promise is waited for."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def complaints(self) -> list[str]:
        """Console errors and exceptions since the page was opened."""
        found = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] == "error":
                found.append(str(params["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses the page has asked for, itself the first."""
        sent = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def _wait(self, is_wanted: Any) -> dict[str, Any]:
        until_s = time.monotonic() + ANSWER_S
        while True:
            while b"\0" in self._buffer:
                raw, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(raw)
                if "method" in message:
                    self.events.append(message)
                if is_wanted(message):
                    return dict(message)
            ready, _, _ = select.select([self._in], [], [], until_s - time.monotonic())
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
