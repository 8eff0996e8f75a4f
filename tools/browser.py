"""Headless Chromium, driven through the protocol of chromedriver without any library."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = [
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
]


def missing() -> str:
    """The programs that aren't installed, or ''."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return " and ".join(absent)


class Browser:
    """One window. Scripts run in the page and return Python values."""

    def __init__(self, driver: str, session: str) -> None:
        self._session = f"{driver}/session/{session}"

    def open(self, address: str) -> None:
        _post(f"{self._session}/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """Runs the body of a function of `arguments` and returns its value; awaits a promise."""
        return _post(f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, seconds: float = 30) -> Any:
        """Runs a script until its value is true, and returns the value."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} s for: {script}")
            time.sleep(0.05)
        return value

    def command(self, name: str, **parameters: Any) -> Any:
        """Sends a command of the DevTools protocol."""
        return _post(f"{self._session}/goog/cdp/execute", {"cmd": name, "params": parameters})

    def press(self, selector: str, keys: str) -> None:
        """Types into an element."""
        found = _post(
            f"{self._session}/element", {"using": "css selector", "value": selector}
        ).values()
        _post(f"{self._session}/element/{next(iter(found))}/value", {"text": keys})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """New lines of the log `browser` (the console) or `performance` (DevTools events)."""
        lines: list[dict[str, Any]] = _post(f"{self._session}/se/log", {"type": kind})
        return lines

    def requested(self) -> list[str]:
        """URLs requested since the last call, except by the browser's own pages."""
        events = [json.loads(line["message"])["message"] for line in self.log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
            and not event["params"]["documentURL"].startswith(("chrome:", "chrome-untrusted:"))
        ]

    def look(self, width: int, *, dark: bool, height: int = 900) -> None:
        """Sets the size of the window and the preferred color scheme."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Saves the whole page, or the visible part, as PNG."""
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(taken["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """A new browser, closed at the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        session = None
        try:
            session = _start(driver, profile)
            yield Browser(driver, session)
        finally:
            if session is not None:
                _request("DELETE", f"{driver}/session/{session}", None)
            process.terminate()
            process.wait()


def _start(driver: str, profile: str) -> str:
    options = {
        "browserName": "chrome",
        "goog:chromeOptions": {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={profile}", "about:blank"],
        },
        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
    }
    for _ in range(200):
        try:
            answer = _post(f"{driver}/session", {"capabilities": {"alwaysMatch": options}})
            return str(answer["sessionId"])
        except urllib.error.HTTPError:
            raise
        except OSError:  # chromedriver isn't listening yet
            time.sleep(0.05)
    raise TimeoutError("chromedriver doesn't answer")


def _post(address: str, value: Any) -> Any:
    return _request("POST", address, json.dumps(value).encode())


def _request(method: str, address: str, body: bytes | None) -> Any:
    request = urllib.request.Request(
        address, body, {"Content-Type": "application/json"}, method=method
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=120) as answer:
            return json.loads(answer.read())["value"]
    except urllib.error.HTTPError as error:
        said = json.loads(error.read())["value"]
        raise RuntimeError(f"{said['error']}: {said['message']}") from None
