"""Decide which ranks deviate in a collective whose calls do not match, and in which way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from trainyard.hangs.collectives import Call, CollectiveTable, differences
from trainyard.hangs.expected_calls import conforms, expected_calls, is_same_call, is_same_line


class Culprits(NamedTuple):
    """The ranks to blame and why. `kind`, `alternatives`: keys of words.HANGS; `ranks`: global ranks; `reason`: how
    they were determined, part of a sentence."""

    kind: str
    ranks: tuple[int, ...]
    reason: str
    alternatives: tuple[str, ...] = ()


def deviating_ranks(table: CollectiveTable, entered: Mapping[int, Call]) -> Culprits:
    """The ranks whose calls in one collective differ from those of the others, and how.

    The largest set of equal calls is the expected one. If two sets are equally large, the expected one is that of the
    ranks which repeat their earlier steps; if that does not decide, all ranks are returned. `entered`: global rank ->
    its call; the calls differ.
    """
    clusters = _equal_calls(entered.values())
    clusters.sort(key=len, reverse=True)
    reason = "its peers agree with each other"
    if len(clusters[0]) == len(clusters[1]):
        regular = [cluster for cluster in clusters if _repeats_history(table, cluster)]
        irregular = [cluster for cluster in clusters if _departs_from_history(table, cluster)]
        if len(regular) != 1 or not irregular:
            kind, _ = _kind(table, clusters[1][0], clusters[0][0])
            return Culprits(kind, tuple(sorted(entered)), "neither call repeats an earlier step of its rank")
        clusters.sort(key=lambda cluster: cluster is not regular[0])
        reason = "it departs from its earlier steps, which its peers repeat"
    expected = max(clusters[0], key=lambda call: len(table.by_rank[call.rank]) - call.index)
    culprits = [call for cluster in clusters[1:] for call in cluster]
    kind, alternatives = _kind(table, culprits[0], expected)
    return Culprits(kind, tuple(sorted(call.rank for call in culprits)), reason, alternatives)


def irregular_ranks(table: CollectiveTable, calls: Mapping[int, Call]) -> tuple[int, ...]:
    """The ranks whose calls depart from their history, if every other rank's call repeats its own; else none."""
    verdicts = {rank: conforms(table.by_rank[rank], call.index) for rank, call in calls.items()}
    irregular = tuple(sorted(rank for rank, regular in verdicts.items() if regular is False))
    return () if None in verdicts.values() or len(irregular) == len(calls) else irregular


def uneven_culprits(table: CollectiveTable, calls: Mapping[int, Call]) -> Culprits | None:
    """The ranks that pass another size than in earlier steps to a collective that allows different sizes, such as an
    all-to-all, if the other ranks pass the same sizes as before; None if there are none."""
    verdicts = {rank: conforms(table.by_rank[rank], call.index, exact=True) for rank, call in calls.items()}
    irregular = tuple(sorted(rank for rank, regular in verdicts.items() if regular is False))
    if not irregular or len(irregular) == len(calls) or None in verdicts.values():
        return None
    rank = irregular[0]
    own = expected_calls(table.by_rank[rank], calls[rank].index)
    if calls[rank].group != own[0].group or differences(calls[rank], own[0]):
        return None
    is_skipped = any(is_same_call(other, calls[rank], exact=True) for other in _until_repeated(own[1:], own[0]))
    kinds = ("missing_collective", "wrong_size") if is_skipped else ("wrong_size", "missing_collective")
    return Culprits(kinds[0], irregular, "its size differs from its earlier steps, which its peers repeat", kinds[1:])


def kind_of_order(table: CollectiveTable, call: Call, expected: Call) -> tuple[str, tuple[str, ...]]:
    """(Kind, alternatives) of a call in place of the `expected` one: `missing_collective` if the rank skipped that one,
    else `wrong_order`.

    A rank that skips collectives reaches a later one by its usual line of code; a rank that changes their order issues
    it from another line, or issues the expected call afterwards.
    """
    following = _following(table, call, expected)
    issued_later = table.by_rank[call.rank][call.index + 1 :]
    is_later = [other for other in following if is_same_call(other, call)]
    if not is_later:
        if not following and not issued_later and _is_further_down(call, expected):
            return "missing_collective", ("wrong_order",)
        return "wrong_order", ()
    if issued_later and _continues(following, [call, *issued_later]):
        return "missing_collective", ()
    if any(is_same_call(other, expected) for other in issued_later[: len(following)]):
        return "wrong_order", ()
    lines = [is_same_line(other, call) for other in is_later]
    if issued_later:
        return "missing_collective", ()
    if True in lines:  # a line in a loop does not show in which order the loop runs
        return "missing_collective", ("wrong_order",) if _is_same_location(call, expected) else ()
    if None in lines:
        return "missing_collective", ("wrong_order",)
    return "wrong_order", ()


def _continues(following: Sequence[Call], issued: Sequence[Call]) -> bool:
    """Whether the issued calls are a part of the following ones, or begin with the end of them."""
    for start, other in enumerate(following):
        if is_same_call(other, issued[0]):
            rest = following[start:]
            return all(is_same_call(one_call, own) for one_call, own in zip(rest, issued, strict=False))
    return False


def _is_same_location(call: Call, other: Call) -> bool:
    return call.first.location is not None and call.first.location == other.first.location


def _is_further_down(call: Call, expected: Call) -> bool:
    """Whether a call was issued further down in the same function than the expected one, as after skipping that one."""
    mine, theirs = call.first.location, expected.first.location
    return (
        mine is not None
        and theirs is not None
        and (mine.file, mine.function) == (theirs.file, theirs.function)
        and mine.line > theirs.line
    )


def _kind(table: CollectiveTable, call: Call, expected: Call) -> tuple[str, tuple[str, ...]]:
    """(Kind, alternatives) of a call that does not match the `expected` one of the same collective."""
    differs = differences(call, expected)
    if "operation" in differs:
        return kind_of_order(table, call, expected)
    later = [other for other in _following(table, call, expected) if is_same_call(other, call)]
    if later:
        lines, is_expected_line = [is_same_line(other, call) for other in later], is_same_line(call, expected)
        if True in lines:  # the rank is at a later collective, which a line in a loop shares with the expected one
            return "missing_collective", (_unequal_kind(differs),) if is_expected_line else ()
        if None in lines:
            return "missing_collective", (_unequal_kind(differs), "wrong_order")
        if not is_expected_line:
            # Neighbours are swapped, while an equal size further away may be a coincidence.
            is_next = is_same_call(_following(table, call, expected)[0], call)
            return ("wrong_order", ()) if is_next else (_unequal_kind(differs), ("wrong_order",))
    return _unequal_kind(differs), ()


def _unequal_kind(differs: set[str]) -> str:
    return "wrong_dtype" if "dtype" in differs else "wrong_size"


def _following(table: CollectiveTable, call: Call, expected: Call) -> list[Call]:
    """The calls that should follow the expected one: those of the rank's own earlier steps, which have its lines of
    code, and without such those of the rank that issued `expected`."""
    own = expected_calls(table.by_rank[call.rank], call.index)
    if own and is_same_call(own[0], expected):
        return _until_repeated(own[1:], own[0])
    others = table.by_rank[expected.rank]
    issued = others[expected.index + 1 :]
    predicted = expected_calls(others, len(others))
    return _until_repeated([*issued, *predicted], expected)


def _until_repeated(calls: Sequence[Call], first: Call) -> list[Call]:
    """The calls up to the next occurrence of `first`: those of the same step."""
    listed = []
    for call in calls:
        if is_same_call(call, first) and is_same_line(call, first) is not False:
            break
        listed.append(call)
    return listed


def _equal_calls(calls: Iterable[Call]) -> list[list[Call]]:
    """Partition calls of one collective into sets of matching ones."""
    clusters: list[list[Call]] = []
    for call in calls:
        cluster = next((cluster for cluster in clusters if not differences(cluster[0], call)), None)
        if cluster is None:
            clusters.append([call])
        else:
            cluster.append(call)
    return clusters


def _repeats_history(table: CollectiveTable, cluster: Sequence[Call]) -> bool:
    return any(conforms(table.by_rank[call.rank], call.index) for call in cluster)


def _departs_from_history(table: CollectiveTable, cluster: Sequence[Call]) -> bool:
    return any(conforms(table.by_rank[call.rank], call.index) is False for call in cluster)
