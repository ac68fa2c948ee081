"""Causes of device idle time in the host spans of runtimes other than PyTorch's: MPI, OpenACC, XLA, users' ranges.

A cause is an account in text form, such as `launch_gap/sync`. The tables list (cause, pattern of span names).
"""

from __future__ import annotations

import re

_MPI = "mpi:"
"""Beginning of the annotations of MPI calls; the rest is the collective."""
_SPANS = (
    (
        "data_wait",
        re.compile(
            r"^data[ _.-]?(load(ing)?|fetch|wait)$|^batch[ _.-]generator$"
            r"|^(load|fetch|get|next)[ _.-](\w+[ _.-])?batch$"
        ),
    ),
    ("launch_gap/gc", re.compile(r"CollectGarbage$")),
    ("launch_gap/compile", re.compile(r"^(Xla|Backend|Gpu)?Compil(e|er)\b|^PjRt\w*::Compile|^(Run)?HloPass|^Autotun")),
    ("launch_gap/sync", re.compile(r"BlockHostUntil|::Await$|^OpenACC wait")),
    (
        "launch_gap/alloc",
        re.compile(r"^Build buffer allocations$|MemAllocator::Alloc|^Memory(Dea|A)llocation$|^OpenACC: (alloc|free)"),
    ),
    # XLA's runtime dispatches programs and enqueues their operations.
    (
        "launch_gap/launch",
        re.compile(
            r"^((Common)?PjRt|PJRT_|PjitFunction|(Gpu|Tpu|Cpu)Execut|Tfrt\w+::|Thunks?::|BufferSequencingEvent::"
            r"|ThenExecute|DevicePut|OpenACC: )|:XLA [GCT]PU module$"
        ),
    ),
)
# Python frames of JAX: its tracer records a file's name without its folder.
_FRAMES = (
    ("launch_gap/sync", re.compile(r"(^|/)(api|array)\.py\(\d+\): (block_until_ready|try_to_block)$")),
    (
        "launch_gap/compile",
        re.compile(r"(^|/)compiler\.py\(\d+\): (backend_compile|compile_or_get_cached|_compile_and_write_cache)$"),
    ),
)


def runtime_cause(name: str) -> str | None:
    """The account (as text) of device idle time under a host span of this name, or None."""
    if name.startswith(_MPI):
        return f"comm/{name.removeprefix(_MPI)}"
    table = _FRAMES if ".py(" in name else _SPANS
    return next((account for account, pattern in table if pattern.search(name)), None)
