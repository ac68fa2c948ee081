"""The state of a record: which runs of the command are complete, and by which command and options.

`record.json` in the folder of the record is replaced after each run, so that an interrupted recording continues.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from trainyard.errors import BadFile, BadInput, PlaceUnwritable
from trainyard.formats.atomic import write_durable
from trainyard.launch.process_lock import FILE as LOCK_FILE
from trainyard.launch.process_lock import lock_for_processes
from trainyard.numerics.bisect.swap import Swap
from trainyard.numerics.record_files import FORMAT, rank_files, recorded_variants, variants
from trainyard.numerics.tensor_record import Level

_FILE = "record.json"
_MOST_BYTES = 1 << 24
_LOCK_WAIT_S = 3.0
"""Time that the processes of a recorder that was killed have to end."""
_IN_USE = "A command is still being recorded into it: wait for it to end, or end it first."
_SCRIPTS = (".py", ".sh", ".toml", ".yaml", ".yml")
"""Suffixes of files in a command that a training reads; it may write others."""


class RecordOptions(NamedTuple):
    """The extent of a record. `replicas`: number of jittered runs; with 0, only the plain run is recorded, without a
    float64 reference. `steps`: from 0. `swap`: computes modules in another way than the command does."""

    steps: Sequence[int] = (0, 1, 2)
    level: Level = "operations"
    replicas: int = 4
    most_elements: int = 0
    swap: Swap | None = None


class RecordedVariant(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and extent of one run of the command. `records`: of all ranks; `size`: bytes of the files."""

    variant: str
    ranks: int
    records: int
    seconds: float
    size: int


class RecordOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that all runs of a record have in common. `format`: of the files. `command`: with hidden secrets.
    `scripts`: hash of each script and job file that the command names. `environment`: variables that change results."""

    format: int
    command: tuple[str, ...]
    scripts: dict[str, str]
    environment: dict[str, str]
    steps: tuple[int, ...]
    level: Level
    most_elements: int


class RecordState(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas`: the number that was requested last; `runs`: those that are complete."""

    schema: Literal["trainyard/numerics-record-state/1"] = "trainyard/numerics-record-state/1"
    origin: RecordOrigin
    replicas: int
    runs: tuple[RecordedVariant, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The variants that were requested and are not complete."""
        complete = {run.variant for run in self.runs}
        return tuple(variant for variant in variant_names(self.replicas) if variant not in complete)


def variant_names(replicas: int) -> list[str]:
    """The variants of a record: the command as it is, and with replicas also in float64 and jittered."""
    return ["plain", *(["float64"] if replicas else []), *(f"replica-{number}" for number in range(1, replicas + 1))]


def origin_of(command: Sequence[str], options: RecordOptions, environment: Mapping[str, str]) -> RecordOrigin:
    """The origin of a record. `command`: with hidden secrets; `environment`: of the variables that change results."""
    scripts = [word for word in command if word.endswith(_SCRIPTS) and Path(word).is_file()]
    return RecordOrigin(
        format=FORMAT,
        command=tuple(command),
        scripts={script: _digest(script) for script in scripts},
        environment=dict(environment),
        steps=tuple(options.steps),
        level=options.level,
        most_elements=options.most_elements,
    )


def read_state(folder: Path) -> RecordState | None:
    """The state of the record in a folder; None if it has none. Raises `BadFile`."""
    path = folder / _FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=RecordState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}.", "Check the file.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadFile(f"{path}: {error}.", "Record again into a new folder.") from error


def usable_variants(folder: Path) -> list[str]:
    """The variants of a record, sorted, without runs that are not complete, except the plain run: a training that
    failed has records until then. Raises `BadFile`."""
    state, known = read_state(folder), variants(folder)
    if state is None:
        return known
    complete = {run.variant for run in state.runs}
    return [variant for variant in known if variant == "plain" or variant in complete]


def begin_record(folder: Path, origin: RecordOrigin, replicas: int) -> RecordState:
    """Begins a record or continues it: runs that are complete are kept, the folders of others are removed. The folder
    must be locked. Raises `BadInput` if the folder has a record of another origin, or other files."""
    state = read_state(folder)
    recorded = recorded_variants(folder)
    if state is None:
        others = sorted(path.name for path in folder.iterdir() if path.name != LOCK_FILE)
        if others:
            raise BadInput(
                f"{folder} is not empty (it has {others[0]}), and is not a record that can be continued.",
                "Pass a new folder.",
            )
    runs = tuple(run for run in state.runs if _is_complete(folder, run)) if state is not None else ()
    if state is not None and recorded:  # nothing is lost if a script was changed before its first run was complete
        _check_same_origin(folder, state.origin, origin if runs else replace(origin, scripts=state.origin.scripts))
    for variant in set(recorded) - {run.variant for run in runs}:
        shutil.rmtree(folder / variant)
    begun = RecordState(origin=origin, replicas=replicas, runs=runs)
    write_state(folder, begun)
    return begun


def write_state(folder: Path, state: RecordState) -> None:
    """Replaces the state of a record. Raises `PlaceUnwritable`."""
    try:
        write_durable(folder / _FILE, msgspec.json.format(msgspec.json.encode(state)) + b"\n")
    except OSError as error:
        raise _unwritable(folder, error) from error


@contextmanager
def lock_record(folder: Path) -> Iterator[int]:
    """Makes the folder of a record if it is missing, and locks it. Yields the file descriptor of the lock: the lock
    lasts until all processes that inherit it have ended. Raises `RunInUse` if they have not after 3 seconds, and
    `PlaceUnwritable`."""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(lock_for_processes(folder, _LOCK_WAIT_S, _IN_USE))
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield lock


def _unwritable(folder: Path, error: OSError) -> PlaceUnwritable:
    return PlaceUnwritable(
        f"{folder} cannot be written: {error.strerror or error}.", "Pass a folder that you may write to."
    )


def _is_complete(folder: Path, run: RecordedVariant) -> bool:
    """Whether the files of a run that was completed are still there."""
    paths = rank_files(folder / run.variant).values() if (folder / run.variant).is_dir() else ()
    return len(paths) == run.ranks and sum(os.path.getsize(path) for path in paths) == run.size


def _check_same_origin(folder: Path, recorded: RecordOrigin, requested: RecordOrigin) -> None:
    """Raises `BadInput` with the first difference of two origins."""
    difference = _difference(recorded, requested)
    if difference:
        raise BadInput(
            f"{folder} has a record that cannot be continued: {difference}.",
            "Pass a new folder, or the command and options of the record.",
        )


def _difference(recorded: RecordOrigin, requested: RecordOrigin) -> str:
    """The first difference of two origins; empty if they are equal."""
    if recorded.format != requested.format:
        return f"its files have format {recorded.format}, and this version writes {requested.format}"
    if recorded.command != requested.command:
        return f"its command is `{shlex.join(recorded.command)}`, not `{shlex.join(requested.command)}`"
    for option in ("steps", "level", "most_elements"):
        was, now = (_option_text(getattr(origin, option)) for origin in (recorded, requested))
        if was != now:
            return f"it has {option.replace('_', ' ')} {was}, and {now} was requested"
    for script, digest in requested.scripts.items():
        if recorded.scripts.get(script) != digest:
            return f"{script} has changed since"
    for variable in sorted(recorded.environment.keys() | requested.environment.keys()):
        was, now = (origin.environment.get(variable, "not set") for origin in (recorded, requested))
        if was != now:
            return f"the variable {variable} was {was} and is now {now}"
    return ""


def check_scripts(folder: Path) -> None:
    """Raises `BadInput` if a script that the command of a record names has changed since, so that the command would
    train something else."""
    state = read_state(folder)
    for script, digest in state.origin.scripts.items() if state else ():
        if Path(script).is_file() and _digest(script) != digest:
            raise BadInput(
                f"{script} has changed since {folder} was recorded.",
                "Restore it or record again. Keep variants in files of their own, or behind an option.",
            )


def _digest(script: str) -> str:
    return hashlib.sha256(Path(script).read_bytes()).hexdigest()


def _option_text(value: object) -> str:
    """A value of an option as text: steps as a list of the first few."""
    if not isinstance(value, tuple):
        return str(value)
    steps = ", ".join(map(str, value[:8]))
    return f"{steps}, … ({len(value):,} steps)" if len(value) > 8 else steps
