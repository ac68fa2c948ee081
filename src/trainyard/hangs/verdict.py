"""The verdict on a hang, as plain data: kind, culprits, the collective, and the activity of each rank."""

from __future__ import annotations

from typing import Literal

import msgspec

from trainyard import words
from trainyard.code_location import CodeLocation


class RankActivity(msgspec.Struct, frozen=True, kw_only=True):
    """The activity of a rank when it hung. `activity`: `waits` in the collective, `ended` it, `not_entered`, `left`
    (its process ended), `stopped`, or `no_record`. `operation`, `elements`, `dtype`: of its call in this collective,
    or of its last call if it did not enter. `location`: the line of code that issued the call, or the line at which
    the rank is if it did not enter; None if unknown. `last_ended`: sequence number of the last collective of the
    group that it ended, -1 if unknown."""

    rank: int
    activity: Literal["waits", "ended", "not_entered", "left", "stopped", "no_record"]
    operation: str = ""
    elements: int = 0
    dtype: str = ""
    location: CodeLocation | None = None
    last_ended: int = -1


class HangAnalysis(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a hang.

    `kind`: a key of words.HANGS. `ranks`: the culprits as global ranks; several if they cannot be distinguished or all
    are at fault, none if the records do not decide. `alternatives`: other kinds that the records allow. `group`,
    `description`: name and description of the process group, `members`: its global ranks; `sequence`: number of the
    collective in it, -1 if the verdict needs none; `operation`: its name. `summary`: one sentence; `evidence`: the
    facts behind it; `remedy`: the next step. `activities`: of each member. `world`: number of ranks of the job;
    `missing`: ranks without a record. `warnings`: files that could not be read and records that are incomplete.
    """

    schema: Literal["trainyard/hangs/1"] = "trainyard/hangs/1"
    kind: str
    ranks: tuple[int, ...] = ()
    alternatives: tuple[str, ...] = ()
    group: str = ""
    description: str = ""
    members: tuple[int, ...] = ()
    sequence: int = -1
    operation: str = ""
    summary: str
    evidence: str = ""
    remedy: str = ""
    activities: tuple[RankActivity, ...] = ()
    world: int = 0
    missing: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `UnknownName` for an unknown kind."""
        for kind in (self.kind, *self.alternatives):
            words.check(kind, words.HANGS, "verdict on a hang")
