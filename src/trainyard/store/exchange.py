"""Runs copied to another place and back: what arrives is whole or is not there, and what is there is not sent again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from trainyard.errors import BadFile, BadInput, UnknownName, nearest
from trainyard.store import folder as folders
from trainyard.store.disk import writing
from trainyard.store.remote import Remote
from trainyard.store.store import Store, is_id

_HEAD, _TAGS = "run.json", "tags.json"
_STAYS = (_HEAD, _TAGS, "lock", "checkpoints")
"""What is copied in its own way, and what belongs to the machine that ran."""


class Copied(NamedTuple):
    """`files` and `bytes` that were sent: none where the run was there already."""

    id: str
    files: int = 0
    bytes: int = 0


def push(folder: Path, remote: Remote) -> Copied:
    """Raises `BadInput` where the run has not ended, or where another run bears its id there."""
    head = folders.read_head(folder)
    if head.state == "incomplete":
        raise BadInput(
            f"run {folder.name} has not ended, or was killed: only runs that ended are pushed.",
            f"`trainyard run --resume {folder.name}` goes on with one that was killed.",
        )
    copied = Copied(folder.name)
    if not _is_there(folder, remote):
        sent = sorted(path for path in folder.rglob("*") if _is_plain(path) and _belongs(_relative(path, folder)))
        for path in sent:
            remote.put(folder.name, _relative(path, folder), path)
        remote.put(folder.name, _HEAD, folder / _HEAD)
        remote.clear(folder.name)
        copied = Copied(folder.name, len(sent) + 1, sum(path.stat().st_size for path in (*sent, folder / _HEAD)))
    ours, both = folders.read_tags(folder), _tags_of_both(folder, remote)
    if both != ours:
        folders.write_tags(folder, both)
    if both and both != _tags_there(remote, folder.name):
        remote.put(folder.name, _TAGS, folder / _TAGS)
    return copied


def pull(store: Store, remote: Remote, id: str) -> Copied:
    """Raises `BadFile` for what is no run or arrived altered, `BadInput` where another run bears its id here."""
    folder, copied = store.runs / id, Copied(id)
    if not ((folder / _HEAD).is_file() and _is_there(folder, remote)):
        copied = _fetched(store, remote, id)
    both = _tags_of_both(folder, remote)
    if both != folders.read_tags(folder):
        folders.write_tags(folder, both)
    return copied


def named(remote: Remote, names: Iterable[str]) -> list[str]:
    """The ids that beginnings of ids and tags name there, without names: all. Raises `UnknownName`, `BadInput`."""
    ids = [id for id in remote.ids() if is_id(id)]
    names = list(names)
    if not ids:
        raise BadInput(f"{remote.url} holds no run.", "Push some there first: trainyard runs push --to URL.")
    if not names:
        return ids
    given = sorted((when, tag, id) for id in ids for tag, when in _tags_there(remote, id).items())
    owner = {tag: id for _, tag, id in given}
    return [_one(name, ids, owner, remote.url) for name in names]


def _one(name: str, ids: list[str], owner: dict[str, str], url: str) -> str:
    if name in owner:
        return owner[name]
    found = [id for id in ids if name and id.startswith(name)]
    if len(found) > 1:
        raise BadInput(f"{name!r} begins {len(found)} runs: {', '.join(found)}.", "Give one more character.")
    if not found:
        raise UnknownName(f"there is no run {name!r} in {url}.", nearest(name, owner) if owner else "")
    return found[0]


def _fetched(store: Store, remote: Remote, id: str) -> Copied:
    sizes = remote.sizes(id)
    if strange := sorted(name for name in sizes if ".." in PurePosixPath(name).parts or name.startswith("/")):
        raise BadFile(f"{remote.url}: run {id} has a file outside its folder: {strange[0]!r}.")
    wanted = {name: size for name, size in sizes.items() if _belongs(name) or name == _HEAD}
    part = store.runs / f".pull-{id}-{os.getpid()}"
    try:
        with writing(part, sum(wanted.values())):
            for place in folders.PARTS:
                (part / place).mkdir(parents=True)
        for name, size in wanted.items():
            to = part / name
            with writing(to, size):
                to.parent.mkdir(parents=True, exist_ok=True)
            remote.fetch(id, name, to)
            if to.stat().st_size != size:
                raise BadFile(f"{remote.url}: {name} of run {id} is {size} bytes, but {to.stat().st_size} arrived.")
        _check(part, remote, id)
        with writing(store.runs / id):
            _sync(part)
            part.rename(store.runs / id)
        for rest in store.runs.glob(f".pull-{id}-*"):  # of pulls that were killed
            shutil.rmtree(rest, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return Copied(id, len(wanted), sum(wanted.values()))


def _check(part: Path, remote: Remote, id: str) -> None:
    head = folders.read(part)
    if head.id != id:
        raise BadFile(f"{remote.url}: the folder {id} holds run {head.id}.")
    if head.digest and folders.digest(part) != head.digest:
        raise BadFile(f"{remote.url}: run {id} was altered after it was written: its digest differs.")


def _is_there(folder: Path, remote: Remote) -> bool:
    """Whether the place has this very run; raises `BadInput` where it has another of that id."""
    data = remote.read(folder.name, _HEAD)
    if data is None or data == (folder / _HEAD).read_bytes():
        return data is not None
    raise BadInput(
        f"{remote.url} holds another run {folder.name} than {folder}: their run.json differ.",
        "Delete the one that is wrong.",
    )


def _tags_of_both(folder: Path, remote: Remote) -> dict[str, str]:
    """A tag that both have was given when it was given last."""
    ours, theirs = folders.read_tags(folder), _tags_there(remote, folder.name)
    return {tag: max(ours.get(tag, ""), theirs.get(tag, "")) for tag in {**ours, **theirs}}


def _tags_there(remote: Remote, id: str) -> dict[str, str]:
    data = remote.read(id, _TAGS)
    try:
        return msgspec.json.decode(data, type=dict[str, str]) if data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFile(f"{remote.url}: {_TAGS} of run {id} is not a table of tags: {error}.") from error


def _belongs(name: str) -> bool:
    """Whether the file goes along before run.json does; nothing hidden does, as unfinished writes are."""
    parts = PurePosixPath(name).parts
    return parts[0] not in _STAYS and not any(part.startswith(".") for part in parts)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _sync(part: Path) -> None:
    """On the disk before the folder gets its name."""
    for path in part.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
