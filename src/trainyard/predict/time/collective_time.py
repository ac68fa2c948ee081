"""How long ranks take to exchange data over two levels of links, as columns.

A ring visits the devices of a node before it goes on to the next, so that it is as fast as its slowest level
(Patarasuk and Yuan, JPDC 69(2), 2009). `w` of a group's ranks share a node and its ports to the others: the other
ranks of the node are in groups of their own, which use theirs at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.inputs.constants import Constants
from trainyard.predict.inputs.hardware import RankHardware


class RankGroup(NamedTuple):
    """`ranks` that take part, of which `near` share a node."""

    ranks: Column
    near: Column

    @property
    def nodes(self) -> Column:
        return self.ranks / self.near


def group(hardware: RankHardware, ranks: Column, step: Column) -> RankGroup:
    """Ranks that are `step` apart: so many others lie between two of them."""
    return RankGroup(ranks, np.clip(np.floor(hardware.per_node / step), 1.0, ranks))


def tensor(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.tp, np.ones(1))


def context(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.cp, cases.tp)


def shards(cases: Cases, hardware: RankHardware) -> RankGroup:
    """Over which weights or optimizer state are divided: those of `cp` hold the same weights, and take part."""
    return group(hardware, cases.dp_shard * cases.cp, cases.tp)


def replicas(cases: Cases, hardware: RankHardware) -> RankGroup:
    """Those that hold the same weights, or the same shards of them."""
    divides = cases.divided > 0
    ranks = cases.dp_replicate * np.where(divides, 1.0, cases.cp)
    return group(hardware, ranks, cases.tp * np.where(divides, cases.cp * cases.dp_shard, 1.0))


def experts(cases: Cases, hardware: RankHardware) -> RankGroup:
    return group(hardware, cases.ep, np.ones(1))


def _inside(hardware: RankHardware, near: Column) -> Column:
    """Bytes/s a device reaches among so many of its node: in a mesh the links to the others lie idle."""
    return np.minimum(hardware.inside, hardware.peer * np.maximum(near - 1, 1.0))


def _wire(hardware: RankHardware, tuned: Constants, who: RankGroup, size: Column) -> Column:
    """Once around the ring."""
    inside = _inside(hardware, who.near) * tuned.inside
    near = (who.near - 1) / who.near * size / inside
    ports = np.minimum(hardware.between * who.near * tuned.between, np.where(who.near > 1, inside, np.inf))
    far = (who.nodes - 1) / who.nodes * size / ports
    return np.where(who.nodes > 1, np.maximum(near, far), near)


def _hops(tuned: Constants, who: RankGroup) -> Column:
    return (who.near - 1) * tuned.inside_s + (who.nodes - 1) * tuned.between_s


def gather(hardware: RankHardware, tuned: Constants, who: RankGroup, size: Column) -> Column:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all; 0 where there is one rank."""
    wire = _wire(hardware, tuned, who, size) + _hops(tuned, who)
    return np.where(who.ranks > 1, wire, 0.0)


def reduce(hardware: RankHardware, tuned: Constants, who: RankGroup, size: Column) -> Column:
    """Seconds of an all-reduce; over many nodes a tree takes fewer hops."""
    far = np.minimum(who.nodes - 1, 2 * np.log2(np.maximum(who.nodes, 1.0)))
    hops = (who.near - 1) * tuned.inside_s + far * tuned.between_s
    return np.where(who.ranks > 1, 2 * (_wire(hardware, tuned, who, size) + hops), 0.0)


def exchange(hardware: RankHardware, tuned: Constants, who: RankGroup, size: Column) -> Column:
    """Seconds of an all-to-all in which each rank sends `size` bytes in all, its own part among them."""
    near = (who.near - 1) / who.ranks * size / (_inside(hardware, who.near) * tuned.dispatch)
    far = (who.ranks - who.near) / who.ranks * size / (hardware.between * tuned.dispatch)
    hops = tuned.inside_s + np.where(who.nodes > 1, tuned.between_s, 0.0)
    return np.where(who.ranks > 1, np.maximum(near, far) + hops, 0.0)


def dispatch(hardware: RankHardware, tuned: Constants, who: RankGroup, size: Column, experts: Column) -> Column:
    """Seconds until tokens of `size` bytes in all are with their experts, of which each uses so many: a token goes once
    to each node that has one, and from there once to each device (DeepSeek-V3, arXiv:2412.19437, section 3.2.2)."""
    near = (who.ranks - 1) * _met(who.ranks, experts) * size / (_inside(hardware, who.near) * tuned.dispatch)
    far = (who.nodes - 1) * _met(who.nodes, experts) * size / (hardware.between * tuned.dispatch)
    hops = tuned.inside_s + np.where(who.nodes > 1, tuned.between_s, 0.0)
    return np.where(who.ranks > 1, np.maximum(near, far) + hops, 0.0)


def _met(places: Column, experts: Column) -> Column:
    """The share of tokens with an expert at one of so many places, where each is as likely."""
    return 1 - (1 - 1 / np.maximum(places, 1.0)) ** experts


def send(hardware: RankHardware, tuned: Constants, size: Column, step: Column) -> Column:
    """Seconds to the rank that is `step` away."""
    near = step < hardware.per_node
    return np.where(
        near,
        size / (hardware.peer * tuned.inside) + tuned.inside_s,
        size / (hardware.between * tuned.between) + tuned.between_s,
    )
