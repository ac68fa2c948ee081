"""What a host span says the host was doing while a device stood idle."""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard.vendors.kernels import collective_of

# Ops, driver calls and annotations, by name.
_SPANS = (
    ("data_wait", re.compile(r"^enumerate\(DataLoader\)|wait_for_batch")),
    ("checkpoint/save", re.compile(r"checkpoint.*save|save.*checkpoint|dcp\.save|async_save", re.I)),
    ("checkpoint/load", re.compile(r"checkpoint.*load|load.*checkpoint|dcp\.load", re.I)),
    ("launch_gap/compile", re.compile(r"entire_frame_compile|CachingAutotuner|^inductor_compile")),
    ("launch_gap/gc", re.compile(r"^gc\.collect|garbage.?collect", re.I)),
    (
        "launch_gap/sync",
        re.compile(
            r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$|^hipMemcpy(WithStream|DtoH|HtoD)$"
            r"|^cuMemcpy(DtoH|HtoD)(_v2)?$|^aten::(item|_local_scalar_dense|is_nonzero|nonzero)$"
        ),
    ),
    (
        "launch_gap/alloc",
        re.compile(
            r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|MemAddress|MemCreate|ExtMalloc)"
            r"|^cuMem(Alloc|Create|Map|Free)"
        ),
    ),
)

# Python frames, `path.py(line): function`. A path alone says nothing: anybody's folder may be named checkpoint.
_FRAMES = (
    ("data_wait", re.compile(r"torch/utils/data/dataloader\.py\(\d+\): __next__$")),
    ("checkpoint/save", re.compile(r"torch/(distributed/checkpoint/.*|serialization)\.py\(\d+\): (save|async_save)$")),
    ("checkpoint/load", re.compile(r"torch/(distributed/checkpoint/.*|serialization)\.py\(\d+\): load$")),
    (
        "launch_gap/compile",
        re.compile(r"torch/(_dynamo/convert_frame|_inductor/compile_fx)\.py|triton/compiler/.*\.py\(\d+\): compile$"),
    ),
    ("launch_gap/gc", re.compile(r"^<built-in function collect>$")),
)
_FRAME = re.compile(r"\.py\(\d+\): |^<")
_COLLECTIVE = re.compile(r"^gloo:(?P<name>\w+)|^c10d::(?:monitored_)?(?P<barrier>barrier)")


@lru_cache(maxsize=65536)
def host_cause(name: str) -> str | None:
    """The account (text form) a host span's name explains idle device time with, or None."""
    if _FRAME.search(name):
        return next((account for account, pattern in _FRAMES if pattern.search(name)), None)
    if waiting := _COLLECTIVE.match(name):
        return f"comm/{collective_of(waiting['name'] or waiting['barrier'])}"
    return next((account for account, pattern in _SPANS if pattern.search(name)), None)
