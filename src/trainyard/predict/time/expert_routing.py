"""Ranks and nodes that the experts of a token are on, as columns of shape [case].

All experts are equally likely, or all experts of a token's groups if routing is limited to `topk_group` of `n_group`
groups (node-limited routing: DeepSeek-V3, arXiv:2412.19437, section 2.1.2). Groups are consecutive experts, and ranks
hold consecutive experts, so that a group is on as few ranks and nodes as possible.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict.inputs.cases import Cases, Column
from trainyard.predict.time.collective_time import RankGroup


class Reach(NamedTuple):
    """Expected number of other ranks, and of other nodes, with experts of a token."""

    ranks: Column
    nodes: Column


def reach(cases: Cases, members: RankGroup) -> Reach:
    """The ranks and nodes of the expert-parallel group `members` that a token is sent to."""
    return Reach(_others(cases, members.ranks), _others(cases, members.nodes))


def _others(cases: Cases, targets: Column) -> Column:
    """Expected number of the `targets` ranks or nodes with an expert of a token, without the token's own."""
    spread = _hit(targets, cases.active_experts)
    if (cases.topk_group < cases.n_group).any():
        limited = np.minimum(_hit_in_groups(cases, targets), spread)
        spread = np.where(cases.topk_group < cases.n_group, limited, spread)
    return spread * (targets - 1) / targets


def _hit(targets: Column, draws: Column) -> Column:
    """Expected number of `targets` equally likely targets that at least one of `draws` independent draws hits."""
    targets = np.maximum(targets, 1.0)
    return targets * (1 - (1 - 1 / targets) ** draws)


def _hit_in_groups(cases: Cases, targets: Column) -> Column:
    """As `_hit`, if a token's experts are in `topk_group` of `n_group` groups. A target has several groups, or a group
    is on several targets."""
    groups, experts = np.maximum(cases.n_group, 1.0), cases.active_experts
    groups_hit = _hit(cases.topk_group, experts)  # different groups
    misses = np.ones(1)  # probability that none of the groups of a target is hit
    for index in range(int(np.max(groups / targets))):
        missed = np.clip((groups - groups_hit - index) / np.maximum(groups - index, 1.0), 0.0, 1.0)
        misses = misses * np.where(index < groups / targets, missed, 1.0)
    with_parts_of_groups = _hit(cases.topk_group * targets / groups, experts)
    return np.where(targets <= groups, targets * (1 - misses), with_parts_of_groups)
