"""Downloads that go on where they stopped and are checked before they get their name."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from mpelu.lab.data.progress import Progress
from mpelu.lab.errors import UserError

CHUNK = 1 << 18
TRIES = 3
"""Requests in a row that may bring nothing."""
TIMEOUT = 30.0


class _Dropped(Exception):
    """The connection ended early; what came is kept."""


def fetch(url: str, path: Path, *, md5: str, quiet: bool = False) -> None:
    """Downloads url to path, by way of path.part, which a later call goes on with.

    Args:
        url: http or https.
        path: its folder is made if need be.
        md5: what the file must have; only then does it get its name.
        quiet: without progress.

    Raises:
        UserError: if the server has no such file or can't be reached, or the checksum is wrong.
    """
    if not _is_address(url):
        raise UserError(
            f"mirror: expected an address that starts with http:// or https://, got {url}"
        )
    part = path.with_name(path.name + ".part")
    missing = [each for each in (path.parent, *path.parent.parents) if not each.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as file, _alone(file):
            if path.is_file():  # another process was faster
                return
            resumed = file.tell() > 0
            _complete(url, file, path.name, quiet)
            actual = _md5(part)
            if actual != md5 and resumed:
                # The beginning may be of another file: once more, all of it.
                _empty(file)
                _complete(url, file, path.name, quiet)
                actual = _md5(part)
            if actual == md5:
                os.fsync(file.fileno())
                part.rename(path)
            else:
                part.unlink()
                raise UserError(f"{url}: expected MD5 {md5}, got {actual}; nothing was kept")
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror or error})") from None
    finally:
        with contextlib.suppress(OSError):
            if part.stat().st_size == 0:
                part.unlink()
        with contextlib.suppress(OSError):  # those with something in them stay
            for folder in missing:
                folder.rmdir()


def _is_address(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False


@contextlib.contextmanager
def _alone(file: IO[bytes]) -> Iterator[None]:
    """Processes that want the same file wait for the one that downloads it."""
    try:
        import fcntl
    except ImportError:  # not on this system
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    file.seek(0, os.SEEK_END)
    yield


def _complete(url: str, file: IO[bytes], name: str, quiet: bool) -> None:
    fruitless = 0
    while True:
        before = file.tell()
        try:
            _request(url, file, name, quiet)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and before:  # what we have is longer than the file
                _empty(file)
                continue
            raise UserError(f"{url}: expected the file, got {error.code} {error.reason}") from None
        except (_Dropped, urllib.error.URLError, http.client.HTTPException, OSError) as error:
            fruitless = 0 if file.tell() > before else fruitless + 1
            if fruitless == TRIES:
                reason = getattr(error, "reason", error)
                raise UserError(
                    f"{url}: expected the file, got no connection ({reason}); "
                    f"{file.tell()} bytes are kept, the next call goes on from there"
                ) from None


def _request(url: str, file: IO[bytes], name: str, quiet: bool) -> None:
    have = file.tell()
    request = urllib.request.Request(url, headers={"User-Agent": "mpelu"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        if have and not _continues(response, have):
            _empty(file)
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length is not None else None
        with Progress(name, total, quiet) as progress:
            progress.at(have)
            while block := response.read(CHUNK):
                _write(file, block)
                have += len(block)
                progress.at(have)
    if total is not None and have < total:
        raise _Dropped(f"the connection ended after {have} of {total} bytes")


def _continues(response: Any, have: int) -> bool:
    return response.status == 206 and response.headers.get("Content-Range", "").startswith(
        f"bytes {have}-"
    )


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
