"""Builds small `Booked` ranks from a few rows, so that a test shows all of its input."""

from typing import NamedTuple

import numpy as np

from trainyard.booked import Booked, BookedPart, Idle, Late
from trainyard.events import COPY, KERNEL, OP, Collective, DeviceWork, Events, HostSpans
from trainyard.ledger import Account

US = 1_000
STEP = 10_000 * US


class Did(NamedTuple):
    """A device interval; `by`: the host row that launched it."""

    name: str
    start: int
    stop: int
    account: str = "compute/elementwise"
    phase: str = "other"
    module: str = ""
    stream: int = 0
    bytes: int = -1
    occupancy: int = -1
    by: int = -1
    met: Collective | None = None


class Span(NamedTuple):
    """A host row; `cause`: the account that it explains idle time with."""

    name: str
    start: int
    stop: int
    what: int = OP
    cause: str = ""
    parent: int = -1
    shape: int = -1


class Gap(NamedTuple):
    """An idle stretch; `during`: the innermost host row."""

    start: int
    stop: int
    account: str = "launch_gap/python"
    phase: str = "other"
    during: int = -1


def a_rank(
    works=(), gaps=(), host=(), number=0, steps=1, device="NVIDIA A100-SXM4-80GB", cpu=False, shapes=(), waits=()
):
    """`steps` steps of STEP ns from 0 on. On a CPU works and gaps are the training thread's stretches."""
    works, gaps, host = sorted(works, key=lambda did: did.start), sorted(gaps), list(host)
    stretches = sorted([*works, *gaps], key=lambda item: item.start) if cpu else works
    names = list(dict.fromkeys(text for item in (*works, *host) for text in (item.name, getattr(item, "module", ""))))
    causes = sorted({span.cause for span in host if span.cause})
    accounts = [(item.account, item.phase) for item in (*works, *gaps)]
    accounts += [(f"straggler/{wait[2]}", "other") for wait in waits]
    pairs = list(dict.fromkeys(accounts))
    key = lambda item: pairs.index((item.account, item.phase))  # noqa: E731
    ints = lambda values, kind=np.int64: np.array(list(values), kind)  # noqa: E731
    number_of = lambda name: names.index(name) if name else -1  # noqa: E731
    own = [
        item if isinstance(item, Did) else Did("", item.start, item.stop, item.account, item.phase, by=item.during)
        for item in stretches
    ]
    n, m = len(own), len(host)
    on_device = [] if cpu else own
    work = DeviceWork(
        start=ints(did.start for did in on_device), stop=ints(did.stop for did in on_device),
        name=ints((number_of(did.name) for did in on_device), np.int32),
        stream=ints((did.stream for did in on_device), np.int32),
        what=ints((COPY if did.account.startswith("copy") else KERNEL for did in on_device), np.int8),
        call=ints((did.by for did in on_device), np.int32), op=np.full(len(on_device), -1, np.int32),
        bytes=ints(did.bytes for did in on_device), occupancy=ints((did.occupancy for did in on_device), np.int8),
        awaits=np.full(len(on_device), -1, np.int32),
    )  # fmt: skip
    table = HostSpans(
        start=ints(span.start for span in host), stop=ints(span.stop for span in host),
        name=ints((number_of(span.name) for span in host), np.int32), thread=np.zeros(m, np.int32),
        what=ints((span.what for span in host), np.int8), parent=ints((span.parent for span in host), np.int32),
        seq=np.full(m, -1), backward=np.zeros(m, np.int8), shape=ints((span.shape for span in host), np.int32),
    )  # fmt: skip
    events = Events(
        source="made", names=tuple(names), streams=("7", "20"), shapes=tuple(shapes), work=work, host=table, marks=(),
        span=(0, steps * STEP), rank=number, device="" if cpu else device,
    )  # fmt: skip
    idle = Idle(
        start=ints(gap.start for gap in gaps), stop=ints(gap.stop for gap in gaps),
        key=ints((key(gap) for gap in gaps), np.int32), ns=ints(gap.stop - gap.start for gap in gaps),
        host=ints((gap.during for gap in gaps), np.int32), next=np.full(len(gaps), -1, np.int32),
    )  # fmt: skip
    late = Late(
        start=ints(wait[0] for wait in waits), stop=ints(wait[0] + wait[1] for wait in waits),
        key=ints((pairs.index((f"straggler/{wait[2]}", "other")) for wait in waits), np.int32),
        late=ints((wait[3] for wait in waits), np.int32), ns=ints(wait[1] for wait in waits),
    )  # fmt: skip
    return Booked(
        events=events, pairs=tuple((Account.parse(text), phase) for text, phase in pairs),
        parts=tuple(BookedPart(label=str(step), start=step * STEP, stop=(step + 1) * STEP) for step in range(steps)),
        start=ints(did.start for did in own), stop=ints(did.stop for did in own),
        key=ints((key(did) for did in own), np.int32), name=ints((number_of(did.name) for did in own), np.int32),
        module=ints((number_of(did.module) for did in own), np.int32),
        launcher=ints((did.by for did in own), np.int32), begins=np.ones(n, bool),
        owned=ints(did.stop - did.start for did in own), flops=np.full(n, -1), bytes=ints(did.bytes for did in own),
        collectives={row: did.met for row, did in enumerate(own) if did.met is not None}, idle=idle, waits=late,
        phase=np.zeros(m, np.int8), cause=ints((causes.index(s.cause) if s.cause else -1 for s in host), np.int8),
        causes=tuple(causes), host_module=np.full(m, -1, np.int32),
    )  # fmt: skip
