"""Each rule reports its case with the exact cost, and is silent just below its threshold."""

import importlib
import inspect
import pkgutil
import tomllib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.booked_maker import STEP, US, Did, Gap, Span, a_rank
from trainyard import detect
from trainyard.booked import BookedPart
from trainyard.detect.idle_gaps import Claimant, claimed_ns
from trainyard.detect.kernel_storms import MIN_STORM_KERNELS
from trainyard.detect.run_rules import findings
from trainyard.events import CALL, OP, PYTHON, Collective, OperandShape
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.trace import rank_results
from trainyard.trace.measure import measure, read
from trainyard.trace.rank_results import all_booked

HEADINGS = ("What it does", "Why it matters", "Example", "Remedy")
MODULES = [
    importlib.import_module(module.name)
    for module in pkgutil.walk_packages(detect.__path__, "trainyard.detect.")
    if not module.ispkg
]
KINDS = {
    kind.rule: kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and hasattr(kind, "rule") and hasattr(kind, "check")
}
RULES = [kind() for kind in KINDS.values()]


# Small ranks, written by hand


def ledger(aligned="host", late=None, ranks=(), steps=("1",), **accounts):
    entries = tuple(Entry(account=Account.parse(text.replace("__", "/")), ns=ns) for text, ns in accounts.items())
    scope = Scope(aligned=aligned, reduce="mean", steps=steps, ranks=ranks)
    return Ledger(wall_ns=sum(accounts.values()), entries=entries, scope=scope, late=late or {})


WHOLE = ledger(compute__matmul=STEP)


def found_by(rule, *ranks, mean=WHOLE):
    return findings(mean, None, ranks or None, [KINDS[rule]()])


def the_cost(rule, *ranks, mean=WHOLE):
    """The cost of the only finding, 0 if there is none."""
    results = found_by(rule, *ranks, mean=mean)
    assert len(results) < 2
    return results[0].cost_ns if results else 0


def in_a_row(count, length, pause, begin=0, **about):
    """Intervals of equal length with pauses between them, and the gaps."""
    starts = [begin + number * (length + pause) for number in range(count)]
    works = [Did(about.get("name", "k"), at, at + length, *list(about.values())[1:]) for at in starts]
    return works, [Gap(at + length, at + length + pause) for at in starts[:-1] if pause]


# The rules


def test_each_rule_has_its_own_module_with_the_standard_headings():
    for rule, kind in KINDS.items():
        module = inspect.getmodule(kind)
        assert module.__name__.startswith("trainyard.detect.")
        assert module.__name__.endswith(f".{rule}")
        doc = inspect.getdoc(module)
        assert doc.startswith(f"{rule}: ")
        positions = [doc.index(f"\n{heading}: ") for heading in HEADINGS]
        assert positions == sorted(positions)


def test_every_rule_is_an_entry_point(root):
    points = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]["trainyard.detectors"]
    assert points == {rule: f"{kind.__module__}:{kind.__name__}" for rule, kind in KINDS.items()}


def test_a_clean_step_has_no_findings():
    clean = ledger(compute__matmul=9_900 * US, comm__all_reduce=100 * US)
    assert findings(clean, rules=RULES) == []
    assert findings(clean, None, [a_rank([Did("gemm", 0, 9_900 * US, "compute/matmul")])], RULES) == []


def test_an_empty_ledger_has_no_findings():
    assert findings(Ledger(wall_ns=0, entries=()), None, None, RULES) == []


def test_findings_are_sorted_by_recoverable_time_times_confidence():
    results = findings(
        ledger(compute__matmul=300, data_wait=120, launch_gap__python=300, comm__all_reduce=150, unexplained=130),
        rules=RULES,
    )
    weights = [finding.cost_ns * finding.confidence for finding in results[:-1]]
    assert len(weights) == 3
    assert weights == sorted(weights, reverse=True)
    # Time without a cause cannot be recovered.
    assert (results[-1].rule, results[-1].priced, results[-1].weight) == ("coverage", "none", 0)


# From a ledger alone


@pytest.mark.parametrize(
    ("rule", "accounts", "cost", "sentence"),
    [
        ("exposed_all_reduce", {"compute__matmul": 800, "comm__all_reduce": 200}, 200, "Exposed all-reduce costs"),
        ("exposed_all_gather", {"compute__matmul": 980, "comm__all_gather": 20}, 20, "Exposed all-gather costs"),
        ("launch_bound", {"compute__matmul": 970, "launch_gap__python": 30}, 30, "mostly Python"),
        ("sync_in_step", {"compute__matmul": 990, "launch_gap__sync": 10}, 10, "Host syncs cost"),
        ("allocator_churn", {"compute__matmul": 990, "launch_gap__alloc": 10}, 10, "Driver allocations"),
        ("gc_pauses", {"compute__matmul": 990, "launch_gap__gc": 10}, 10, "Garbage collection"),
        ("recompilation", {"compute__matmul": 990, "launch_gap__compile": 10}, 10, "Recompilation costs"),
        ("data_wait", {"compute__matmul": 980, "data_wait": 20}, 20, "Waiting for data"),
        ("checkpoint_stall", {"compute__matmul": 980, "checkpoint__save": 20}, 20, "Checkpoints cost"),
        ("pipeline_bubble", {"compute__matmul": 980, "bubble__warmup": 12, "bubble__drain": 8}, 20, "mostly warm-up"),
        ("coverage", {"compute__matmul": 900, "compute__other": 60, "unexplained": 40}, 100, "Unattributed time"),
        ("imbalance", {"compute__matmul": 980, "straggler__all_reduce": 20}, 20, "in turn"),
    ],
)  # fmt: skip
def test_a_rule_reports_its_exact_cost_and_not_below_threshold(rule, accounts, cost, sentence):
    (finding,) = findings(ledger(**accounts), rules=RULES)
    assert (finding.rule, finding.cost_ns) == (rule, cost)
    assert sentence in finding.summary
    assert finding.remedy is not None
    assert 0 < finding.confidence <= 1
    assert findings(ledger(**{**accounts, "compute__matmul": 11_000}), rules=RULES) == []


def test_each_exposed_collective_has_its_own_finding_and_remedy():
    results = found_by("exposed_comm", mean=ledger(compute__matmul=500, comm__all_reduce=300, comm__all_gather=200))
    assert [finding.rule for finding in results] == ["exposed_all_reduce", "exposed_all_gather"]
    assert len({finding.remedy.description for finding in results}) == 2


def test_unaligned_communication_has_lower_certainty():
    (sure,) = found_by("exposed_comm", mean=ledger(compute__matmul=700, comm__all_reduce=300))
    (unsure,) = found_by("exposed_comm", mean=ledger(aligned="no", compute__matmul=700, comm__all_reduce=300))
    assert unsure.confidence < sure.confidence
    assert "waiting for late ranks is included" in unsure.evidence


# Late ranks


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ({3: 80, 1: 20}, 3),
        ({3: 74, 1: 26}, None),  # of two, three quarters
        ({3: 50, 1: 25, 0: 25}, 3),
        ({3: 40, 1: 35, 0: 25}, None),
        ({3: 39, 1: 20, 0: 20, 2: 21}, None),
        ({7: 9946, 5: 5059, 4: 5009}, None),  # of three ranks that is hardly more than its share
        ({}, None),
    ],
)
def test_one_late_rank_is_named_but_several_are_not(late, named):
    results = findings(ledger(late=late, compute__matmul=900, straggler__all_reduce=100), rules=RULES)
    headline = results[0].summary
    assert headline.startswith(f"Rank {named} arrives last" if named is not None else "Ranks arrive late in turn")


def test_straggler_cost_is_at_most_the_waiting_for_it():
    waiting = ledger(
        late={7: 9946, 5: 5059, 4: 5009}, ranks=tuple(range(8)), compute__matmul=1_500, straggler__all_to_all=3_900,
        launch_gap__launch=5_700,
    )  # fmt: skip
    results = {finding.rule: finding for finding in findings(waiting, rules=RULES)}
    assert set(results) == {"straggler", "launch_bound", "imbalance"}
    assert results["straggler"].cost_ns == 3_900 * 8 * 9946 // (7 * 20014)
    assert results["straggler"].summary.startswith("Rank 7 arrives last")
    assert results["imbalance"].cost_ns == 3_900 - 3_900 * 9946 // 20014


def test_straggler_cost_is_the_wait_of_each_other_rank():
    """Three ranks, two of which wait 30: the mean ledger has 20, the step would be shorter by 30."""
    waiting = ledger(late={1: 60}, ranks=(0, 1, 2), compute__matmul=80, straggler__all_reduce=20)
    (finding,) = found_by("straggler", mean=waiting)
    assert finding.cost_ns == 30
    assert found_by("imbalance", mean=waiting) == []


def test_a_rank_late_in_one_of_many_steps_is_not_a_straggler():
    mean = ledger(late={1: 60}, ranks=(0, 1), compute__matmul=80, straggler__all_reduce=30, steps=tuple("01234"))
    waits = [(step * STEP, 10 if step else 1_000, "all_reduce", 0 if step else 1) for step in range(5)]
    once = [a_rank(number=0, steps=5, waits=waits[:1]), a_rank(number=1, steps=5, waits=waits[1:])]
    assert found_by("straggler", *once, mean=mean) == []
    always = a_rank(number=0, steps=5, waits=[(step * STEP, 100, "all_reduce", 1) for step in range(5)])
    (finding,) = found_by("straggler", always, a_rank(number=1, steps=5), mean=mean)
    assert finding.confidence < 0.5  # its own work is not longer: it is behind, and not slower


def test_straggler_evidence_names_the_account_with_more_time():
    mean = ledger(late={1: 60}, ranks=(0, 1, 2), compute__matmul=80, straggler__all_reduce=20)
    quick = [a_rank([Did("gemm", 0, 100 * US, "compute/matmul")], number=rank) for rank in (0, 2)]
    slow = a_rank([Did("gemm", 0, 100 * US, "compute/matmul")], [Gap(100 * US, 400 * US)], number=1)
    (finding,) = found_by("straggler", *quick, slow, mean=mean)
    assert "spends 300.0 µs more than the others on Idle: Python" in finding.evidence
    # The gaps belong to the straggler, not to launch_bound.
    assert found_by("launch_bound", *quick, slow, mean=mean) == []


def test_imbalance_names_uneven_experts():
    mean = ledger(late={0: 50, 1: 50}, ranks=(0, 1), compute__matmul=90, straggler__all_to_all=10)
    sizes = [(0, 900), (1, 300)]
    ranks = [
        a_rank([Did("nccl", 0, US, "comm/all_to_all", met=Collective(name="all_to_all", size=size))], number=rank)
        for rank, size in sizes
    ]
    (finding,) = found_by("imbalance", *ranks, mean=mean)
    assert "experts" in finding.remedy.description
    even = [
        a_rank([Did("nccl", 0, US, "comm/all_to_all", met=Collective(name="all_to_all", size=9))], number=n)
        for n in (0, 1)
    ]
    (other,) = found_by("imbalance", *even, mean=mean)
    assert "experts" not in other.remedy.description
    assert other.confidence < finding.confidence


def test_imbalance_names_uneven_sequences():
    mean = ledger(late={0: 50, 1: 50}, ranks=(0, 1), compute__matmul=9_600 * US, straggler__all_reduce=400 * US)
    ranks = [
        a_rank([Did("flash", 0, ns, "compute/attention")], number=rank)
        for rank, ns in ((0, 2_000 * US), (1, 1_000 * US))
    ]
    (finding,) = found_by("imbalance", *ranks, mean=mean)
    assert "Attention differs by 500.0 µs per step" in finding.evidence
    assert "sequences" in finding.remedy.description


def attending(*lengths):
    """A rank of a group, with one length of attention a step."""
    works = [Did("flash", step * STEP, step * STEP + ns, "compute/attention") for step, ns in enumerate(lengths)]
    met = Did("nccl", STEP - US, STEP, "comm/all_reduce", met=Collective(name="all_reduce"))
    return a_rank([*works, met], steps=len(lengths))


def test_imbalance_without_aligned_clocks_compares_steps():
    mean = ledger(aligned="no", compute__matmul=STEP)
    (finding,) = found_by("imbalance", attending(*(1_000 * US, 1_000 * US, 1_000 * US, 2_000 * US)), mean=mean)
    assert (finding.cost_ns, finding.confidence) == (750 * US, 0.5)
    assert "from 1.0 ms to 2.0 ms" in finding.evidence
    assert found_by("imbalance", attending(*(1_000 * US,) * 3, 1_300 * US), mean=mean) == []
    assert found_by("imbalance", attending(1_000 * US, 1_000 * US, 2_000 * US), mean=mean) == []


# Rules that claim idle time


ITEM = [
    Span("train.py(9): log", 0, STEP, PYTHON),
    Span("aten::item", 100 * US, 900 * US, OP, "launch_gap/sync", 0),
    Span("cudaStreamSynchronize", 110 * US, 890 * US, CALL, "launch_gap/sync", 1),
]


def synced(refill):
    """A device that runs dry 10 µs before a sync returns, and gets work `refill` ns later."""
    works = [Did("gemm", 0, 880 * US, "compute/matmul"), Did("gemm", 890 * US + refill, STEP, "compute/matmul")]
    gaps = [Gap(880 * US, 890 * US, "launch_gap/sync", during=2), Gap(890 * US, 890 * US + refill, during=0)]
    return a_rank(works, gaps, ITEM)


def test_a_sync_claims_the_time_to_refill_the_queue():
    (finding,) = found_by("sync_in_step", synced(400 * US))
    assert finding.cost_ns == 410 * US
    assert finding.summary.startswith("1 host sync per step costs")
    assert "aten::item in train.py(9): log" in finding.evidence
    assert found_by("launch_bound", synced(400 * US)) == []


def test_a_host_slower_than_the_sync_is_launch_bound():
    """The host waited 770 µs and then took 2 ms: without the sync the device would have been idle as well."""
    assert found_by("sync_in_step", synced(2_000 * US)) == []
    assert the_cost("launch_bound", synced(2_000 * US)) == 2_000 * US


def test_values_read_one_by_one_on_a_cpu_are_syncs():
    host = [Span("aten::item", 0, STEP, OP, "launch_gap/sync")]
    works = [Did("aten::item", at * 20 * US, at * 20 * US + 5 * US, by=0) for at in range(MIN_STORM_KERNELS)]
    gaps = [Gap(at * 20 * US + 5 * US, (at + 1) * 20 * US) for at in range(MIN_STORM_KERNELS - 1)]
    rank = a_rank(works, gaps, host, cpu=True)
    assert the_cost("sync_in_step", rank) == (20 * (MIN_STORM_KERNELS - 1) + 5) * US
    assert found_by("tiny_kernels", rank) == []
    assert found_by("sync_in_step", a_rank(works[1:], gaps[1:], host, cpu=True)) == []


@pytest.mark.parametrize("cpu", [False, True])
def test_a_run_of_tiny_kernels_claims_its_gaps(cpu):
    works, gaps = in_a_row(MIN_STORM_KERNELS, 5 * US, 10 * US)
    rank = a_rank(works, gaps, cpu=cpu)
    (finding,) = found_by("tiny_kernels", rank)
    assert finding.cost_ns == (15 * MIN_STORM_KERNELS - 10) * US
    assert f"{MIN_STORM_KERNELS} tiny {'ops' if cpu else 'kernels'} per step" in finding.summary
    assert found_by("launch_bound", rank) == []
    assert found_by("sync_in_step", rank) == []


@pytest.mark.parametrize("cpu", [False, True])
def test_short_or_interrupted_runs_are_not_tiny_kernels(cpu):
    few, _ = in_a_row(MIN_STORM_KERNELS - 1, 5 * US, 0)
    longer, _ = in_a_row(MIN_STORM_KERNELS, 10 * US, 0)
    apart = [*in_a_row(MIN_STORM_KERNELS // 2, 5 * US, 0)[0], Did("gemm", 4_000 * US, 5_000 * US, "compute/matmul")]
    apart += in_a_row(MIN_STORM_KERNELS // 2, 5 * US, 0, begin=5_000 * US)[0]
    for works in (few, longer, apart):
        assert found_by("tiny_kernels", a_rank(works, cpu=cpu)) == []


def test_a_pause_ends_a_run_of_tiny_kernels():
    works, gaps = in_a_row(MIN_STORM_KERNELS, 5 * US, 0)
    late, _ = in_a_row(MIN_STORM_KERNELS, 5 * US, 0, begin=5_000 * US)
    pause = Gap(works[-1].stop, 5_000 * US)
    rank = a_rank([*works, *late], [*gaps, pause])
    assert the_cost("tiny_kernels", rank) == 10 * MIN_STORM_KERNELS * US
    assert the_cost("launch_bound", rank) == pause.stop - pause.start


@pytest.mark.parametrize("name", ["add", "fused_adam"])
def test_an_unfused_optimizer_claims_its_gaps(name):
    starts = range(0, 50 * 40 * US, 40 * US)
    works = [Did(name, at, at + 20 * US, "compute/optimizer", "optimizer") for at in starts]
    gaps = [Gap(at + 20 * US, at + 40 * US, phase="optimizer") for at in starts]
    plain, host = ("optimizer_not_fused", "launch_bound") if name == "add" else ("launch_bound", "optimizer_not_fused")
    assert the_cost(plain, a_rank(works, gaps)) == 50 * 20 * US
    assert found_by(host, a_rank(works, gaps)) == []
    assert found_by("optimizer_not_fused", a_rank(works[1:], gaps[1:])) == []


@pytest.mark.parametrize(
    ("rule", "cause", "call"),
    [
        ("allocator_churn", "alloc", "cudaMalloc"),
        ("gc_pauses", "gc", "gc.collect"),
        ("recompilation", "compile", "compile"),
    ],
)
def test_calls_that_stop_the_host_claim_their_gaps(rule, cause, call):
    host = [Span(call, STEP + 100 * US, STEP + 400 * US, CALL, f"launch_gap/{cause}")]
    works = [
        Did("gemm", 0, STEP + 100 * US, "compute/matmul"),
        Did("gemm", STEP + 400 * US, 2 * STEP, "compute/matmul"),
    ]
    rank = a_rank(works, [Gap(STEP + 100 * US, STEP + 400 * US, f"launch_gap/{cause}", during=0)], host, steps=2)
    (finding,) = found_by(rule, rank)
    assert finding.cost_ns == 150 * US  # one step of two
    assert call in finding.evidence
    short = a_rank(works, [Gap(STEP + 100 * US, STEP + 199 * US, f"launch_gap/{cause}", during=0)], host, steps=2)
    assert found_by(rule, short) == []


def test_compiling_only_in_the_first_step_is_not_recompilation():
    host = [Span("compile", 0, 400 * US, CALL, "launch_gap/compile")]
    gap = Gap(0, 400 * US, "launch_gap/compile", during=0)
    assert found_by("recompilation", a_rank([Did("k", 400 * US, STEP)], [gap], host, steps=2)) == []


# Kernels


@pytest.mark.parametrize(
    ("occupancy", "length", "account", "cost"),
    [
        (10, 1_000 * US, "compute/norm", 800 * US),
        (24, 1_000 * US, "compute/norm", 520 * US),
        (25, 1_000 * US, "compute/norm", 0),
        (-1, 1_000 * US, "compute/norm", 0),
        (10, 1_000 * US, "compute/matmul", 0),
        (10, 19 * US, "compute/norm", 0),
    ],
)
def test_low_occupancy(occupancy, length, account, cost):
    assert the_cost("low_occupancy", a_rank([Did("k", 0, length, account, occupancy=occupancy)])) == cost


CHAIN = [Did("mul", 0, 300 * US), Did("tanh", 300 * US, 500 * US), Did("add", 500 * US, 600 * US)]


def test_an_elementwise_chain_wastes_all_but_its_longest_kernel():
    assert the_cost("unfused_elementwise", a_rank(CHAIN)) == 300 * US


def test_an_elementwise_chain_saves_at_most_its_traffic():
    moved = [did._replace(bytes=size) for did, size in zip(CHAIN, (100, 100, 400))]
    assert the_cost("unfused_elementwise", a_rank(moved)) == 200 * US
    assert the_cost("unfused_elementwise", a_rank([*moved[:2], CHAIN[2]])) == 300 * US


@pytest.mark.parametrize(
    "works",
    [
        CHAIN[:2],
        [CHAIN[0], CHAIN[1]._replace(name="mul"), CHAIN[2]],  # one op over many tensors
        [CHAIN[0], CHAIN[1]._replace(account="compute/matmul"), CHAIN[2]],
        [CHAIN[0], CHAIN[1]._replace(module="nn.Module: B"), CHAIN[2]],
        [CHAIN[0], CHAIN[1]._replace(stream=1), CHAIN[2]],
        [did._replace(start=did.start // 100, stop=did.stop // 100) for did in CHAIN],
    ],
)
def test_other_kernel_sequences_are_not_elementwise_chains(works):
    assert found_by("unfused_elementwise", a_rank(works)) == []


FLOAT = OperandShape(dims=((8, 8), (8, 8)), types=("float", "float"))
HALF = OperandShape(dims=((8, 8), (8, 8)), types=("c10::BFloat16", "c10::BFloat16"))


@pytest.mark.parametrize(
    ("name", "device", "shape", "cost"),
    [
        ("ampere_sgemm_128x64_tn", "NVIDIA A100-SXM4-80GB", None, 875 * US),  # 312 over 19.5: 16 times, half of it 8
        ("volta_sgemm_128x64_tn", "Tesla V100-SXM2-32GB", None, 748_800),
        ("volta_sgemm_128x64_tn", "some device", None, 0),
        ("ampere_s16816gemm_bf16_128x64", "NVIDIA A100-SXM4-80GB", FLOAT, 0),
        ("cutlass_80_tensorop_s1688gemm_tf32", "NVIDIA A100-SXM4-80GB", FLOAT, 0),
        ("some_gemm", "NVIDIA A100-SXM4-80GB", FLOAT, 875 * US),
        ("some_gemm", "NVIDIA A100-SXM4-80GB", HALF, 0),
        ("some_gemm", "NVIDIA A100-SXM4-80GB", None, 0),
    ],
)
def test_wrong_precision(name, device, shape, cost):
    host = [Span("aten::mm", 0, US, shape=0 if shape else -1)]
    did = Did(name, 0, 1_000 * US, "compute/matmul", by=0)
    assert the_cost("wrong_precision", a_rank([did], host=host, device=device, shapes=[shape or FLOAT])) == cost


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("void cudnn::ops::nchwToNhwcKernel<float>", 200 * US),
        ("batched_transpose_32x32_half", 200 * US),
        ("void at::native::transpose_readonly_kernel", 0),
    ],
)
def test_layout_copies(name, cost):
    assert the_cost("layout_copies", a_rank([Did(name, 0, 200 * US, "compute/conv")])) == cost


def test_host_device_thrash():
    pinned = "Memcpy HtoD (Pinned -> Device)"
    many = [Did(pinned, at * 10 * US, at * 10 * US + 10 * US, "copy/h2d", bytes=1024) for at in range(32)]
    (finding,) = found_by("host_device_thrash", a_rank(many))
    assert finding.cost_ns == 320 * US
    assert "32.0 KiB per step" in finding.evidence
    (few,) = found_by("host_device_thrash", a_rank(many[1:]))
    assert few.summary.startswith("31 exposed copies")
    unpinned = Did("Memcpy HtoD (Pageable -> Device)", 0, 250 * US, "copy/h2d")
    assert the_cost("host_device_thrash", a_rank([unpinned])) == 250 * US
    (large,) = found_by("host_device_thrash", a_rank([unpinned._replace(name=pinned)]))
    assert large.summary.startswith("1 exposed copy")
    assert "pinned" not in large.remedy.description.lower()


# Networks


def messages(count, size, length, ranks=(0, 1), begin=0):
    met = Collective(name="all_reduce", ranks=ranks, members=len(ranks), size=size)
    return [
        Did("nccl", begin + at * length, begin + (at + 1) * length, "comm/all_reduce", met=met) for at in range(count)
    ]


def test_small_messages_cost_their_time_in_excess_of_buckets():
    # The large one shows 100 bytes a ns; sixteen of 200 kB in 20 µs each fit one bucket: 20 µs + 32 µs.
    works = [*messages(16, 200_000, 20 * US), *messages(1, 100_000_000, 1_000 * US, begin=1_000 * US)]
    (finding,) = found_by("small_messages", a_rank(works))
    assert finding.cost_ns == 320 * US - 20 * US - 32 * US
    assert finding.summary.startswith("16 all-reduce calls per step of 195.3 KiB each")
    assert found_by("small_messages", a_rank(works[1:])) == []
    assert found_by("small_messages", a_rank(messages(16, 300_000, 20 * US))) == []


def test_a_slow_link_is_named():
    def rank(number, length):
        return a_rank(messages(4, 1 << 20, length, (number, number + 1)), number=number)

    ranks = [rank(0, 100 * US), rank(2, 100 * US), rank(4, 100 * US), rank(6, 300 * US)]
    (finding,) = found_by("slow_link", *ranks)
    assert "ranks 6, 7" in finding.summary
    assert finding.cost_ns == 4 * int(300 * US * (1 - 1 / 3)) // 4
    assert found_by("slow_link", *ranks[:2], ranks[3]) != []
    assert found_by("slow_link", ranks[0], ranks[3]) == []  # of two, who is to say
    assert found_by("slow_link", *ranks[:3], rank(6, 190 * US)) == []
    assert found_by("slow_link", *ranks[:2], ranks[3], rank(8, 300 * US)) == []  # half of them: another network


# Properties


@st.composite
def ranks_of_anything(draw):
    """A rank of successive stretches: work and gaps of any account, each under some host span."""
    cpu = draw(st.booleans())
    accounts = st.sampled_from(
        ["compute/matmul", "compute/elementwise", "compute/optimizer", "comm/all_reduce", "copy/h2d"]
    )
    reasons = st.sampled_from(
        [f"launch_gap/{cause}" for cause in ("python", "launch", "queue", "sync", "alloc", "gc", "compile")]
    )
    host = [Span("train.py(1): step", 0, 2 * STEP, PYTHON)]
    host += [
        Span("call", at * US, (at + 900) * US, CALL, f"launch_gap/{cause}", 0)
        for at, cause in ((0, "sync"), (5_000, "gc"))
    ]
    works, gaps, now = [], [], 0
    for _ in range(draw(st.integers(1, 12))):
        many, length, pause = (
            draw(st.sampled_from([1, 1, 3, MIN_STORM_KERNELS])),
            draw(st.integers(1, 9_000)),
            draw(st.integers(0, 9_000)),
        )
        account, reason, phase = draw(accounts), draw(reasons), draw(st.sampled_from(["other", "optimizer"]))
        met = Collective(name="all_reduce", size=draw(st.integers(0, 10**6)), members=2) if "comm" in account else None
        for _ in range(many):
            works.append(
                Did(f"{account} kernel", now, now + length, account, phase, by=draw(st.integers(0, 2)), met=met)
            )
            now += length
            if pause:
                gaps.append(Gap(now, now + pause, reason, phase, during=draw(st.integers(-1, 2))))
                now += pause
    return a_rank(works, gaps, host, steps=max(1, -(-now // STEP)), cpu=cpu)


@settings(max_examples=40)
@given(st.lists(ranks_of_anything(), min_size=1, max_size=2))
def test_rules_claim_each_gap_at_most_once(ranks):
    ranks = [
        msgspec.structs.replace(rank, events=msgspec.structs.replace(rank.events, rank=n))
        for n, rank in enumerate(ranks)
    ]
    steps = sum(rank.steps for rank in ranks)
    results = findings(WHOLE, None, ranks, RULES)
    assert all(0 < finding.cost_ns <= STEP for finding in results)
    idle = sum(int(rank.idle.ns.sum()) for rank in ranks) / steps
    shares = [claimed_ns(WHOLE, ranks, claimant) for claimant in Claimant if claimant is not Claimant.NOBODY]
    assert idle - len(shares) <= sum(shares) <= idle
    waste = ("launch_bound", "allocator_churn", "gc_pauses", "recompilation", "optimizer_not_fused")
    assert sum(finding.cost_ns for finding in results if finding.rule in waste) <= idle


def test_only_full_steps_are_counted():
    rank = a_rank([Did("k", 0, US), Did("k", STEP, STEP + US)], steps=2)
    parts = (BookedPart(label="before", start=0, stop=STEP, partial=True), rank.parts[1])
    cut_off = msgspec.structs.replace(rank, parts=parts)
    assert (rank.steps, cut_off.steps) == (2, 1)
    times = np.array([-1, 0, STEP - 1, STEP, 2 * STEP - 1, 2 * STEP])
    assert rank.step_of(times).tolist() == [-1, 0, 0, 1, 1, -1]
    assert cut_off.step_of(times).tolist() == [-1, -1, -1, 1, 1, -1]
    none = msgspec.structs.replace(rank, parts=parts[:1])
    assert (none.steps, none.full(times).tolist()) == (1, [False, True, True, False, False, False])


# Public traces

TRACES = ("a100_ddp_resnet.json.gz", "cpu_gloo_3ranks", "diff_control.json.gz", "diff_test.json.gz",
          "h100_qwen_0.5b.json.gz", "mi300_qwen_0.5b.json.gz", "mi300_resnet_ac.json.gz", "resnet50_loader0.json.gz",
          "resnet50_loader4.json.gz", "v100_dlrm_8ranks")  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_all_rules_run_over_every_public_trace(name, public_trace):
    measured = measure(read([public_trace(name)]))
    ranks = all_booked(measured)
    for rank, booked in zip(measured.ranks, ranks):
        idle = sum(entry.ns for part in rank.ledgers for entry in part.entries if entry.account.kind in IDLE)
        assert int(booked.idle.ns.sum()) == idle
    results = findings(measured.mean, None, ranks, RULES)
    assert all(0 < finding.cost_ns <= 2 * measured.mean.wall_ns for finding in results)
    from_ledger = {finding.rule for finding in findings(measured.mean, rules=RULES)}
    assert from_ledger - {finding.rule for finding in results} <= {"launch_bound"}


IDLE = ("launch_gap", "data_wait", "checkpoint", "bubble")


def test_many_rows_load_a_subset_of_ranks_with_the_straggler(public_trace, monkeypatch):
    measured = measure(read([public_trace("v100_dlrm_8ranks")]))
    for most, ranks in ((10**9, list(range(8))), (8_000, [0, 3, 7]), (1, [0, 7])):
        monkeypatch.setattr(rank_results, "_MAX_TOTAL_ROWS", most)
        assert [booked.events.rank for booked in all_booked(measured)] == ranks


def test_the_late_rank_of_eight_is_named(public_trace):
    measured = measure(read([public_trace("v100_dlrm_8ranks")]))
    results = findings(measured.mean, None, all_booked(measured), RULES)
    (late,) = (finding for finding in results if finding.rule == "straggler")
    (own,) = (row for row in measured.lateness if row.rank == 7)
    assert late.summary.startswith(f"Rank 7 arrives last at {own.last} of {own.met} collectives")


def test_a_slow_loader_is_the_first_finding_of_a_real_trace(public_trace):
    slow, quick = (measure(read([public_trace(f"resnet50_loader{n}.json.gz")])) for n in (0, 4))
    assert findings(slow.mean, None, all_booked(slow), RULES)[0].rule == "data_wait"
    assert "data_wait" not in [finding.rule for finding in findings(quick.mean, None, all_booked(quick), RULES)]
