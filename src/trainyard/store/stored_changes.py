"""The JSON documents that commands on stored runs print."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard.store.index.run_index import RunRow


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The stored runs, newest first."""

    schema: Literal["trainyard/runs/1"] = "trainyard/runs/1"
    runs: tuple[RunRow, ...]


class RunTag(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a run, and a tag that it was given or lost."""

    schema: Literal["trainyard/run-tag/1"] = "trainyard/run-tag/1"
    run: str
    tag: str = ""
    untagged: str = ""


class DeletedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a run whose folder was deleted."""

    schema: Literal["trainyard/deleted-run/1"] = "trainyard/deleted-run/1"
    run: str
    deleted: bool = True


class ExportedWeights(msgspec.Struct, frozen=True, kw_only=True):
    """A safetensors file that was written. `step`: the last step that its weights include, counted from 0; `bytes`: of
    the weights; `rejected`: newer checkpoints that were damaged, with the reasons."""

    schema: Literal["trainyard/weights/1"] = "trainyard/weights/1"
    run: str
    out: str
    step: int
    tensors: int
    bytes: int
    rejected: tuple[str, ...] = ()


class CopiedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was pushed or pulled. `files` and `bytes` that were sent: 0 if the run was there already. `signed`:
    whether a new signature was sent. `signer`: who signed the run's digests, if that was checked. `notes`: messages for
    the user. `problem`: why the run was copied without its tags."""

    id: str
    files: int = 0
    bytes: int = 0
    signer: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""
    signed: bool = False


class RefusedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was not copied, and the reason."""

    id: str
    error: str


class CopiedRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What `trainyard runs push` or `pull` copied."""

    schema: Literal["trainyard/copied/1"] = "trainyard/copied/1"
    runs: tuple[CopiedRun, ...]
    refused: tuple[RefusedRun, ...] = ()
