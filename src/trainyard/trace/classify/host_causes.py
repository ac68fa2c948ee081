"""Causes of device idle time, by the name of the host span.

A cause is an account in text form, such as `launch_gap/sync`. Each table lists (cause, pattern of span names); the
first pattern that matches decides.
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainyard.trace.classify.runtime_causes import runtime_cause
from trainyard.vendors.kernel_names import collective_of

# Ops, driver calls and annotations, by name.
_SPAN_CAUSES = (
    ("data_wait", re.compile(r"^enumerate\(DataLoader\)|wait_for_batch|dataloader_next|get_train_batch")),
    ("checkpoint/save", re.compile(r"checkpoint.*save|save.*checkpoint|dcp\.save|async_save", re.I)),
    ("checkpoint/load", re.compile(r"checkpoint.*load|load.*checkpoint|dcp\.load", re.I)),
    # Running a compiled region and looking it up in the cache do not compile. Loading a CUDA module may, and happens at
    # first use like compilation.
    (
        "launch_gap/compile",
        re.compile(r"^dynamo$|\(dynamo_timed\)$|entire_frame_compile|^inductor_compile|^(cu|hip)(Module|Library)Load"),
    ),
    (
        "launch_gap/init",
        re.compile(
            r"^(cu|hip)Init$|^cu(DevicePrimaryCtxRetain|CtxCreate)|^(cublas(Lt)?|cudnn|cusolver\w*|cusparse|hipblas|rocblas|"
            r"miopen)_?[cC]reate(_handle)?(_v2)?$|^[nr]?cclCommInit|^MPI_Init"
        ),
    ),
    ("launch_gap/gc", re.compile(r"^Python GC$|^gc\.collect|garbage.?collect", re.I)),
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
            r"^(cuda|hip)(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister)|ExtMalloc|MemPool)"
            r"|^(cu|hip)Mem(Alloc|Create|Map|Unmap|Free|Release|SetAccess|Address)"
        ),
    ),
)

# Python frames, `path.py(line): function`. A path alone is not enough: any folder may be named checkpoint.
_FRAME_CAUSES = (
    (
        "data_wait",
        re.compile(
            r"torch/utils/data/(dataloader\.py\(\d+\): __next__|_utils/pin_memory\.py\(\d+\): \w+)$"
            r"|nvidia/dali/plugin/.*\.py\(\d+\): (__next__|next)$|\.py\(\d+\): wait_for_batch$"
        ),
    ),
    (
        "checkpoint/save",
        re.compile(
            r"torch/(distributed/checkpoint/.*|serialization)\.py\(\d+\): (save|async_save)$"
            r"|safetensors/.*\.py\(\d+\): save_file$|\.py\(\d+\): _?save_checkpoint$"
        ),
    ),
    (
        "checkpoint/load",
        re.compile(
            r"torch/(distributed/checkpoint/.*|serialization)\.py\(\d+\): load$"
            r"|safetensors/.*\.py\(\d+\): load_file$|\.py\(\d+\): _?load_checkpoint$"
        ),
    ),
    (
        "launch_gap/compile",
        re.compile(
            r"torch/_dynamo/convert_frame\.py|torch/_inductor/compile_fx\.py\(\d+\): (?!run$)"
            r"|torch/_inductor/.*\.py\(\d+\): (\w*(precompile|autotune)\w*|benchmark_all\w+|coordinate_descent\w+)$"
            r"|triton/compiler/.*\.py\(\d+\): compile$|triton/runtime/autotuner\.py\(\d+\): _?bench(mark)?$"
            r"|triton/runtime/jit\.py\(\d+\): _?(do_)?compile$"
            r"|torch/utils/cpp_extension\.py\(\d+\): (load|_jit_compile)"
        ),
    ),
    ("launch_gap/init", re.compile(r"torch/cuda/__init__\.py\(\d+\): _lazy_init$")),
    ("launch_gap/sync", re.compile(r"torch/cuda/(__init__|streams)\.py\(\d+\): synchronize$")),
    ("launch_gap/alloc", re.compile(r"torch/cuda/memory\.py\(\d+\): empty_cache$")),
)
_BUILTIN_CAUSES = (
    ("launch_gap/gc", re.compile(r"^<built-in function collect>$")),
    (
        "launch_gap/sync",
        re.compile(r"^<built-in (method (item|tolist) of Tensor object|function _cuda_synchronize>$)"),
    ),
)

# Host-side waits for peers: a barrier, an exchange of Python objects, a rendezvous.
_MAY_WAIT_FOR_PEERS = re.compile(r"c10d|^gloo:|rendezvous|^MPI_")
_C10D = r"torch/distributed/distributed_c10d\.py\(\d+\): "
_PEER_WAITS = re.compile(
    rf"^gloo:(?P<span>\w+)|^P?MPI_I?(?P<mpi>Send|Ssend|Recv|Sendrecv|Probe|Wait|Barrier|Bcast|Reduce|Allreduce|Gather"
    r"|Allgather|Scatter|Alltoall|Scan)(v|w|all|any|some|_scatter\w*)?$"
    rf"|^(c10d::|{_C10D})(monitored_|_store_based_)?(?P<barrier>barrier)"
    rf"|{_C10D}(?P<object>\w+)_object(_list)?$|{_C10D}(init_process_group|new_group|split_group)$"
    r"|torch/distributed/rendezvous\.py|^<built-in method (wait|get) of torch\._C\._distributed_c10d\.\w*(Work|Store) "
)

_MPI_COLLECTIVES = {
    **dict.fromkeys(("Send", "Ssend", "Recv", "Sendrecv", "Probe"), "send_recv"),
    "Barrier": "barrier", "Bcast": "broadcast", "Reduce": "reduce", "Allreduce": "all_reduce",
    "Allgather": "all_gather", "Alltoall": "all_to_all",
}  # fmt: skip
"""The collective of an MPI call, by its name after `MPI_`; others are `other`."""


@lru_cache(maxsize=65536)
def host_cause(name: str) -> str | None:
    """The account (as text) of device idle time under a host span of this name, or None if the name shows no cause.

    Waits for peers come first, as `comm/` accounts; then the table for built-in functions (`<built-in ...>`), Python
    frames (`path.py(line): function`) or other spans; then those of runtimes other than PyTorch's.
    """
    if _MAY_WAIT_FOR_PEERS.search(name) and (waiting := _PEER_WAITS.search(name)):
        if waiting["mpi"]:
            return f"comm/{_MPI_COLLECTIVES.get(waiting['mpi'], 'other')}"
        collective = waiting["span"] or waiting["barrier"] or waiting["object"]
        return f"comm/{collective_of(collective) if collective else 'other'}"
    table = _BUILTIN_CAUSES if name.startswith("<") else _FRAME_CAUSES if ".py(" in name else _SPAN_CAUSES
    return next((account for account, pattern in table if pattern.search(name)), None) or runtime_cause(name)
