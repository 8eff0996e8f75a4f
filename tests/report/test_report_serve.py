"""`mpelu report --serve`: this machine alone, and up to date."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_runs import write_run

from mpelu.lab.reporting import serve
from mpelu.lab.reporting.serve import ReportServer, make_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReportServer]:
    write_run(tmp_path / "runs" / "going", epochs=2, planned=9, state="running")
    with make_server([tmp_path / "runs"], 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ReportServer, path: str, host: str | None = None) -> tuple[int, str]:
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_listens_on_this_machine_alone(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_page_asks_its_own_server_only(server: ReportServer) -> None:
    status, page = ask(server, "/")
    assert status == 200
    assert "connect-src 'self'" in page


@pytest.mark.parametrize("host", ["elsewhere.example", "127.0.0.1", "127.0.0.1:1", ""])
def test_other_names_are_refused(server: ReportServer, host: str) -> None:
    for path in ("/", "/data.json", "/version"):
        status, body = ask(server, path, host or "x")
        assert status == 403
        assert "going" not in body


@pytest.mark.parametrize("path", ["/../runs/going/config.json", "/cache.json", "/index.html"])
def test_serves_no_files(server: ReportServer, path: str) -> None:
    assert ask(server, path)[0] == 404


def connect(server: ReportServer, text: str = "") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=30)
    connection.sendall(text.encode())
    return connection


@pytest.mark.parametrize("other", ["elsewhere.example", "same"])
def test_two_hosts_are_refused(server: ReportServer, other: str) -> None:
    own = f"127.0.0.1:{server.server_address[1]}"
    hosts = f"Host: {own}\r\nHost: {own if other == 'same' else other}\r\n"
    with connect(server, f"GET / HTTP/1.1\r\n{hosts}\r\n") as connection:
        assert connection.recv(100).startswith(b"HTTP/1.0 403 ")


def test_idle_connections_are_bounded_and_dropped(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "PATIENCE", 1.0)
    before = threading.active_count()
    half = "GET / HTTP/1.1\r\nHost: "
    idle = [connect(server, half) for _ in range(serve.MOST_CONNECTIONS + 8)]
    limit = before + serve.MOST_CONNECTIONS
    for _ in range(20):
        assert threading.active_count() <= limit
        time.sleep(0.01)
    monkeypatch.setattr(serve, "PATIENCE", 0.1)
    end = time.monotonic() + 30
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.05)
    assert threading.active_count() == before
    assert ask(server, "/version")[0] == 200
    for connection in idle:
        connection.close()


def test_version_changes_with_the_runs_only(server: ReportServer, tmp_path: Path) -> None:
    before = ask(server, "/version")
    assert ask(server, "/version") == before
    status = tmp_path / "runs" / "going" / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "step": 1234}))
    after = ask(server, "/version")
    assert after != before
    data = json.loads(ask(server, "/data.json")[1])
    assert data["runs"][0]["step"] == 1234
    assert json.loads(after[1])["version"] == data["version"]


def test_a_folder_without_runs_may_get_some(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with make_server([tmp_path / "runs"], 0) as server:
        assert server.report.now()["runs"] == []
        write_run(tmp_path / "runs" / "one", epochs=1)
        assert len(server.report.now()["runs"]) == 1


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ends_quietly_at_ctrl_c(tmp_path: Path) -> None:
    write_run(tmp_path / "run", epochs=1)
    program = "import sys; from mpelu.lab.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "report", str(tmp_path), "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
