"""A live report: a server for this machine only, whose page follows the runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.reporting.collection import Cache, collect
from mpelu.lab.reporting.page import embed, report_page

HOST = "127.0.0.1"
MOST_CONNECTIONS = 32
"""Connections at a time; more are closed at once."""
PATIENCE = 10.0
"""Seconds in which a connection has to send its request."""


class LiveReport:
    """The current report of some folders. Only runs that have changed are read again."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._cache = Cache()
        self._lock = threading.Lock()

    def now(self) -> dict[str, Any]:
        """The return value of `collect`, with a version that changes when the content does."""
        with self._lock:
            collected = collect(self._folders, self._cache)
        timeless = {**collected, "made": None}
        digest = hashlib.sha256(json.dumps(timeless).encode()).hexdigest()
        return {**collected, "version": digest[:16]}


class ReportServer(ThreadingHTTPServer):
    """Answers only requests addressed to 127.0.0.1 or localhost with its port."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report = report
        self.waiting: dict[socket.socket, float] = {}
        """Connections that haven't sent a request, with the time at which they began."""
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__((HOST, port), _Handler)
        own = self.server_address[1]
        self.names = {f"{HOST}:{own}", f"localhost:{own}"}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread of its own, if there is room for one more."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self.waiting[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.waiting.pop(request, None)
            self._room.release()

    def service_actions(self) -> None:
        """Ends connections that wait too long; called twice a second."""
        for request, began in list(self.waiting.items()):
            if time.monotonic() - began > PATIENCE:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # its thread reads the end and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores pages that were closed before their answer was complete."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    """Serves / (the page), /version (which a page polls) and /data.json (what it then draws)."""

    server: ReportServer
    timeout = 3 * PATIENCE  # also of an answer that nobody reads
    server_version = "mpelu"
    sys_version = ""

    def do_GET(self) -> None:
        self.server.waiting.pop(self.connection, None)
        # Without this check, a foreign name that resolves to 127.0.0.1 could read the report.
        if self.headers.get_all("Host", []) not in ([name] for name in self.server.names):
            self._answer(403, "text/plain", "expected a request to 127.0.0.1 or localhost\n")
            return
        if self.path not in ("/", "/version", "/data.json"):
            self._answer(404, "text/plain", "not found\n")
            return
        try:
            now = self.server.report.now()
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
        """Logs nothing: a page sends a request every two seconds."""


def make_server(folders: Sequence[Path], port: int) -> ReportServer:
    """A server that is bound to a port; call `serve_forever` to answer requests.

    Args:
        folders: as in `write_report`; they may be empty.
        port: the port, or 0 for any free port.

    Raises:
        UserError: if a folder doesn't exist or the port is taken.
    """
    report = LiveReport(folders)
    report.now()
    try:
        return ReportServer(report, port)
    except (OSError, OverflowError) as error:
        raise UserError(f"expected a free port, got {port}: {error}", field="port") from None
