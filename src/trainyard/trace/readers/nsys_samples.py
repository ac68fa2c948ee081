"""Functions that a host thread ran while no call or wait of it was traced, from Nsight Systems' CPU samples.

A sample stands for the time until the next one on its thread. It becomes a span named after the innermost function of
the program itself, so that idle time of the device is attributed to the function on the host. Time inside calls that
were traced keeps the name of the call. The id of a sample is that of its rows in the table of call chains, one for each
function on its stack; the innermost function has the lowest depth.
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
    """Adds the sampled functions of threads that launch device work. `rows`: process -> its rows; `base`: ns to add to
    the file's times for UTC."""
    samples_by_thread: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # (ns, id of the sample) of each
    threads = {process: gather.find_launching_threads() for process, gather in rows.items()}
    events = tables.rows("COMPOSITE_EVENTS", "id start globalTid")
    for _, (ident, start, thread) in zip(range(_MAX_SAMPLES), events):
        if type(start) is int and thread in threads.get(extract_process(thread), ()):
            samples_by_thread[thread].append((start + base, ident))
    functions = _find_functions(tables) if samples_by_thread else {}
    for thread, samples in samples_by_thread.items():
        if len(samples) >= _MIN_SAMPLES:
            _add_thread(rows[extract_process(thread)], thread, sorted(samples, key=itemgetter(0)), functions)


def _find_functions(tables: Tables) -> dict[int, str]:
    """Id of a sample -> name of its innermost function outside system libraries (of the innermost function if all are
    in system libraries), with its module."""
    # Id of a sample -> (whether the function is in a system library, its depth) of the best function so far.
    rank_of_sample: dict[int, tuple[bool, int]] = {}
    functions: dict[int, str] = {}
    columns = "id symbol module stackDepth unresolved"
    for ident, symbol, module, depth, unresolved in tables.rows("SAMPLING_CALLCHAINS", columns):
        if type(depth) is not int:
            continue
        path = tables.text(module)
        rank = (_SYSTEM_MODULE.search(path) is not None, depth)
        if ident not in rank_of_sample or rank < rank_of_sample[ident]:
            rank_of_sample[ident] = rank
            name = "unresolved function" if unresolved else tables.text(symbol, "unknown function")
            functions[ident] = f"{SAMPLED}{name} ({path.rpartition('/')[2] or 'unknown module'})"
    return functions


def _add_thread(gather: Gather, thread: int, samples: list[tuple[int, int]], functions: dict[int, str]) -> None:
    """Adds the spans of one thread to `gather`: each sample lasts until the next, at most `_MAX_PERIODS` median
    periods, except for the time in which a call or wait of the thread was traced. `samples`: (ns, id), ascending;
    `functions`: id -> name."""
    max_ns = _MAX_PERIODS * int(median(later - earlier for (earlier, _), (later, _) in pairwise(samples)))
    # `edges`: times at which spans of the thread begin or end; `is_free[i]`: no call or wait is open before edge i.
    edges, is_free = gather.find_free_time(thread)
    for (start, ident), (next_start, _) in pairwise([*samples, (samples[-1][0] + max_ns, 0)]):
        stop = min(next_start, start + max_ns)
        if (name := functions.get(ident)) is None:
            continue
        # The edges inside the sample's time divide it.
        first_edge = int(np.searchsorted(edges, start, "right"))
        end_edge = int(np.searchsorted(edges, stop, "left"))
        bounds = [start, *edges[first_edge:end_edge].tolist(), stop]
        for index, (begin, end) in enumerate(pairwise(bounds), first_edge):
            if is_free[index] and end > begin:
                gather.span(name, NOTE, thread, begin, end)
