"""The ledger lane of the timeline: in each step, its slices add up to the ledger of that step."""

import pytest

from tests.trace_maker import MAIN, trace, write
from trainyard.ledger import AFTER, BEFORE, WINDOW
from trainyard.report.view.timeline import timeline
from trainyard.trace.measure import measure, read


def sums_by_step(drawn, rank):
    """Label of each step -> label of each account -> ns, from the ledger lane of a rank."""
    (lane,) = [lane for lane in drawn.lanes if lane.kind == "ledger" and lane.rank == rank]
    sums = {}
    for label, start, stop in drawn.steps:
        own = sums.setdefault(label, {})
        for begin, length, look in zip(lane.starts, lane.lengths, lane.look):
            ns = min(stop, begin + length) - max(start, begin)
            if ns > 0:
                account = drawn.legend[look].label
                own[account] = own.get(account, 0) + ns
    return sums


def booked(measured, rank):
    """The same from the ledgers."""
    result = {}
    for ledger in measured.by_rank:
        if ledger.scope.ranks != (rank,):
            continue
        (label,) = ledger.scope.steps
        own = result.setdefault(label if label in (BEFORE, WINDOW, AFTER) else f"step {label}", {})
        for account, ns in ledger.by_account().items():
            if ns:
                own[account.label] = own.get(account.label, 0) + ns
    return result


@pytest.mark.parametrize(
    "name",
    ["h100_qwen_0.5b.json.gz", "mi300_resnet_ac.json.gz", "resnet50_loader0.json.gz", "v100_dlrm_8ranks"],
)
def test_steps_of_real_traces_add_up_to_their_ledgers(public_trace, name):
    path = public_trace(name)
    measured = measure(read(sorted(path.glob("*.gz")) if path.is_dir() else [path]))
    drawn = timeline(measured)
    assert not any(lane.kind == "ledger" and min(lane.lengths, default=1) < 1 for lane in drawn.lanes)
    assert sums_by_step(drawn, measured.ranks[0].events.rank) == booked(measured, measured.ranks[0].events.rank)


def test_details_of_a_kernel(tmp_path):
    """A kernel's stack, launch and hidden time."""
    host = [("train.py(3): step", MAIN, 0, 100, "python_function"), ("aten::add", MAIN, 60, 80, "cpu_op")]
    device = [("gemm", 7, 0, 85, None), ("elementwise_kernel", 8, 80, 90, 71)]
    measured = measure(read([write(tmp_path, trace(host=host, device=device))]), "all")
    drawn = timeline(measured)
    (lane,) = [lane for lane in drawn.lanes if lane.label.endswith("8")]
    details = {name: column[0] - 1 for name, column in lane.details.items()}
    stack, node = [], details["stack"]
    while node >= 0:
        node, name = drawn.stacks[node]
        stack.append(drawn.span_names[name])
    assert stack == ["cudaLaunchKernel", "aten::add", "train.py(3): step"]
    assert details["launch"] == 9
    assert details["hidden"] == 5
    host_lanes = [lane for lane in drawn.lanes if lane.kind == "host"]
    assert [(lane.depth, drawn.names[lane.name[0]]) for lane in host_lanes] == [
        (0, "train.py(3): step"), (1, "aten::add"), (2, "cudaLaunchKernel"),
    ]  # fmt: skip
