"""Batch shares: how many micro-batches of a step each data-parallel replica computes, relative to the others.

A list of shares has one item for each group of consecutive replicas, and all groups have the same size: on 4 replicas,
`(3, 1)` gives 3 micro-batches to replicas 0 and 1 for each one of replicas 2 and 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from trainyard import limits
from trainyard.errors import BadJob

Shares = tuple[int, ...]
_NEAR_BEST = 0.98
"""Fraction of the best throughput that smaller shares are preferred to."""


def check(shares: Shares, replicas: int) -> None:
    """Raises `BadJob` for a share out of range, or if the shares do not divide the replicas into groups of equal
    size."""
    for share in shares:
        if not 1 <= share <= limits.SAMPLES.most:
            raise BadJob(
                f"batch_shares has an item {limits.show(share)}, but each must be from 1 to {limits.SAMPLES.most:,}: "
                "every replica computes at least one micro-batch.",
                "Leave out devices that are too slow to be worth their share.",
            )
    if shares and replicas % len(shares):
        raise BadJob(
            f"batch_shares has {len(shares)} items for {replicas} data-parallel replicas (dp_replicate * dp_shard): "
            f"{replicas} % {len(shares)} = {replicas % len(shares)}, but each item is the share of an equal number of "
            "consecutive replicas.",
            f"Use {gcd(len(shares), replicas)} or {replicas} items.",
        )


def lowest_terms(shares: Shares) -> Shares:
    """The same proportions in the smallest whole numbers; `(1,)` for no shares, which means equal ones."""
    divisor = gcd(*shares)
    return tuple(share // divisor for share in shares) or (1,)


def fastest(rates: Sequence[float], micro_batches: int) -> Shares:
    """The division of `micro_batches` over replicas that ends first: the longest time of any replica is minimal.

    `rates`: micro-batches per second of each replica, positive. Each replica gets at least one of them. Raises `BadJob`
    if there are fewer micro-batches than replicas. On equal times, earlier replicas get more.
    """
    if micro_batches < len(rates):
        raise BadJob(
            f"{micro_batches} micro-batches cannot be divided over {len(rates)} replicas.",
            f"Use at least {len(rates)} micro-batches.",
        )
    counts = [1] * len(rates)
    for _ in range(micro_batches - len(rates)):
        next_ends = [(count + 1) / rate for count, rate in zip(counts, rates)]
        counts[next_ends.index(min(next_ends))] += 1
    return tuple(counts)


def suggest(rates: Sequence[float], most: int = 8) -> Shares:
    """Shares in small whole numbers for replicas with these rates, in lowest terms: the division of the fewest
    micro-batches whose throughput is within `_NEAR_BEST` of the best one's, among those of up to `most` micro-batches
    per replica."""

    def throughput(shares: Shares) -> float:
        return sum(shares) / max(share / rate for share, rate in zip(shares, rates))

    divisions = [fastest(rates, total) for total in range(len(rates), most * len(rates) + 1)]
    best = max(map(throughput, divisions))
    return lowest_terms(next(shares for shares in divisions if throughput(shares) >= _NEAR_BEST * best))
