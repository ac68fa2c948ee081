"""Another place that holds run folders as a store does: a folder, or a URL that fsspec can open (extra `remote`).

`<URL>/runs/<id>/…`: a place that was pushed to is a store itself. A run is there once its run.json is, which is written
last, so that a push that was killed leaves nothing that counts as a run.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.errors import BadInput, EnvironmentFailed, MissingLibrary, TrainyardError

_MARK = "run.json"
_PART = ".part"


class Remote:
    """Paths given and returned are relative to a run's folder, with slashes. Raises `EnvironmentFailed` where the place
    does not answer, `MissingLibrary` without fsspec or what it needs for this URL, `BadInput` for a URL it cannot open.
    """

    def __init__(self, url: str) -> None:
        self.url = url
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
            raise MissingLibrary(f"{url}: {str(error).rstrip('.')}, with pip.") from error
        except (ValueError, TypeError) as error:
            raise BadInput(f"{url}: {error}.", "Give a folder, or a URL such as s3://BUCKET/FOLDER.") from error
        self._runs = posixpath.join(root, "runs")

    def ids(self) -> list[str]:
        """The folders that hold a run.json, as they are named."""
        with self._asking():
            found = self._files.glob(posixpath.join(self._runs, "*", _MARK))
        return sorted(posixpath.basename(posixpath.dirname(path)) for path in found)

    def sizes(self, id: str) -> dict[str, int]:
        """Every file of the run, with its bytes."""
        top = self._at(id)
        with self._asking():
            found = self._files.find(top, detail=True)
        return {posixpath.relpath(path, top): int(about["size"]) for path, about in found.items()}

    def read(self, id: str, name: str) -> bytes | None:
        """A small file; None where there is none."""
        with self._asking():
            try:
                return self._files.cat_file(self._at(id, name))
            except FileNotFoundError:
                return None

    def fetch(self, id: str, name: str, to: Path) -> None:
        with self._asking():
            self._files.get_file(self._at(id, name), str(to))

    def put(self, id: str, name: str, path: Path) -> None:
        """Under another name first: where a write can be cut short, what bears the name is whole."""
        hidden = f".{posixpath.basename(name)}.{secrets.token_hex(4)}{_PART}"
        part = self._at(id, posixpath.join(posixpath.dirname(name), hidden))
        with self._asking():
            self._files.makedirs(posixpath.dirname(part), exist_ok=True)
            self._files.put_file(str(path), part)
            self._files.mv(part, self._at(id, name))

    def clear(self, id: str) -> None:
        """Removes what killed writes left in the run's folder."""
        for name in self.sizes(id):
            if posixpath.basename(name).startswith(".") and name.endswith(_PART):
                with self._asking():
                    self._files.rm_file(self._at(id, name))

    def _at(self, id: str, name: str = "") -> str:
        return posixpath.join(self._runs, id, name) if name else posixpath.join(self._runs, id)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except TrainyardError:
            raise
        except Exception as error:  # each kind of place has errors of its own
            why = " ".join(str(error).split()) or type(error).__name__
            raise EnvironmentFailed(
                f"{self.url}: {why.rstrip('.')}.", "What was copied whole stays: go on with the same command."
            ) from error
