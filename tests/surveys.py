"""Builds surveys from short lists, so that a test with many ranks shows its whole input."""

import numpy as np

from trainyard.events import Collective, DeviceWork, Events, HostSpans
from trainyard.trace.align.survey import Survey


def collective(name="all_reduce", group="0", ranks=(), seq=-1, size=64, **more):
    return Collective(name=name, group_name=group, ranks=tuple(ranks), members=len(ranks), seq=seq, size=size, **more)


def made_survey(rank, met, host="", world=0, on_device=True):
    """A survey of one rank. `met`: (collective, start, stop) in ns, in any order."""
    met = sorted(met, key=lambda row: row[1])
    collectives = [entry for entry, _, _ in met]
    kinds = list(dict.fromkeys(_unnumbered(entry) for entry in collectives))
    start = np.array([start for _, start, _ in met], np.int64)
    stop = np.array([stop for _, _, stop in met], np.int64)
    window = (int(start.min()), int(stop.max())) if met else (0, 1)
    return Survey(
        facts=_facts(rank, host, world, window),
        window=window,
        ends=(),
        on_device=on_device,
        kinds=tuple(kinds),
        row=np.arange(len(met)),
        start=start,
        stop=stop,
        kind=np.array([kinds.index(_unnumbered(entry)) for entry in collectives], np.int32),
        seq=np.array([entry.seq for entry in collectives], np.int64),
    )


def _unnumbered(entry):
    return Collective(
        name=entry.name,
        group_name=entry.group_name,
        ranks=entry.ranks,
        members=entry.members,
        size=entry.size,
        peer=entry.peer,
        receives=entry.receives,
        sent=entry.sent,
    )


def _facts(rank, host, world, span):
    i8, i32, i64 = (np.empty(0, kind) for kind in (np.int8, np.int32, np.int64))
    work = DeviceWork(
        start=i64, stop=i64, name=i32, stream=i32, what=i8, call=i32, op=i32, bytes=i64, occupancy=i8, awaits=i32
    )
    rows = HostSpans(start=i64, stop=i64, name=i32, thread=i32, what=i8, parent=i32, seq=i64, backward=i8, shape=i32)
    return Events(
        source=f"{rank}", names=(), work=work, host=rows, marks=(), span=span, rank=rank, world=world, host_name=host
    )
