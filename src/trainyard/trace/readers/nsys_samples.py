"""Functions that a host thread ran while no call or wait of it was traced, from Nsight Systems' CPU samples.

A sample stands for the time until the next one on its thread. It becomes a span named after the innermost function of
the program itself, so that idle time of the device is attributed to the function on the host. Time inside calls that
were traced keeps the name of the call.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from operator import itemgetter
from statistics import median

import numpy as np

from trainyard.events import NOTE
from trainyard.trace.readers.gather import SAMPLED, Gather
from trainyard.trace.readers.nsys_tables import Tables, extract_process

_SYSTEM_MODULE = re.compile(r"(^|/)(lib(c|m|pthread|dl|rt|gcc_s|stdc\+\+)|ld(-linux)?)[-.][^/]*$|^\[")
_MAX_SAMPLES = 1_000_000
_MAX_PERIODS = 3
"""A sample counts for at most so many typical periods: the thread was not running then, or samples were lost."""
_MIN_SAMPLES = 8


def add_samples(tables: Tables, rows: dict[int, Gather], base: int) -> None:
    """Adds the sampled functions of threads that call CUDA. `rows`: process -> its rows; `base`: ns to add to the
    file's times."""
    samples: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    threads = {process: gather.find_launching_threads() for process, gather in rows.items()}
    events = tables.rows("COMPOSITE_EVENTS", "id start globalTid")
    for _, (ident, start, thread) in zip(range(_MAX_SAMPLES), events):
        if type(start) is int and thread in threads.get(extract_process(thread), ()):
            samples[thread].append((start + base, ident))
    functions = _functions(tables) if samples else {}
    for thread, of_thread in samples.items():
        if len(of_thread) >= _MIN_SAMPLES:
            _add_thread(rows[extract_process(thread)], thread, sorted(of_thread, key=itemgetter(0)), functions)


def _functions(tables: Tables) -> dict[int, str]:
    """Sample -> the innermost function outside system libraries, with its module."""
    depth_of: dict[int, tuple[bool, int]] = {}
    functions: dict[int, str] = {}
    columns = "id symbol module stackDepth unresolved"
    for ident, symbol, module, depth, unresolved in tables.rows("SAMPLING_CALLCHAINS", columns):
        if type(depth) is not int:
            continue
        path = tables.text(module)
        rank = (_SYSTEM_MODULE.search(path) is not None, depth)
        if ident not in depth_of or rank < depth_of[ident]:
            depth_of[ident] = rank
            name = "unresolved function" if unresolved else tables.text(symbol, "unknown function")
            functions[ident] = f"{SAMPLED}{name} ({path.rpartition('/')[2] or 'unknown module'})"
    return functions


def _add_thread(gather: Gather, thread: int, samples: list[tuple[int, int]], functions: dict[int, str]) -> None:
    """Adds the spans of one thread to `gather`: each sample lasts until the next, at most `_MAX_PERIODS` median
    periods, except for the time in which a call or wait of the thread was traced. `samples`: (ns, id), ascending;
    `functions`: id -> name."""
    limit = _MAX_PERIODS * int(median(later - earlier for (earlier, _), (later, _) in pairwise(samples)))
    edges, is_free = gather.find_free_time(thread)
    for (start, ident), (following, _) in pairwise([*samples, (samples[-1][0] + limit, 0)]):
        stop = min(following, start + limit)
        if (name := functions.get(ident)) is None:
            continue
        first = int(np.searchsorted(edges, start, "right"))
        last = int(np.searchsorted(edges, stop, "left"))
        bounds = [start, *edges[first:last].tolist(), stop]
        for index, (begin, end) in enumerate(pairwise(bounds), first):
            if is_free[index] and end > begin:
                gather.span(name, NOTE, thread, begin, end)
