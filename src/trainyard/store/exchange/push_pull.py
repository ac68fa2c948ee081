"""Push runs to and pull them from a remote store, atomically; a run that is already there is not copied again.

A remote store (`Remote`) is a folder or a URL with run folders. Tags are merged on both sides: name -> when the tag was
assigned, of which the later assignment counts. `id` is a run's id, 8 hexadecimal digits, the name of its folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec.structs import replace

from trainyard.errors import BadFile, BadInput, DamagedFile, MissingFile, UnknownName, WrongRunState, nearest
from trainyard.formats.regular_files import read_bytes
from trainyard.store import digests, run_damage, tags
from trainyard.store import run_folder as folders
from trainyard.store.exchange import signature
from trainyard.store.exchange.check_fetched import MAX_BYTES_BY_FILE, fetch, read_digests
from trainyard.store.exchange.remote_store import Remote
from trainyard.store.store import Store, is_id
from trainyard.store.stored_changes import CopiedRun


def push(folder: Path, remote: Remote, key: Path | None = None) -> CopiedRun:
    """Copy the run in `folder` and its tags to the remote store; with `key`, an SSH key, sign its digests there.

    A run that is there already keeps its files. Secrets that an earlier version left in the folder are removed first.
    Raises `WrongRunState` for a run that has not ended, `BadInput` if another run has its id there, `BadFile` for a
    damaged one.
    """
    head = folders.read_head(folder)
    if head.state == "incomplete":
        raise WrongRunState(
            f"run {folder.name} has not ended, or was killed: only runs that ended are pushed.",
            f"`trainyard run resume {folder.name}` resumes one that was killed.",
        )
    our_tags = tags.read_tags(folder)
    remote_digests = (
        remote.read(folder.name, digests.FILE, MAX_BYTES_BY_FILE[digests.FILE])
        if _is_in_remote(folder, remote)
        else None
    )
    if remote_digests is None:
        folders.redact_run(folder)
    copied = _send(folder, remote, key) if remote_digests is None else CopiedRun(id=folder.name)
    if remote_digests is not None and key:
        copied = replace(copied, signed=_sign_remote(folder, remote, key, remote_digests))
    their_tags, damaged = _read_remote_tags(remote, folder.name)
    merged_tags = _merge_tags(our_tags, their_tags)
    if merged_tags != our_tags:
        tags.write_tags(folder, merged_tags)
    if merged_tags != their_tags or damaged:
        remote.write(folder.name, tags.FILE, tags.encode(merged_tags))
        remote.clear(folder.name)
    return replace(copied, notes=(*copied.notes, f"its tags there are replaced: {damaged}")) if damaged else copied


def pull(store: Store, remote: Remote, id: str, signers: Path | None = None) -> CopiedRun:
    """Copy the run `id` and its tags to the local store; with `signers`, a file of allowed signers, only if one of them
    signed it.

    A run that is here already is checked instead. Raises `BadFile` for a run that is damaged there or here, arrived
    altered or lacks digests or a signature, `BadInput` if another run has its id here.
    """
    folder = store.runs / id
    if not (folder / digests.HEAD).is_file():
        fetched = fetch(store.runs, remote, id, signers)
        copied = CopiedRun(id=id, files=fetched.files, bytes=fetched.bytes, signer=fetched.signer)
    elif _is_in_remote(folder, remote):
        _check_here(folder)
        copied = CopiedRun(id=id, signer=_check_signed(folder, remote, signers) if signers else "")
    else:
        raise MissingFile(f"{remote.path(id)}: there is no {digests.HEAD}.")
    our_tags = tags.read_tags(folder)
    their_tags, damaged = _read_remote_tags(remote, id)
    merged_tags = _merge_tags(our_tags, their_tags)
    if merged_tags != our_tags:
        tags.write_tags(folder, merged_tags)
    return replace(copied, problem=damaged)


def matching_ids(remote: Remote, names: Iterable[str], say: Callable[[str], None]) -> list[str]:
    """The ids of the runs in the remote store that `names`, prefixes of ids or tags, refer to; all ids without names.

    `say`: called with messages about tags that cannot be read. Raises `UnknownName` for a name of no run, `BadInput`
    for an ambiguous prefix or an empty remote store.
    """
    ids = [id for id in remote.ids() if is_id(id)]
    names = list(names)
    if not ids:
        raise BadInput(f"{remote.url} holds no run.", "Push some there first: trainyard runs push --to URL.")
    if not names:
        return ids
    assignments: list[tuple[str, str, str]] = []  # (time of the assignment, tag, run id)
    for id in ids:
        their_tags, damaged = _read_remote_tags(remote, id)
        assignments.extend((when, tag, id) for tag, when in their_tags.items())
        if damaged:
            say(f"passed over: {damaged}")
    run_by_tag = {tag: id for _, tag, id in sorted(assignments)}  # the last assignment counts
    return list(dict.fromkeys(_find_id(name, ids, run_by_tag, remote.url) for name in names))


def _find_id(name: str, ids: list[str], run_by_tag: dict[str, str], url: str) -> str:
    """The id of the run that a tag or a prefix of an id refers to. Raises `UnknownName`, or `BadInput` for an ambiguous
    prefix."""
    if name in run_by_tag:
        return run_by_tag[name]
    matches = [id for id in ids if name and id.startswith(name)]
    if len(matches) > 1:
        raise BadInput(f"{name!r} is a prefix of {len(matches)} runs: {', '.join(matches)}.", "Give more characters.")
    if not matches:
        raise UnknownName(f"there is no run {name!r} in {url}.", nearest(name, run_by_tag) if run_by_tag else "")
    return matches[0]


def _send(folder: Path, remote: Remote, key: Path | None) -> CopiedRun:
    """Send all files of the run, then their digests, and run.json last, with which the run exists there.

    `key`: an SSH key that signs the digests, None to keep the signature that the folder may have. Raises `BadFile` for
    a damaged run.
    """
    run = run_damage.read_any(folder)
    if run.state == "damaged":
        raise DamagedFile(f"{folder}: the run is damaged: {run.failure}.")
    current, recorded = digests.compute(folder), folders.read_digests(folder) or {}
    if altered := [f"{name} was altered" for name in current if recorded.get(name, current[name]) != current[name]]:
        raise DamagedFile(f"{folder}: the run is damaged: {run_damage.join_reasons(altered)}.")
    data, id = digests.render(current), folder.name
    signed = _signature(folder, data, key)
    files = digests.files(folder)
    for name, path in files.items():
        if name != digests.HEAD:
            remote.put(id, name, path)
    remote.write(id, digests.FILE, data)
    if signed:
        remote.write(id, digests.SIGNATURE, signed)
    elif remote.read(id, digests.SIGNATURE, signature.MAX_BYTES) is not None:  # of a push that was killed
        remote.remove(id, digests.SIGNATURE)
    remote.put(id, digests.HEAD, folder / digests.HEAD)
    remote.clear(id)
    missing = [name for name in recorded if name not in current]
    notes = (
        (f"without {len(missing)} files that are not here any more: {run_damage.join_reasons(missing)}.",)
        if missing
        else ()
    )
    size_bytes = sum(path.stat().st_size for path in files.values()) + len(data)
    return CopiedRun(id=id, files=len(files) + 1, bytes=size_bytes, notes=notes, signed=key is not None)


def _signature(folder: Path, data: bytes, key: Path | None) -> bytes | None:
    """The signature to send with the digests `data`: a new one by the SSH key `key`, if given, else the one that the
    run was pulled with if its digests are unchanged, else None."""
    if key:
        return signature.sign(data, key)
    listed, signed = folder / digests.FILE, folder / digests.SIGNATURE
    if signed.is_file() and listed.is_file() and read_bytes(listed) == data:
        return read_bytes(signed)
    return None


def _sign_remote(folder: Path, remote: Remote, key: Path, remote_digests: bytes) -> bool:
    """Sign a run that is in the remote store already; return whether the signature is new.

    `folder`: the run here; `key`: an SSH key; `remote_digests`: the contents of the run's SHA256SUMS there. Raises
    `BadInput` if they are not those of the run here.
    """
    recorded = folders.read_digests(folder)
    if remote_digests not in (digests.render(recorded or {}), digests.render(digests.compute(folder))):
        raise BadInput(
            f"{remote.path(folder.name)}: its digests are not those of {folder}: it is not signed.",
            "Delete the run there, and push it again.",
        )
    signed = signature.sign(remote_digests, key)
    if signed == remote.read(folder.name, digests.SIGNATURE, signature.MAX_BYTES):
        return False
    remote.write(folder.name, digests.SIGNATURE, signed)
    return True


def _check_here(folder: Path) -> None:
    """Raises `BadFile` if the run, which is here already, is damaged."""
    run = run_damage.read_any(folder)
    if run.state == "damaged":
        raise BadFile(
            f"{folder}: the run is damaged: {run.failure}.",
            f"Delete it and pull it again: trainyard runs delete {folder.name}.",
        )


def _check_signed(folder: Path, remote: Remote, signers: Path) -> str:
    """Return the name of the signer of a run that is both here, in `folder`, and in the remote store.

    `signers`: a file of allowed signers. Raises `BadFile` if none of them signed it, or if the run here is not the
    signed one.
    """
    remote_digests = read_digests(remote, folder.name, signers)
    digest_by_name = digests.parse(remote_digests.data, remote.path(folder.name, digests.FILE))
    record = {name: path for name, path in digests.files(folder).items() if run_damage.is_record(name)}
    if altered := [
        f"{name} differs" for name, path in record.items() if digest_by_name.get(name) != digests.file_digest(path)
    ]:
        raise DamagedFile(
            f"{folder}: not the run that {remote_digests.signer} signed: {run_damage.join_reasons(altered)}."
        )
    return remote_digests.signer


def _is_in_remote(folder: Path, remote: Remote) -> bool:
    """Whether the remote store has the run in `folder`, perhaps from before its secrets were redacted, which changes
    its digest.

    Raises `BadInput` if it has another run of that id.
    """
    data = remote.read(folder.name, digests.HEAD, MAX_BYTES_BY_FILE[digests.HEAD])
    if data is None or data == read_bytes(folder / digests.HEAD):
        return data is not None
    their_head = folders.decode_head(data, remote.path(folder.name, digests.HEAD))
    our_head = folders.read_head(folder)
    if replace(their_head, digest="") == replace(our_head, digest=""):
        return True
    raise BadInput(
        f"{remote.path(folder.name)}: another run {folder.name} than the one in {folder}: their run.json differ.",
        "Delete the one that is wrong.",
    )


def _merge_tags(our_tags: dict[str, str], their_tags: dict[str, str]) -> dict[str, str]:
    """Tag -> when it was assigned; the later time for a tag that both have."""
    return {tag: max(our_tags.get(tag, ""), their_tags.get(tag, "")) for tag in {**our_tags, **their_tags}}


def _read_remote_tags(remote: Remote, id: str) -> tuple[dict[str, str], str]:
    """(tags, problem): tag -> when it was assigned in the remote store, and an empty text; or no tags and the reason
    why they cannot be read."""
    try:
        data = remote.read(id, tags.FILE, tags.MAX_BYTES)
        return tags.decode_remote(data, remote.path(id, tags.FILE)) if data is not None else {}, ""
    except BadFile as error:
        return {}, str(error)
