"""What data parallelism exchanges: gathered weights and scattered gradients a layer, or gradients once a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict import collectives, shapes
from trainyard.predict.cases import Cases, Column
from trainyard.predict.collectives import Group
from trainyard.predict.constants import Constants
from trainyard.predict.site import Site


class Exposed(NamedTuple):
    """Seconds that are waited for, and those that lie under compute."""

    seconds: Column
    hidden: Column

    def times(self, factor: Column | float) -> Exposed:
        return Exposed(self.seconds * factor, self.hidden * factor)


def overlapped(tuned: Constants, communication: Column, compute: Column) -> Exposed:
    """Of the shorter of the two `tuned.overlap` disappears under the longer."""
    hidden = tuned.overlap * np.minimum(communication, compute)
    return Exposed(communication - hidden, hidden)


def layer_weights(cases: Cases) -> tuple[Column, Column]:
    """Parameters of the mean layer on a rank: those that all its data-parallel ranks have, and those of experts."""
    dense, routed = (kind / cases.layers for kind in shapes.layer_kinds(cases))
    weights = shapes.weights(cases)
    return weights.shared + dense * weights.dense + routed * weights.routed, routed * weights.expert


def expert_replicas(cases: Cases, site: Site) -> Group:
    """The ranks that hold the same experts."""
    spread = np.where(cases.ep > 1, cases.ep, cases.tp)
    ranks = np.maximum(cases.dp * cases.cp * cases.tp / spread, 1.0)
    return collectives.group(site, ranks, spread)


class Sharded(NamedTuple):
    """Of one layer and micro-batch: weights gathered forward and backward, gradients scattered backward."""

    forward: Exposed
    again: Exposed
    scattered: Exposed


def sharded(cases: Cases, site: Site, tuned: Constants, forward: Column, backward: Column) -> Sharded:
    """`forward`, `backward`: seconds a layer takes otherwise, under which this may disappear. ZeRO-2 keeps what it has
    gathered for the backward pass, and ZeRO-1 all of it (Rajbhandari et al. 2020, arXiv:1910.02054, section 5)."""
    common, expert = layer_weights(cases)
    who, owners = collectives.shards(cases, site), expert_replicas(cases, site)
    active = (cases.divided > 0) & (cases.zero >= 2)

    def exchanged(value_bytes: Column) -> Column:
        whole = collectives.gather(site, tuned, who, common * value_bytes)
        routed = np.where(cases.experts > 0, collectives.gather(site, tuned, owners, expert * value_bytes), 0.0)
        return np.where(active, whole + routed, 0.0)

    gathered, scattered = exchanged(cases.width_bytes), exchanged(cases.reduce_bytes)
    twice = np.where(cases.zero >= 3, gathered, 0.0)
    back = overlapped(tuned, twice + scattered, backward)
    share = np.divide(twice, twice + scattered, out=np.zeros_like(back.seconds), where=twice + scattered > 0)
    return Sharded(overlapped(tuned, gathered, forward), back.times(share), back.times(1 - share))


def once(cases: Cases, site: Site, tuned: Constants, backward: Column) -> tuple[Exposed, Exposed]:
    """After the last micro-batch: gradients summed over the ranks that hold the same weights; and, where ranks divide
    the optimizer's state alone (ZeRO-1), gradients scattered and new weights gathered. `backward`: seconds of the last
    micro-batch's on a stage, under which both may disappear."""
    here = cases.layers / cases.pp
    common, expert = (here * weights for weights in layer_weights(cases))
    common = common + shapes.weights(cases).table * tables(cases) / cases.pp
    divides = cases.divided > 0
    part = np.where(divides, cases.dp_shard * cases.cp, 1.0)
    same = collectives.replicas(cases, site)
    summed = collectives.reduce(site, tuned, same, common * cases.reduce_bytes / part)
    owners, who = expert_replicas(cases, site), collectives.shards(cases, site)
    all_owners = collectives.reduce(site, tuned, owners, expert * cases.reduce_bytes)
    summed = summed + np.where(divides | (cases.experts == 0), 0.0, all_owners)
    both = cases.reduce_bytes + cases.width_bytes
    first = collectives.gather(site, tuned, who, common * both) + np.where(
        cases.experts > 0, collectives.gather(site, tuned, owners, expert * both), 0.0
    )
    divided = np.where(divides & (cases.zero < 2), first, 0.0)
    return overlapped(tuned, summed, backward), overlapped(tuned, divided, np.maximum(backward - summed, 0.0))


def tables(cases: Cases) -> Column:
    """Tables of vocabulary x width that the model has."""
    return np.where(cases.tied > 0, np.where(cases.pp > 1, 2.0, 1.0), 2.0)
