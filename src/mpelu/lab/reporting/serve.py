"""`mpelu report --serve`: the report of experiments at work, on this machine alone."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.reporting.cache import Cache
from mpelu.lab.reporting.collect import collect
from mpelu.lab.reporting.page import embed, report_page

HOST = "127.0.0.1"


class Watcher:
    """The report of some folders as it is now; only what has changed is read again."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._cache = Cache()
        self._lock = threading.Lock()

    def now(self) -> dict[str, Any]:
        """What `collect` returns, with its version: a digest that changes when the content does."""
        with self._lock:
            collected = collect(self._folders, self._cache)
        timeless = {**collected, "made": None}
        digest = hashlib.sha256(json.dumps(timeless).encode()).hexdigest()
        return {**collected, "version": digest[:16]}


class Server(ThreadingHTTPServer):
    """Answers only requests made to 127.0.0.1 or localhost by that name and port."""

    daemon_threads = True

    def __init__(self, watcher: Watcher, port: int) -> None:
        self.watcher = watcher
        super().__init__((HOST, port), Handler)
        own = self.server_address[1]
        self.names = {f"{HOST}:{own}", f"localhost:{own}"}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page closed while it was being answered is no news for the terminal."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    """/ is the page, /version what a page compares, /data.json what it then draws."""

    server: Server
    server_version = "mpelu"
    sys_version = ""

    def do_GET(self) -> None:
        # A name of someone else's that resolves to 127.0.0.1 must not read the report.
        if self.headers.get("Host") not in self.server.names:
            self._answer(403, "text/plain", "expected a request to 127.0.0.1 or localhost\n")
            return
        if self.path not in ("/", "/version", "/data.json"):
            self._answer(404, "text/plain", "not found\n")
            return
        try:
            now = self.server.watcher.now()
        except UserError as error:
            self._answer(503, "text/plain", f"{error}\n")
            return
        if self.path == "/":
            self._answer(200, "text/html", report_page(now, live=True))
        elif self.path == "/version":
            self._answer(200, "application/json", embed({"version": now["version"]}))
        else:
            self._answer(200, "application/json", embed({**now, "live": True}))

    def _answer(self, status: int, kind: str, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """The terminal stays quiet: a page asks every two seconds."""


def make_server(folders: Sequence[Path], port: int) -> Server:
    """A server that is bound, not yet answering.

    Raises:
        UserError: if a folder doesn't exist or the port is taken.
    """
    watcher = Watcher(folders)
    watcher.now()
    try:
        return Server(watcher, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port: expected a free port, got {port}: {error}") from None
