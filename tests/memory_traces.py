"""Allocations in small Kineto files, and a training step around them."""

from tests.trace_maker import MAIN, stamp

MIB = 2**20


def memory_event(time_ns, size, address=None, total=None, device=0, device_type=1, thread=MAIN):
    args = {"Bytes": size, "Device Id": device, "Device Type": device_type}
    if address is not None:
        args["Addr"] = address
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 2 * total + MIB}
    return {
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": thread,
        "ts": stamp(time_ns), "args": args,
    }  # fmt: skip


BACKWARD = {"Sequence number": 7, "Fwd thread id": 1}
STEP = [
    ("aten::linear", MAIN, 1000, 4000, "cpu_op", {"Sequence number": 7}),
    ("autograd::engine::evaluate_function: AddmmBackward0", MAIN, 5000, 8000, "cpu_op", BACKWARD),
    ("AddmmBackward0", MAIN, 5100, 7900, "cpu_op", BACKWARD),
    ("aten::mm", MAIN, 5200, 7800, "cpu_op"),
    ("Optimizer.step#AdamW.step", MAIN, 8500, 9500, "user_annotation"),
    ("aten::_foreach_add_", MAIN, 8600, 9400, "cpu_op"),
]  # fmt: skip
KERNEL = [("gemm", 7, 2000, 9000, 1500)]
