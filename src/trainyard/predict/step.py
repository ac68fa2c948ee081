"""A step's wall time, account by account, as columns of seconds: the mean over pipeline stages.

Micro-batches pass the stages at the pace of the slowest; before its first and after its last a stage waits for the
others (Huang et al. 2019, arXiv:1811.06965, section 2.2; interleaved stages divide that wait: Narayanan et al. 2021,
arXiv:2104.04473, section 2.2.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trainyard.predict import collectives, gradients, shapes
from trainyard.predict.cases import Cases, Column
from trainyard.predict.constants import Constants
from trainyard.predict.gradients import Exposed
from trainyard.predict.layer import Phase, head, layer, recomputed
from trainyard.predict.site import Site


class Line(NamedTuple):
    """Seconds of an account in a phase; `hidden`: that lie under compute."""

    account: str
    phase: str
    seconds: Column
    hidden: Column | float = 0.0


class Step(NamedTuple):
    """`lines` sum to `wall`, up to rounding."""

    wall: Column
    lines: list[Line]


def step(cases: Cases, site: Site, tuned: Constants) -> Step:
    forward, backward = layer(cases, site, tuned)
    again = recomputed(cases, forward)
    back_through = again.plus(backward).seconds  # launched as one: the host may fall behind in one and catch up
    sharded = gradients.sharded(cases, site, tuned, forward.seconds, back_through)
    exposed = sum((part.seconds for part in sharded), np.zeros(1))
    here, many = cases.layers / cases.pp, cases.accumulate
    stage = here * (forward.seconds + back_through + exposed) + tuned.microbatch_s
    ahead, back, loss = head(cases, site, tuned)
    last, hop = ahead + back + loss, _hop(cases, site, tuned)
    fill = (cases.pp - 1) * (stage + hop) / cases.interleave
    summed, divided = gradients.once(cases, site, tuned, here * back_through)
    update = _update(cases, site, tuned)
    wall = many * (stage + last + hop) + fill + summed.seconds + divided.seconds + update + tuned.step_s
    times = many * here
    lines = [
        *_of_layers("forward", forward, times),
        Line("launch_gap/launch", "forward", times * forward.gap),
        *_of_layers("recompute", again, times),
        *_of_layers("backward", backward, times),
        Line("launch_gap/launch", "backward", times * again.plus(backward).gap),
        Line("compute/matmul", "forward", many * ahead / cases.pp),
        Line("compute/matmul", "backward", many * back / cases.pp),
        Line("compute/softmax", "forward", many * loss / cases.pp),
        _exposed("comm/all_gather@dp_shard", "forward", sharded.forward.times(times)),
        _exposed("comm/all_gather@dp_shard", "backward", sharded.again.times(times)),
        _exposed("comm/reduce_scatter@dp_shard", "backward", sharded.scattered.times(times)),
        Line("comm/send_recv@pp", "other", many * hop),
        _exposed("comm/all_reduce@dp_replicate", "backward", summed),
        _exposed("comm/reduce_scatter@dp_shard", "optimizer", divided),
        Line("compute/optimizer", "optimizer", update),
        Line("bubble/warmup", "other", fill + many * last * (1 - 1 / cases.pp)),
        Line("launch_gap/python", "other", many * tuned.microbatch_s + tuned.step_s),
    ]
    return Step(wall, lines)


def _of_layers(name: str, phase: Phase, times: Column) -> list[Line]:
    accounts = {
        "compute/matmul": phase.matmul, "compute/attention": phase.attention, "compute/elementwise": phase.elementwise,
        "compute/moe_route": phase.route, "comm/all_reduce@tp": phase.parallel, "comm/all_gather@cp": phase.context,
        "comm/all_to_all@ep": phase.dispatch,
    }  # fmt: skip
    return [Line(account, name, seconds * times) for account, seconds in accounts.items()]


def _exposed(account: str, phase: str, part: Exposed) -> Line:
    return Line(account, phase, part.seconds, part.hidden)


def _hop(cases: Cases, site: Site, tuned: Constants) -> Column:
    """A micro-batch's activations to the next stage and their gradients back; each rank of tp sends its part."""
    size = cases.tokens * cases.width * cases.width_bytes / cases.tp
    one = collectives.send(site, tuned, size, cases.tp * cases.cp * cases.dp)
    return np.where(cases.pp > 1, 2 * one * cases.interleave, 0.0)


def _update(cases: Cases, site: Site, tuned: Constants) -> Column:
    common, expert = gradients.layer_weights(cases)
    here = cases.layers / cases.pp
    shards = np.where(cases.divided > 0, cases.dp_shard * cases.cp, 1.0)
    table = shapes.weights(cases).table * gradients.tables(cases) / cases.pp
    owners = np.where(cases.divided > 0, gradients.expert_replicas(cases, site).ranks, 1.0)
    kept = (here * common + table) / shards + here * expert / owners
    return kept * tuned.optimizer / (site.bandwidth * tuned.bandwidth)
