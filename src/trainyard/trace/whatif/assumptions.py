"""What each change of a step assumes, in one sentence: for the command `trainyard trace what-if` and for the page."""

from __future__ import annotations

from trainyard.change import WITHOUT
from trainyard.trace.whatif.changes import (
    MEMORY,
    NETWORK,
    NO_LAUNCH_GAPS,
    NO_STRAGGLERS,
    NO_SYNCS,
    OVERLAP,
    PERFECT_OVERLAP,
    ROOFLINE,
    TYPICAL,
    parse,
)

_ASSUMPTIONS = {
    NETWORK: "Every transfer takes its measured time divided by the factor, its latency included; the wait for the "
    "last rank to arrive does not change.",
    MEMORY: "Pointwise ops, norms, reductions, embeddings, softmax, the optimizer, and copies within a device take "
    "their measured time divided by the factor; matrix products, convolutions and attention do not change.",
    NO_STRAGGLERS: "Every op takes, on every rank, its mean time on the ranks that are not late, and all ranks begin "
    "when the median rank began. Ranks that are late in turn no longer wait for each other either.",
    TYPICAL: "Every op of this rank takes its mean time on the other ranks, and it begins no later than the median of "
    "them. The other ranks keep their times, so they may wait for the next one.",
    PERFECT_OVERLAP: "Nothing in a step waits for communication except its last computation, and concurrent "
    "communication does not slow the computation.",
    OVERLAP: "Nothing in a step waits for this communication except the last computation, and it does not slow "
    "concurrent computation.",
    NO_LAUNCH_GAPS: "The host takes no time to launch work, and launched work starts without delay; the host still "
    "waits for data and for the device.",
    NO_SYNCS: "The host does not wait for the device, and its synchronising calls take no time.",
    ROOFLINE: "Work of this op takes the time that its arithmetic and its memory traffic allow on this device.",
}
_FASTER = "This work takes its measured time divided by the factor, on every rank; all other work keeps its time."
_WITHOUT_RULE = "The time that the rule of the finding attributes to its cause vanishes."


def assumption(text: str) -> str:
    """What the change `text` (`network=2x`, `without:straggler`) assumes. Raises `BadInput` if it is invalid."""
    if text.strip().startswith(WITHOUT):
        return _WITHOUT_RULE
    supposition = parse(text)
    keys = (supposition.value, supposition.target)
    return next((_ASSUMPTIONS[key] for key in keys if key in _ASSUMPTIONS), _FASTER)


ALL_REPLAYS = (
    "A replay repeats the measured operations with their dependencies. Other effects of a change (caches, clocks, "
    "other work, other sizes) are not predicted."
)
"""What every replay assumes."""
