"""A remote store: a folder, or a URL that fsspec can open (extra `remote`), with run folders like those of a store.

The files of a run are at `<URL>/runs/<id>/…`, so that a folder that runs were pushed to is a store. A run exists once
its run.json does, which is written last: a push that was killed leaves nothing that counts as a run.

Everyone who can write to the remote store may have put anything there. Links and special files are refused, and no
more of a file is read than its listed or its maximum size. Names, contents and counts are checked by the callers
(`check_fetched.py`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import BadFile, BadInput, DamagedFile, FileTooLarge, MissingLibrary, RemoteFailed, TrainyardError
from trainyard.fault_points import fault_point
from trainyard.formats.regular_files import irregular
from trainyard.redact import redact
from trainyard.store.digests import is_listed
from trainyard.store.disk_space import writing

_RUN_FILE = "run.json"
_PART_SUFFIX = ".part"
_CHUNK_BYTES = 1 << 20
_NOT_REGULAR = "a link or a special file, and only regular files are copied"


class Remote:
    """Paths given and returned are relative to a run's folder, with slashes. Raises `RemoteFailed` if the remote store
    does not answer, `MissingLibrary` without fsspec or a library that it needs for this URL, `BadInput` for a URL that
    it cannot open.
    """

    def __init__(self, url: str) -> None:
        """`url`: the URL or folder that holds `runs`; it may contain a password, which messages do not show."""
        self.url = redact(url)
        """Without a password: for messages."""
        try:
            import fsspec
        except ImportError as error:
            raise MissingLibrary(
                "Runs are pushed and pulled with fsspec, which is not installed.",
                "Run `pip install 'trainyard[remote]'`.",
            ) from error
        try:
            self._files, root = fsspec.url_to_fs(url)
        except ImportError as error:
            raise MissingLibrary(f"{self.url}: {redact(str(error)).rstrip('.')}, with pip.") from error
        except (ValueError, TypeError) as error:
            raise BadInput(
                f"{self.url}: {redact(str(error))}.", "Give a folder, or a URL such as s3://BUCKET/FOLDER."
            ) from error
        self._runs = posixpath.join(root, "runs")

    def path(self, id: str, name: str = "") -> str:
        """The run's folder there, or a file in it, as messages name it."""
        return posixpath.join(self.url, "runs", id, name).rstrip("/")

    def ids(self) -> list[str]:
        """The folders that hold a run.json, as they are named."""
        self._refuse_links()
        with self._convert_errors():
            paths = self._files.glob(posixpath.join(self._runs, "*", _RUN_FILE))
        return sorted(posixpath.basename(posixpath.dirname(path)) for path in paths)

    def sizes(self, id: str) -> dict[str, int]:
        """File name -> size in bytes, of every file of the run. Raises `BadFile` for a link or a special file among
        those that travel."""
        self._refuse_links(id)
        top = self._remote_path(id)
        with self._convert_errors():
            entries = self._files.find(top, detail=True)
        sizes: dict[str, int] = {}
        for path, details in entries.items():
            name = posixpath.relpath(path, top)
            if not details.get("islink") and details.get("type", "file") == "file":
                sizes[name] = int(details["size"])
            elif is_listed(name):
                raise BadFile(f"{self.path(id, name)}: {_NOT_REGULAR}.")
        return sizes

    def read(self, id: str, name: str, max_bytes: int) -> bytes | None:
        """The contents of a file of at most `max_bytes` bytes; None if it does not exist. Raises `BadFile` for a larger
        file, and for a link."""
        self._refuse_links(id, name)
        with self._convert_errors(), self._convert_file_errors(id, name):
            try:
                with self._files.open(self._remote_path(id, name), "rb") as file:
                    data = file.read(max_bytes + 1)
            except FileNotFoundError:
                return None
        if len(data) > max_bytes:
            raise FileTooLarge(
                f"{self.path(id, name)}: more than {max_bytes:,} bytes, which is too large for such a file."
            )
        return data

    def fetch(self, id: str, name: str, to: Path, size: int) -> str:
        """Copy a file that is listed with `size` bytes to the local path `to`; return its SHA-256 digest, hexadecimal.

        At most one byte more than `size` is read. Raises `BadFile` if it has another size.
        """
        digest, arrived_bytes = hashlib.sha256(), 0
        with writing(to, size), to.open("wb") as file:
            for chunk in self._chunks(id, name, size + 1):
                digest.update(chunk)
                file.write(chunk)
                arrived_bytes += len(chunk)
        if arrived_bytes != size:
            shown_bytes = "more" if arrived_bytes > size else f"{arrived_bytes:,}"
            raise DamagedFile(f"{self.path(id, name)}: {size:,} bytes are listed, but {shown_bytes} arrived.")
        return digest.hexdigest()

    def _chunks(self, id: str, name: str, max_bytes: int) -> Iterator[bytes]:
        """Yield the file's first `max_bytes` bytes in chunks."""
        self._refuse_links(id, name)
        with self._convert_errors(), self._convert_file_errors(id, name):
            source = self._files.open(self._remote_path(id, name), "rb")
        with source:
            while max_bytes > 0:
                with self._convert_errors(), self._convert_file_errors(id, name):
                    chunk = source.read(min(_CHUNK_BYTES, max_bytes))
                if not chunk:
                    return
                max_bytes -= len(chunk)
                yield chunk

    def put(self, id: str, name: str, path: Path) -> None:
        """Copies the local file `path` there, under another name first: on file systems that can cut a write short, the
        file with the final name is complete."""
        with self._write_then_rename(id, name) as part:
            self._files.put_file(str(path), part)

    def write(self, id: str, name: str, data: bytes) -> None:
        """Writes a file with the contents `data`, under another name first like `put`."""
        with self._write_then_rename(id, name) as part:
            self._files.pipe_file(part, data)

    def remove(self, id: str, name: str) -> None:
        with self._convert_errors():
            self._files.rm_file(self._remote_path(id, name))

    def clear(self, id: str) -> None:
        """Removes what killed writes left in the run's folder."""
        for name in self.sizes(id):
            if posixpath.basename(name).startswith(".") and name.endswith(_PART_SUFFIX):
                self.remove(id, name)

    @contextmanager
    def _write_then_rename(self, id: str, name: str) -> Iterator[str]:
        """Yield a hidden path in the remote store to write to; after the block its file is renamed to `name`."""
        self._refuse_links(id, name)
        hidden = f".{posixpath.basename(name)}.{secrets.token_hex(4)}{_PART_SUFFIX}"
        part = self._remote_path(id, posixpath.join(posixpath.dirname(name), hidden))
        with self._convert_errors():
            self._files.makedirs(posixpath.dirname(part), exist_ok=True)
            yield part
            fault_point("push.uploaded")
            self._files.mv(part, self._remote_path(id, name))
        fault_point("push.renamed")

    def _refuse_links(self, id: str = "", name: str = "") -> None:
        """Raise `BadFile` for a link or special file on the path from the remote's own folder to `runs`, the run's
        folder or a file in it.

        Only for remotes on this machine's own file systems: there a link would be followed to anything that the user
        may read or write, and a pipe would block. Parts of the path that do not exist are left to the caller.
        """
        if not getattr(self._files, "local_file", False):
            return
        parts = ["runs", *filter(None, [id, *name.split("/")])]
        path = posixpath.dirname(self._runs)
        for depth, part in enumerate(parts):
            path = posixpath.join(path, part)
            try:
                mode = os.lstat(path).st_mode
            except OSError:  # not there, or cannot be reached: for those who read it
                return
            is_last = depth + 1 == len(parts)
            if not (stat.S_ISDIR(mode) or (is_last and name and not irregular(mode))):
                raise BadFile(f"{posixpath.join(self.url, *parts[: depth + 1])}: {_NOT_REGULAR}.")

    def _remote_path(self, id: str, name: str = "") -> str:
        return posixpath.join(self._runs, id, name) if name else posixpath.join(self._runs, id)

    @contextmanager
    def _convert_file_errors(self, id: str, name: str) -> Iterator[None]:
        """Convert errors of one file inside the block into `BadFile`; errors of the remote store as a whole pass."""
        try:
            yield
        except OSError as error:
            kinds = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
            if isinstance(error, kinds) or error.errno == errno.EIO:
                reason = error.strerror or error
                raise BadFile(f"{self.path(id, name)}: cannot be read: {reason}.") from error
            raise

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """Turn errors of the remote store, of whatever type, into `RemoteFailed`."""
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:  # each kind of place has errors of its own
            reason = redact(" ".join(str(error).split())) or type(error).__name__
            raise RemoteFailed(
                f"{self.url}: {reason.rstrip('.')}.", "What was copied whole stays: go on with the same command."
            ) from error
