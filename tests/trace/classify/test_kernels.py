"""Properties of classification over random traces, against a plain row-by-row implementation of the rules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace_maker import trace, write
from trainyard import words
from trainyard.events import COPY, KERNEL, MEMSET, OP
from trainyard.trace.classify.context import build_context
from trainyard.trace.classify.kernels import Keys, classify_device, collective_of_op, key_collectives
from trainyard.trace.classify.ops import class_of
from trainyard.trace.measure import measure, read
from trainyard.vendors.kernel_names import account_of

CLASSES = list(words.OP_CLASSES)
NAMES = [
    "ampere_sgemm_128x64_tn", "triton_poi_fused_add_0", "triton_red_fused__log_softmax_1", "multi_tensor_apply_kernel",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_Generic(x)", "__amd_rocclr_fillBufferAligned",
    "Memset (Device)", "Memcpy DtoH (Device -> Pinned)", "Memcpy PtoP (Device -> Device)", "who_knows_what",
]  # fmt: skip
HOST = [
    ("aten::mm", "cpu_op"), ("aten::add_", "cpu_op"), ("CompiledFunction", "cpu_op"), ("c10d::alltoall_", "cpu_op"),
    ("Optimizer.step#A.step", "user_annotation"), ("hipGraphLaunch", "cuda_runtime"), ("x.py(1): f", "python_function"),
]  # fmt: skip


@st.composite
def traces(draw):
    host = [
        (name, 100, at, at + long, cat, {"correlation": number})
        for number, ((name, cat), at, long) in enumerate(
            draw(st.lists(st.tuples(st.sampled_from(HOST), st.integers(0, 200), st.integers(1, 60)), max_size=10)), 1000
        )
    ]
    device = []
    for name, stream, at, long, launch in draw(
        st.lists(
            st.tuples(
                st.sampled_from(NAMES), st.integers(1, 3), st.integers(0, 300), st.integers(1, 50),
                st.one_of(st.none(), st.integers(0, 200), st.integers(1000, 1012)),
            ),
            min_size=1, max_size=14,
        )
    ):  # fmt: skip
        of_graph = launch is not None and launch >= 1000
        row = (name, stream, at, at + long, None if of_graph else launch)
        device.append((*row, {"correlation": launch}) if of_graph else row)
    return trace(device=device, host=host, world=2, rank=0)


def _expected(events, around, row):
    """(account, phase) of a row by the rules, one after the other."""
    work, host = events.work, events.host
    name = events.names[work.name[row]]
    launcher = int(work.call[row]) if work.call[row] >= 0 else int(work.op[row])
    phase = words_phase = "other"
    if launcher >= 0:
        phase = words_phase = list(words.PHASES)[around.phase[launcher]]
    of_graph = launcher >= 0 and "GraphLaunch" in events.names[host.name[launcher]]
    ops, at = [], launcher
    while at >= 0 and not of_graph:
        if host.what[at] == OP:
            ops.append(events.names[host.name[at]])
        at = int(host.parent[at])
    if work.what[row] == MEMSET:
        return "copy/memset", phase
    if work.what[row] == COPY:
        return ("copy/d2h" if "DtoH" in name else "copy/d2d"), phase
    assert work.what[row] == KERNEL
    named = account_of(name)
    if named is not None and named.kind == "comm":
        collective = next((name for op in ops if (name := collective_of_op(op))), named.what)
        return f"comm/{collective}", words_phase
    if named is not None and named.kind == "copy":
        return str(named), phase
    decided = next((op_class for op in ops if (op_class := class_of(op))), named.what if named else "other")
    if phase == "optimizer" and decided not in ("matmul", "softmax"):
        decided = "optimizer"
    return f"compute/{decided}", phase


@given(traces())
def test_classification_matches_the_rules_row_by_row(tmp_path_factory, document):
    (events,) = read([write(tmp_path_factory.mktemp("t"), document)])
    around, keys = build_context(events), Keys()
    classified = key_collectives(events, keys, classify_device(events, around, keys))
    for row, key in enumerate(classified.key.tolist()):
        account, phase = keys.pairs[key]
        plain = f"{account.kind}/{account.what}"
        assert (plain, list(words.PHASES)[phase]) == _expected(events, around, row)
        assert (row in classified.collectives) == (account.kind == "comm")


@given(traces())
def test_each_interval_is_counted_once(tmp_path_factory, document):
    (events,) = read([write(tmp_path_factory.mktemp("t"), document)])
    (whole, _) = measure([events], "all").ledgers
    device = [entry for entry in whole.entries if entry.account.kind in ("compute", "comm", "copy")]
    # The last row may begin where the window ends only if it has no length, and none is that short.
    assert sum(entry.count for entry in device) == len(events.work)


@given(traces())
def test_an_account_is_the_union_of_its_intervals(tmp_path_factory, document):
    (events,) = read([write(tmp_path_factory.mktemp("t"), document)])
    around, keys = build_context(events), Keys()
    classified = key_collectives(events, keys, classify_device(events, around, keys))
    (whole, _) = measure([events], "all").ledgers
    begin, end = events.window
    for entry in whole.entries:
        if entry.account.kind not in ("compute", "comm", "copy"):
            continue
        live = np.zeros(end - begin, bool)
        for row, key in enumerate(classified.key.tolist()):
            account, phase = keys.pairs[key]
            if (account, list(words.PHASES)[phase]) == (entry.account, entry.phase):
                live[classified.start[row] - begin : classified.stop[row] - begin] = True
        assert entry.ns + entry.hidden_ns == live.sum()


def test_cuda_graphs_and_single_launches_have_the_same_accounts(tmp_path):
    kernels = [("ampere_sgemm_128x64_tn", 7, 20, 30), ("triton_poi_fused_add_0", 7, 30, 45), ("attn_fwd", 7, 50, 60)]
    graph = trace(
        device=[(*row, None, {"correlation": 900}) for row in kernels],
        host=[("cudaGraphLaunch", 100, 5, 8, "cuda_runtime", {"correlation": 900})],
    )
    single = trace(device=[(*row, at) for at, row in enumerate(kernels, 1)])
    ledgers = [
        measure(read([write(tmp_path, document, f"{name}.json")]), "all").ledgers[0]
        for name, document in (("graph", graph), ("single", single))
    ]
    assert ledgers[0].by_account() == ledgers[1].by_account()


@pytest.mark.parametrize(
    "name", ["diff_control", "diff_test", "mi300_resnet_ac", "resnet50_loader4", "v100_dlrm_8ranks"]
)
def test_kernels_of_public_traces_are_recognised(public_trace, name):
    file = name if name.endswith("ranks") else f"{name}.json.gz"
    measured = measure(read([public_trace(file)]), "all")
    for rank in measured.ranks:
        other = sum(
            entry.ns
            for entry in rank.ledgers[0].entries
            if (entry.account.kind, entry.account.what) == ("compute", "other")
        )
        assert other <= rank.ledgers[0].wall_ns / 1000
