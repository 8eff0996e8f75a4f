"""Downloads that resume where they stopped and are verified before they get their name."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from filelock import FileLock

from mpelu.lab.errors import UserError

log = logging.getLogger(__name__)

DownloadProgress = Callable[[str, "int | None"], AbstractContextManager[Callable[[int], None]]]
"""Called with the name of the file and its size in bytes (None if unknown). Within its context, the
function it returns is called with the number of bytes received so far."""

CHUNK = 1 << 18
TRIES = 3
"""Requests in a row that may fail to bring any data."""
TIMEOUT = 30.0


class _Dropped(Exception):
    """The connection ended early; the data received so far is kept."""


def fetch(
    url: str, path: Path, *, md5: str, size: int, progress: DownloadProgress | None = None
) -> None:
    """Downloads a file, unless it exists.

    Data goes to `path.part`, which is continued by the next call if the download is interrupted.
    Processes that want the same file wait for the first one to download it.

    Args:
        url: an http or https URL.
        path: the destination; its directory is created if needed.
        md5: expected checksum; only a file that has it is renamed to `path`.
        size: expected size in bytes; no more than that is written.
        progress: shows the download, for example `mpelu.lab.training.display.show_download`. By
            default nothing is shown.

    Raises:
        UserError: if the file can't be downloaded or written, or has another checksum.
    """
    if not _is_http(url):
        raise UserError(f"expected an http:// or https:// URL, got {url}", field="mirror")
    missing = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if not path.is_file():
                _download(url, path, md5, size, progress or hide_progress)
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror or error})") from None
    finally:
        # Directories that contain something stay.
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


@contextlib.contextmanager
def hide_progress(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows nothing."""
    yield lambda count: None


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock of a download, a file that is removed with it.

    Processes that wait for the lock notice that its file is gone, and create another.
    """
    lock = path.with_name(path.name + ".lock")
    with FileLock(lock):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()


def _download(url: str, path: Path, md5: str, size: int, progress: DownloadProgress) -> None:
    log.info("downloading %s to %s", url, path)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("ab") as file:
            resumed = file.tell() > 0
            _complete(url, file, path.name, size, progress)
            actual = _md5(part)
            if actual != md5 and resumed:
                # The first part may be of another file: download everything once more.
                _empty(file)
                _complete(url, file, path.name, size, progress)
                actual = _md5(part)
            if actual != md5:
                _empty(file)
                raise UserError(f"{url}: expected MD5 {md5}, got {actual}; nothing was kept")
            os.fsync(file.fileno())
        part.rename(path)
    finally:
        with contextlib.suppress(OSError):
            if part.stat().st_size == 0:
                part.unlink()
    log.info("downloaded %s (%.1f MB)", path, path.stat().st_size / 1e6)


def _complete(url: str, file: IO[bytes], name: str, size: int, progress: DownloadProgress) -> None:
    """Requests the rest of the file until all of it is there."""
    failures = 0
    while True:
        before = file.tell()
        try:
            _request(url, file, name, size, progress)
            return
        except UserError:
            raise
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # what we have is longer than the file
                _empty(file)
                continue
            raise UserError(
                f"{url}: can't be downloaded (HTTP {error.code} {error.reason})"
            ) from None
        except (
            _Dropped, urllib.error.URLError, http.client.HTTPException, OSError, ValueError,
        ) as error:  # fmt: skip
            # A ValueError comes of headers that can't be read.
            failures = 0 if file.tell() > before else failures + 1
            if failures == TRIES:
                reason = getattr(error, "reason", error)
                raise UserError(
                    f"{url}: no connection ({reason}); the {file.tell():,} bytes received so far "
                    "are kept, and the next download continues from there"
                ) from None


def _request(url: str, file: IO[bytes], name: str, size: int, progress: DownloadProgress) -> None:
    have = file.tell()
    if have > size:  # it can't be the beginning of the file
        _empty(file)
        have = 0
    request = urllib.request.Request(url, headers={"User-Agent": "mpelu"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if have and not _continues(response, have):
            _empty(file)
            have = 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if re.fullmatch("[0-9]{1,15}", length) else None
        if total is not None and total > size:
            raise _too_large(url, file, size, f"{total:,}")
        with progress(name, total) as update:
            update(have)
            while block := response.read(CHUNK):
                if have + len(block) > size:
                    raise _too_large(url, file, size, "more")
                _write(file, block)
                have += len(block)
                update(have)
    if total is not None and have < total:
        raise _Dropped(f"the connection ended after {have} of {total} bytes")


def _too_large(url: str, file: IO[bytes], size: int, got: str) -> UserError:
    _empty(file)
    return UserError(f"{url}: expected {size:,} bytes, got {got}; nothing was kept")


def _continues(response: Any, have: int) -> bool:
    content_range: str = response.headers.get("Content-Range", "")
    return response.status == 206 and content_range.startswith(f"bytes {have}-")


def _empty(file: IO[bytes]) -> None:
    file.truncate(0)
    file.seek(0)


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        file.write(block)
        file.flush()
    except OSError as error:
        raise UserError(f"{file.name}: can't be written ({error.strerror})") from None


def _md5(path: Path) -> str:
    total = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            total.update(block)
    return total.hexdigest()
