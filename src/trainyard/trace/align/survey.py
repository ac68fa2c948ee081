"""The summary of one rank that cross-rank alignment needs: metadata and collectives, small for any trace size.

`measure.py` surveys each rank after classifying it; `cross_rank.align_ranks` gets all surveys, without the rows of the
ranks' events.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from trainyard import words
from trainyard.events import I32, I64, Collective, DeviceWork, Events, HostSpans
from trainyard.trace.align import steps
from trainyard.trace.classify.kernels import Classified, Keys

_COMPUTE = list(words.KINDS).index("compute")
_Table = TypeVar("_Table", DeviceWork, HostSpans)


class Survey(NamedTuple):
    """One rank's metadata and its k collectives, sorted by start. `facts`: the rank's events without rows. `ends`: step
    ends as in `steps.ends`, empty without marks. Per collective: the interval's `row`, its times, its `kind` (an index
    into `kinds`, which hold no sequence numbers) and its `seq`. `on_device`: collectives are kernels."""

    facts: Events
    window: tuple[int, int]
    ends: tuple[int, ...]
    on_device: bool
    kinds: tuple[Collective, ...]
    row: I64
    start: I64
    stop: I64
    kind: I32
    seq: I64


def survey(events: Events, classified: Classified, keys: Keys) -> Survey:
    """Extracts the survey of a classified rank. `keys`: the account and phase of each number in `classified.key`."""
    # Whether each interval is compute. Collectives may have no key yet (-1): the last element, which is false.
    is_compute = np.append(keys.kinds() == _COMPUTE, False)[classified.key]
    # Rows of the collectives, by start.
    rows = np.array(list(classified.collectives), np.int64)
    rows = rows[np.lexsort((rows, classified.start[rows]))]
    kinds: dict[Collective, int] = {}  # collective without its sequence number -> its index in `Survey.kinds`
    collectives = [classified.collectives[row] for row in rows.tolist()]
    kind = [kinds.setdefault(msgspec.structs.replace(collective, seq=-1), len(kinds)) for collective in collectives]
    metadata = msgspec.structs.replace(
        events, names=(), shapes=(), work=_drop_rows(events.work), host=_drop_rows(events.host)
    )
    return Survey(
        facts=metadata,
        window=events.window,
        ends=tuple(steps.ends(events, classified, is_compute)) if events.marks else (),
        on_device=bool(len(events.work)),
        kinds=tuple(kinds),
        row=rows,
        start=classified.start[rows],
        stop=classified.stop[rows],
        kind=np.array(kind, np.int32),
        seq=np.array([collective.seq for collective in collectives], np.int64),
    )


def _drop_rows(table: _Table) -> _Table:
    """The table with the same columns and no rows."""
    columns = {name: getattr(table, name) for name in table.__struct_fields__}
    empty = {name: value[:0].copy() for name, value in columns.items() if isinstance(value, np.ndarray)}
    return msgspec.structs.replace(table, **empty, collectives={})
