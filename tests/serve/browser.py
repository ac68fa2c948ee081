"""A Chromium that is driven over a pipe by the DevTools protocol, for pages that keep a connection open."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


class Tab:
    """A tab. `complaints`: messages of the console that are not information, and errors of scripts."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer = write, read, b""
        self._last_id, self._session = 0, ""
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        """Opens a page and waits until its scripts have run once."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        earlier = self.evaluate("performance.timeOrigin")
        self._call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && performance.timeOrigin !== {earlier}")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        result = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str, limit_s: float = 30) -> None:
        """Waits until an expression is true; it may fail while a page is being replaced."""
        end = time.monotonic() + limit_s
        while not self.evaluate(f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"):
            assert time.monotonic() < end, f"not true within {limit_s:g} s: {expression}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Writes the whole page as a PNG file."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                # The page that was asked has been replaced by the next one.
                if "navigated" in answer.get("error", {}).get("message", ""):
                    return {"result": {}}
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["entry"]))


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A browser with its profile in `folder`, which ends with the context."""
    (to_read, to_write), (from_read, from_write) = os.pipe(), os.pipe()
    command = [
        str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--remote-debugging-pipe", f"--user-data-dir={folder}",
    ]  # fmt: skip

    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command],
        pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read)
    os.close(from_write)
    try:
        yield Tab(to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        process.terminate()
        process.wait(20)
