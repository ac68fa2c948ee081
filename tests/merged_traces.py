"""Kineto documents of several ranks merged into one, in the shapes that public tools write."""

import copy
import itertools
import math

_DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def fuse(documents: list[dict], states_rank: bool = True, names_processes: bool = False) -> dict:
    """TraceLens' TraceFusion: pids, ids and correlation ids are offset by a power of ten per rank, args state the rank
    (`states_rank`), and newer versions name the processes (`names_processes`). The header is lost."""
    events = []
    offsets = _offsets(documents[0]["traceEvents"])
    for rank, document in enumerate(documents):
        for event in copy.deepcopy(document["traceEvents"]):
            args = event.setdefault("args", {})
            if states_rank:
                args["rank"] = rank
            for holder, field in ((event, "pid"), (event, "id"), (args, "correlation")):
                if isinstance(holder.get(field), int):
                    args[f"{field}_raw"] = holder[field]
                    holder[field] += rank * offsets[field]
            events.append((rank, event))
    named = {event["pid"]: (rank, event) for rank, event in reversed(events)} if names_processes else {}
    labels = [
        _metadata(pid, f"RANK {rank} - {'GPU' if event.get('cat') in _DEVICE_CATEGORIES else 'CPU'}")
        for pid, (rank, event) in named.items()
    ]
    return {"traceEvents": [event for _, event in events] + labels}


def _offsets(events: list[dict]) -> dict[str, int]:
    largest = dict.fromkeys(("pid", "id", "correlation"), 0)
    for event, field in itertools.product(events, largest):
        value = event.get("args", {}).get(field) if field == "correlation" else event.get(field)
        largest[field] = max(largest[field], value) if isinstance(value, int) else largest[field]
    return {field: 10 ** (math.ceil(math.log10(value + 1)) + 1) for field, value in largest.items()}


def prefix_pids(documents: list[dict], prefix: str = "[TP{:02d}] {}") -> dict:
    """SGLang's merger: the pid becomes a text that begins with the rank; the header is that of the first file."""
    merged = dict(documents[0])
    merged["traceEvents"] = [
        {**event, "pid": prefix.format(rank, event.get("pid"))}
        for rank, document in enumerate(documents)
        for event in copy.deepcopy(document["traceEvents"])
    ]
    return merged


def share_pids(documents: list[dict]) -> dict:
    """One pid per rank for host and device, and `Rank 3` as the process's name."""
    events = []
    for rank, document in enumerate(documents):
        events.extend({**event, "pid": rank + 1} for event in copy.deepcopy(document["traceEvents"]))
        events.append(_metadata(rank + 1, f"Rank {rank}"))
    return {"traceEvents": events}


def join(documents: list[dict]) -> dict:
    """The lists of events one after another, unchanged."""
    return {"traceEvents": [event for document in documents for event in copy.deepcopy(document["traceEvents"])]}


def name_processes(documents: list[dict]) -> dict:
    """The lists of events one after another, with a name for each process of the host."""
    merged = join(documents)
    for rank, document in enumerate(documents):
        pid = next(event["pid"] for event in document["traceEvents"] if event.get("cat") in ("cuda_runtime", "cpu_op"))
        merged["traceEvents"].append(_metadata(pid, f"Rank {rank}"))
    return merged


def mark_names(documents: list[dict]) -> dict:
    """Names and processes that begin with the rank."""
    merged = share_pids(documents)
    for event in merged["traceEvents"]:
        if event["ph"] == "X":
            event["name"] = f"[R{event['pid'] - 1}] {event['name']}"
    return merged


def _metadata(pid: int, name: str) -> dict:
    return {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}


SHAPES = {
    "fusion": fuse,
    "fusion with process names": lambda documents: fuse(documents, names_processes=True),
    "process names only": lambda documents: fuse(documents, states_rank=False, names_processes=True),
    "offsets only": lambda documents: fuse(documents, states_rank=False),
    "prefixed pids": prefix_pids,
    "prefixed by words": lambda documents: prefix_pids(documents, "rank{}_pid{}"),
    "shared pids": share_pids,
    "marked names": mark_names,
    "joined": join,
    "processes named": name_processes,
}
