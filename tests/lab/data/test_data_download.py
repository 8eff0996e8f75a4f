"""Downloads from a server on this machine that behaves well, badly or not at all."""

import errno
import logging
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import data_files
import pytest
import torch
from refusals import refusal

from mpelu.lab.config import Config
from mpelu.lab.data import download, load
from mpelu.lab.errors import UserError
from mpelu.lab.training import display

CONTENT = bytes(range(256)) * 4000
MD5 = data_files.md5(CONTENT)


class Server(ThreadingHTTPServer):
    """Serves `content` at every path under /files/ and notes the ranges it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.ranges: list[str | None] = []
        self.ignores_range = False
        self.wrong_range = False
        self.says_length = True
        self.length = ""
        """Said in place of the true length."""
        self.drops_after: list[int] = []
        """Bytes after which the next connections end."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/files"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.ranges.append(self.headers["Range"])
        if not self.path.startswith("/files/"):
            self.send_error(404)
            return
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        if asked and not server.ignores_range:
            start = int(asked[1])
            if start >= len(server.content):
                self.send_error(416)
                return
            self.send_response(206)
            told = start + 1 if server.wrong_range else start
            size = len(server.content)
            self.send_header("Content-Range", f"bytes {told}-{size - 1}/{size}")
        else:
            self.send_response(200)
        rest = server.content[start:]
        if server.says_length:
            self.send_header("Content-Length", server.length or str(len(rest)))
        self.end_headers()
        if server.drops_after:
            rest = rest[: server.drops_after.pop(0)]
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def fetch(
    server: Server, folder: Path, md5: str = MD5, progress: download.DownloadProgress | None = None
) -> Path:
    path = folder / "new" / "file.bin"
    download.fetch(
        f"{server.address}/file.bin", path, md5=md5, size=len(CONTENT), progress=progress
    )
    return path


def part(folder: Path, content: bytes) -> Path:
    path = folder / "new" / "file.bin.part"
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def only(path: Path) -> bool:
    return [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("says_length", [True, False])
def test_whole(server: Server, tmp_path: Path, says_length: bool) -> None:
    server.says_length = says_length
    path = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert only(path)


@pytest.mark.parametrize("have", [1, 1000, len(CONTENT) - 1])
def test_goes_on_where_it_stopped(server: Server, tmp_path: Path, have: int) -> None:
    part(tmp_path, CONTENT[:have])
    path = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [f"bytes={have}-"]
    assert only(path)


@pytest.mark.parametrize("flaw", ["ignores_range", "wrong_range"])
def test_server_that_does_not_continue(server: Server, tmp_path: Path, flaw: str) -> None:
    setattr(server, flaw, True)
    part(tmp_path, CONTENT[:1000])
    path = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert only(path)


@pytest.mark.parametrize(
    "stale", [b"\1" * 1000, b"\1" * len(CONTENT), b"\1" * (len(CONTENT) + 7), CONTENT + b"more"]
)
def test_stale_part(server: Server, tmp_path: Path, stale: bytes) -> None:
    part(tmp_path, stale)
    path = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert only(path)


def test_part_that_is_already_whole(server: Server, tmp_path: Path) -> None:
    part(tmp_path, CONTENT)
    assert fetch(server, tmp_path).read_bytes() == CONTENT


def test_connection_dropped_on_the_way(server: Server, tmp_path: Path) -> None:
    server.drops_after = [300_000, 0, 400_000]
    path = fetch(server, tmp_path)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", "bytes=300000-", "bytes=700000-"]


def test_connection_dropped_again_and_again(server: Server, tmp_path: Path) -> None:
    server.drops_after = [300_000] + [0] * download.TRIES
    with pytest.raises(UserError, match="the 300,000 bytes received so far are kept"):
        fetch(server, tmp_path)
    assert (tmp_path / "new" / "file.bin.part").stat().st_size == 300_000
    assert not (tmp_path / "new" / "file.bin").exists()
    # The next call goes on.
    assert fetch(server, tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=300000-"


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        fetch(server, tmp_path, md5="0" * 32)
    assert f"expected MD5 {'0' * 32}, got {MD5}" in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_not_found(server: Server, tmp_path: Path) -> None:
    url = server.address.replace("/files", "/elsewhere") + "/file.bin"
    with refusal(url, "404 Not Found"):
        download.fetch(url, tmp_path / "file.bin", md5=MD5, size=len(CONTENT))
    assert len(server.ranges) == 1
    assert list(tmp_path.iterdir()) == []


def test_no_server(server: Server, tmp_path: Path) -> None:
    url = f"{server.address}/file.bin"
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match="no connection"):
        download.fetch(url, tmp_path / "file.bin", md5=MD5, size=len(CONTENT))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "host/file"])
def test_other_addresses(tmp_path: Path, url: str) -> None:
    with refusal(f"got {url}", field="mirror"):
        download.fetch(url, tmp_path / "new" / "file", md5=MD5, size=len(CONTENT))
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_made(server: Server, tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"a file")
    with pytest.raises(UserError, match="can't be written"):
        fetch(server, tmp_path)


def test_two_at_once(server: Server, tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            fetch(server, tmp_path)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert only(tmp_path / "new" / "file.bin")
    assert (tmp_path / "new" / "file.bin").read_bytes() == CONTENT
    assert server.ranges == [None]


def test_lines_now_and_then(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(display, "DOWNLOAD_INTERVAL", 0.0)
    fetch(server, tmp_path, progress=display.show_download)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "file.bin: downloading"
    assert lines[-1] == "file.bin: downloaded"
    assert "file.bin: 1.0 of 1.0 MB" in lines


def test_bar_on_a_terminal(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fetch(server, tmp_path, progress=display.show_download)
    assert "file.bin" in capsys.readouterr().err


def test_silent_by_default(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "mpelu"):
        path = fetch(server, tmp_path)
    assert capsys.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records] == [
        f"downloading {server.address}/file.bin to {path}",
        f"downloaded {path} (1.0 MB)",
    ]


@pytest.mark.parametrize("slash", ["", "/"])
def test_load_downloads_from_a_mirror(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slash: str
) -> None:
    server.content = data_files.publish(monkeypatch, "cifar100", data_files.cifar("cifar100"))
    config = Config(data="cifar100", data_dir=str(tmp_path / "data"))
    cpu = torch.device("cpu")
    first = load(config, cpu, download=True, mirror=server.address + slash)
    assert len(server.ranges) == 1
    second = load(config, cpu, download=True, mirror=server.address)
    assert len(server.ranges) == 1
    assert first.fingerprint == second.fingerprint == load(config, cpu).fingerprint


def test_official_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise UserError("stop")

    monkeypatch.setattr("mpelu.lab.data.cifar.fetch", fetch)
    for data in ("cifar10", "cifar100"):
        with pytest.raises(UserError, match="stop"):
            load(Config(data=data, data_dir=str(tmp_path)), torch.device("cpu"), download=True)
    assert asked == [
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    ]


def test_a_failed_download_leaves_no_folder(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for place in ("new/folder", "there/new", "there"):
        with pytest.raises(UserError, match="404"):
            download.fetch(
                server.address.removesuffix("files"),
                tmp_path / place / "a",
                md5=MD5,
                size=len(CONTENT),
            )
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]


def test_a_download_that_was_cut_off_keeps_its_folder(server: Server, tmp_path: Path) -> None:
    server.drops_after = [1000, 0, 0, 0]
    with pytest.raises(UserError, match="the 1,000 bytes received so far are kept"):
        download.fetch(f"{server.address}/a", tmp_path / "new" / "a", md5=MD5, size=len(CONTENT))
    assert (tmp_path / "new" / "a.part").stat().st_size == 1000


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits is kept for the next download."""
    write = download._write

    def full(file: Any, block: bytes) -> None:
        if file.tell() > 0:
            file = SimpleNamespace(name=file.name, write=refuse)
        write(file, block)

    def refuse(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(download, "_write", full)
        with pytest.raises(UserError, match=r"a\.part: can't be written \(No space left"):
            download.fetch(f"{server.address}/a", tmp_path / "a", md5=MD5, size=len(CONTENT))
    download.fetch(f"{server.address}/a", tmp_path / "a", md5=MD5, size=len(CONTENT))
    assert server.ranges == [None, f"bytes={download.CHUNK}-"]


@pytest.mark.parametrize("url", ["http://[", "file:///etc/passwd", "ftp://a/b", "", "a.tar.gz"])
def test_what_is_no_address(tmp_path: Path, url: str) -> None:
    with refusal(f"got {url}", field="mirror"):
        download.fetch(url, tmp_path / "a" / "b", md5=MD5, size=len(CONTENT))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("shown", "chosen"), [(False, display.Display()), (True, display.Lines())])
def test_a_run_shows_its_download_if_its_display_does(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shown: bool,
    chosen: display.Display,
) -> None:
    fetch(server, tmp_path, progress=chosen.download)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("file.bin: downloading" in err) == shown


@pytest.mark.parametrize("length", ["many", "-5", "1e6", "", "9" * 5000, "0x10", "12, 12"])
def test_a_malformed_length_is_ignored(server: Server, tmp_path: Path, length: str) -> None:
    server.length = length
    assert fetch(server, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("says_length", [True, False])
def test_no_more_than_the_known_size_is_written(
    server: Server, tmp_path: Path, says_length: bool
) -> None:
    server.says_length = says_length
    server.content = CONTENT + b"more"
    got = f"{len(server.content):,}" if says_length else "more"
    with refusal(f"{len(CONTENT):,} bytes", got):
        fetch(server, tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_part_that_is_too_long_is_discarded(server: Server, tmp_path: Path) -> None:
    part(tmp_path, CONTENT + b"more")
    assert fetch(server, tmp_path).read_bytes() == CONTENT
