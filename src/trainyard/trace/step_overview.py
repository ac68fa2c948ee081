"""Which parts of the window are steps, how that is known, and which parts the mean leaves out.

A part is a labelled interval of a rank's window (`StepPart`); it is partial if it is not a full step, such as the work
before the first step mark, an evaluation or a warm-up step. `facts` are the `Events` of each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from trainyard import units, words
from trainyard.events import Events
from trainyard.ledger import AFTER, BEFORE, WINDOW
from trainyard.step_marks import STEP_MARK
from trainyard.trace.align.steps import BETWEEN_STEPS, StepPart

_MIN_STEPS = 5
_LONG, _MAX_LONG_SHARE = 3, 0.2
"""Length of a long step in medians, and the share of the steps that can be long."""
_MOST_NAMED = 3
_NOTED_SHARE = 0.05
"""Share of the window from which a note states it."""
_LARGE_SHARE = 0.3
"""Share of the window from which work between steps is named before the steps."""
_SAVE_LESS = " Training stops meanwhile: save in the background (async_save), sharded by rank, or less often."
_HINT = (
    "torch.profiler writes ProfilerStep marks if it has a schedule and step() is called; --mark selects other "
    "annotations."
)


class PartLeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the window that the mean leaves out. `kind`: a key of words.PARTS; `ns`: its length, on the rank with
    the longest one; `share`: that length as a fraction of the rank's window; `ranks`: the ranks that have it."""

    label: str
    kind: str
    ns: int
    share: float = 0.0
    ranks: tuple[int, ...]


class LongStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that counts in the mean although it took `times` as long as the median one."""

    label: str
    ns: int
    times: float


class StepOverview(msgspec.Struct, frozen=True, kw_only=True):
    """How the window divides into steps. `how`: the file marks them, they are inferred, or the whole window is one
    part. `confidence`, `evidence`: of inferred steps; without steps, the evidence that was not clear. `steps`: full
    steps of the rank that has the most; `long`: long steps, which count in the mean."""

    how: Literal["marked", "inferred", "window"]
    confidence: float | None = None
    evidence: str = ""
    steps: int = 0
    left_out: tuple[PartLeftOut, ...] = ()
    long: tuple[LongStep, ...] = ()


def overview(facts: Sequence[Events], parts: Sequence[Sequence[StepPart]]) -> StepOverview:
    """Summarises how the window of all ranks divides into steps.

    `facts`, `parts`: the events and the parts of each rank, in order of rank. The confidence is the lowest of any rank;
    the evidence is that of the first rank whose steps are inferred.
    """
    is_window = all(part.label == WINDOW for rank_parts in parts for part in rank_parts)
    inferred = [events.inferred for events in facts if events.inferred]
    how = "window" if is_window else "inferred" if any(steps.source for steps in inferred) else "marked"
    return StepOverview(
        how=how,
        confidence=min(steps.confidence for steps in inferred if steps.source) if how == "inferred" else None,
        evidence=next((steps.evidence for steps in inferred), ""),
        steps=max(sum(not part.partial for part in rank_parts) for rank_parts in parts),
        left_out=_left_out(facts, parts),
        long=_long_steps(parts),
    )


def _left_out(facts: Sequence[Events], parts: Sequence[Sequence[StepPart]]) -> tuple[PartLeftOut, ...]:
    """The parts that are not full steps, merged over ranks: one for each label, in order of appearance."""
    # Label -> rank number -> its part of that label.
    by_label: dict[str, dict[int, StepPart]] = {}
    for events, rank_parts in zip(facts, parts):
        for part in rank_parts:
            if part.partial:
                by_label.setdefault(part.label, {})[events.rank] = part
    window_ns = {
        events.rank: sum(part.stop - part.start for part in rank_parts) for events, rank_parts in zip(facts, parts)
    }
    left_out = []
    for label, by_rank in by_label.items():
        rank, longest = max(by_rank.items(), key=lambda item: item[1].stop - item[1].start)
        ns = longest.stop - longest.start
        share = ns / window_ns[rank] if ns else 0.0
        left_out.append(PartLeftOut(label=label, kind=longest.kind, ns=ns, share=share, ranks=tuple(by_rank)))
    return tuple(left_out)


def _long_steps(parts: Sequence[Sequence[StepPart]]) -> tuple[LongStep, ...]:
    """The full steps that took at least `_LONG` times the median one, of the rank with the most full steps.

    Empty for fewer than `_MIN_STEPS` steps, and if more than `_MAX_LONG_SHARE` of them are long: then their length
    varies, and none of them is an exception.
    """
    full = max(([part for part in rank_parts if not part.partial] for rank_parts in parts), key=len)
    if len(full) < _MIN_STEPS:
        return ()
    median_ns = median(part.stop - part.start for part in full)
    long = [part for part in full if part.stop - part.start >= _LONG * median_ns > 0]
    if len(long) > _MAX_LONG_SHARE * len(full):
        return ()
    return tuple(
        LongStep(label=part.label, ns=part.stop - part.start, times=round((part.stop - part.start) / median_ns, 1))
        for part in long
    )


def describe_steps(steps: StepOverview, facts: Sequence[Events]) -> list[str]:
    """Describes how the steps are known in sentences, the most important first; none if the file marks them.

    `facts`: the events of each rank. A `mark` other than torch.profiler's that no annotation begins with is reported.
    """
    marks = {events.mark for events in facts if not events.marks or events.inferred} - {STEP_MARK}
    notes = [f"No annotation's name is or begins with {mark!r}, which --mark names." for mark in sorted(marks)]
    if steps.how == "inferred":
        certainty = f"{100 * (steps.confidence or 0):.0f} % sure"
        notes.append(f"The file has no step marks. Steps are inferred, {certainty}: {steps.evidence}. {_HINT}")
    elif steps.how == "window" and not all(events.marks for events in facts):
        doubts = f" Evidence of steps is not clear: {steps.evidence}." if steps.evidence else ""
        notes.append(f"No annotations mark the steps, so the whole window is booked as one step. {_HINT}{doubts}")
    return notes


def describe_left_out(steps: StepOverview, ranks: int) -> list[str]:
    """Describes the parts that the mean leaves out in sentences, warm-up and work between steps first, then incomplete
    steps, then long steps, which are in the mean.

    `ranks`: number of ranks of the trace; with several, a sentence names those that have the part.
    """
    notes: list[str] = []
    for kind in ("warmup", *BETWEEN_STEPS):
        if parts := [part for part in steps.left_out if part.kind == kind]:
            labels = [label for part in parts if (label := _step_at(part))]
            position = (
                f"at step{'s' if len(labels) > 1 else ''} {units.listed(labels, _MOST_NAMED)}; " if labels else ""
            )
            longest = units.show_time(max(part.ns for part in parts))
            long = longest if len(parts) == 1 else f"up to {longest} each"
            verb = "is" if len(parts) == 1 else "are"
            share = sum(part.share for part in parts)
            of_window = f", {100 * share:.0f} % of the window" if share >= _NOTED_SHARE else ""
            advice = _SAVE_LESS if kind == "checkpoint" and of_window else ""
            count = units.counted(len(parts), words.PARTS[kind].label)
            notes.append(f"{count} ({position}{long}{of_window}) {verb} left out of the mean.{advice}")
    notes += [_describe_cut(part, ranks) for part in steps.left_out if part.kind == "cut"]
    if steps.long:
        named = ", ".join(
            f"{step.label} ({units.show_time(step.ns)}, {step.times:,.1f} times the median)"
            for step in steps.long[:_MOST_NAMED]
        )
        more = f" and {len(steps.long) - _MOST_NAMED} more" if len(steps.long) > _MOST_NAMED else ""
        noun = "Step" if len(steps.long) == 1 else "Steps"
        took = "took much longer than the others, but counts" if len(steps.long) == 1 else "took longer, but count"
        notes.append(f"{noun} {named}{more} {took} in the mean: the file shows no evaluation and no checkpoint there.")
    return notes


def main_interruption(steps: StepOverview) -> str:
    """`2 checkpoints take 81 % of the window`: the kind of work between steps that takes the most time, if that is at
    least `_LARGE_SHARE` of the window; else empty."""
    parts_by_kind = {kind: [part for part in steps.left_out if part.kind == kind] for kind in BETWEEN_STEPS}
    kind, parts = max(parts_by_kind.items(), key=lambda item: sum(part.share for part in item[1]))
    share = sum(part.share for part in parts)
    if share < _LARGE_SHARE:
        return ""
    verb = "takes" if len(parts) == 1 else "take"
    return f"{units.counted(len(parts), words.PARTS[kind].label)} {verb} {100 * share:.0f} % of the window"


def _step_at(part: PartLeftOut) -> str:
    """The label of the step that a part between steps follows, or of the mark that it fills."""
    return part.label.partition(f" {part.kind}")[0] if part.label != part.kind else ""


def _describe_cut(part: PartLeftOut, ranks: int) -> str:
    """Describes an incomplete part that the mean leaves out in a sentence. `ranks`: number of ranks of the trace."""
    subjects = {BEFORE: "Work from before the first mark", AFTER: "Work from after the last complete step"}
    subject = subjects.get(part.label, f"Step {part.label}, which is cut off,")
    which = f"rank {part.ranks[0]}" if len(part.ranks) == 1 else f"{len(part.ranks)} of {ranks} ranks"
    on = f" on {which}" if ranks > 1 else ""
    longest = "up to " if len(part.ranks) > 1 else ""
    return f"{subject} ({longest}{units.show_time(part.ns)}{on}) is left out of the mean."
