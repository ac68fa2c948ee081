"""For each rule, traces in which its claim or remedy would be false: it is silent, doubtful, or says something else."""

import pytest
from msgspec.structs import replace

from tests.booked_maker import STEP, US, Did, Gap, Span, a_rank
from tests.detect.test_detect import RULES, WHOLE, found_by, ledger, the_cost
from tests.trace_maker import trace, write
from trainyard.detect.confidence import CANNOT_TELL
from trainyard.detect.kernel_storms import MIN_STORM_KERNELS
from trainyard.detect.run_rules import findings
from trainyard.events import CALL, NOTE, OP, PYTHON, Collective, StepMark
from trainyard.ledger import Account
from trainyard.trace.measure import measure, read
from trainyard.trace.rank_results import all_booked

MS = 1_000 * US
TORCH = Span("aten::mm", 0, US, OP)
"""A host row that shows PyTorch."""


def stopped(name, cause, ns=500 * US, category=CALL, host=(), steps=1, start=100 * US, **options):
    """A rank that idles in a call."""
    rows = [Span(name, start, start + ns, category, f"launch_gap/{cause}"), *host]
    works = [Did("gemm", 0, start, "compute/matmul"), Did("gemm", start + ns, steps * STEP, "compute/matmul")]
    return a_rank(works, [Gap(start, start + ns, f"launch_gap/{cause}", during=0)], rows, steps=steps, **options)


def idle(*lengths, account="launch_gap/python", host=(TORCH,), steps=1):
    """A rank that idles at regular places with no span open, for each length in ns."""
    gaps = [Gap(at * 1_000 * US, at * 1_000 * US + ns, account) for at, ns in enumerate(lengths)]
    works = [Did("gemm", gap.stop, (at + 1) * 1_000 * US, "compute/matmul") for at, gap in enumerate(gaps)]
    return a_rank(works, gaps, host, steps=steps)


# Start-up is not part of the steady state


@pytest.mark.parametrize("account", ["launch_gap/init", "launch_gap/edge"])
def test_start_up_is_information_and_no_other_finding(account):
    rank = idle(400 * US, 10 * US, account=account)
    results = findings(WHOLE, None, [rank], RULES)
    assert [finding.rule for finding in results if finding.account.kind == "launch_gap"] == ["start_up"]
    (finding,) = found_by("start_up", rank)
    assert (finding.cost_ns, finding.severity, finding.priced, finding.recoverable_ns) == (410 * US, "low", "none", 0)
    assert "almost all of the booked time is one" in finding.summary


def test_start_up_that_is_most_of_the_window_is_severe():
    rank = a_rank([Did("k", 6_000 * US, STEP)], [Gap(0, 6_000 * US, "launch_gap/init")])
    (finding,) = found_by("start_up", rank)
    assert finding.severity == "high"


def test_compilation_in_the_first_step_only_is_start_up():
    rank = stopped("compile", "compile", steps=2)
    marked = replace(rank, events=replace(rank.events, marks=(StepMark(label="0", start=0, stop=STEP),)))
    assert found_by("recompilation", marked) == []
    assert the_cost("start_up", marked) == 250 * US


def test_loading_a_module_once_is_not_recompilation():
    once = stopped("cuModuleLoadData", "compile", steps=3, start=2 * STEP + US)
    marks = tuple(StepMark(label=str(step), start=step * STEP, stop=(step + 1) * STEP) for step in range(3))
    marked = replace(once, events=replace(once.events, marks=marks))
    assert found_by("recompilation", marked) == []
    compiled = stopped("entire_frame_compile", "compile", steps=3, start=2 * STEP + US)
    compiled = replace(compiled, events=replace(compiled.events, marks=marks))
    (finding,) = found_by("recompilation", compiled)
    assert "TORCH_LOGS" not in finding.remedy.description  # no event of dynamo


def test_real_start_up_leads_to_no_allocator_or_launch_finding(tmp_path):
    """cudaFree of 6 s and cudaLaunchKernel of 3.1 s in a window without marks."""
    ms = 1_000_000
    device = [("gemm", 7, 0, ms, 0), ("fresh", 7, 9_200 * ms, 9_201 * ms, 6_050 * ms, {"launch_ns": 3_100 * ms})]
    device += [("gemm", 7, (9_300 + at) * ms, (9_318 + at) * ms, (9_299 + at) * ms) for at in range(0, 200, 20)]
    host = [("cudaFree", 100, 2 * ms, 6_002 * ms, "cuda_runtime")]
    measured = measure(read([write(tmp_path, trace(device=device, host=host))]))
    results = findings(measured.mean, None, all_booked(measured), RULES)
    assert [finding.rule for finding in results if finding.account.kind == "launch_gap"] == ["start_up"]
    assert next(finding for finding in results if finding.rule == "start_up").cost_ns == 9_100 * ms


def test_start_up_in_a_partial_step_is_a_note_with_its_cost(tmp_path):
    ms = 1_000_000
    device = [("gemm", 7, at * ms, (at + 9) * ms, (at - 1) * ms) for at in (1, 60, 70, 80, 90)]
    host = [("cudaFree", 100, 12 * ms, 57 * ms, "cuda_runtime")]
    marks = [("0", 0, 65 * ms), ("1", 66 * ms, 78 * ms), ("2", 78 * ms, 95 * ms)]
    measured = measure(read([write(tmp_path, trace(device=device, host=host, marks=marks))]))
    assert measured.mean.by_account().get(Account("launch_gap", "init"), 0) == 0
    assert any("45.0 ms" in note for note in measured.notes)
    assert found_by("start_up", *all_booked(measured), mean=measured.mean) == []


def test_a_wait_at_the_start_of_a_profile_is_no_dependency(tmp_path):
    """A profile that starts while a serving process has a full queue."""
    ms = 1_000_000
    device = [("gemm", 7, at * ms, (at + 1) * ms, None) for at in range(20)]
    device += [("gemm", 7, (513 + at) * ms, (514 + at) * ms, 19 * ms + at) for at in range(400)]
    host = [("cudaEventQuery", 100, 0, 18 * ms, "cuda_runtime")]
    measured = measure(read([write(tmp_path, trace(device=device, host=host))]))
    results = findings(measured.mean, None, all_booked(measured), RULES)
    assert [finding.rule for finding in results if finding.account.kind == "launch_gap"] == ["start_up"]
    (finding,) = [finding for finding in results if finding.rule == "start_up"]
    assert (str(finding.account), finding.cost_ns) == ("launch_gap/edge", 493 * ms)


# The language and framework of the program


def test_python_and_torch_are_named_only_if_the_file_shows_them():
    """A C++ program: no Python, no torch.compile, no with_stack, no empty_cache, no pin_memory."""
    foreign = ("python", "torch", "with_stack=true,", "empty_cache", "pin_memory", "fused=", "foreach")
    storm, pauses = [], []
    for at in range(MIN_STORM_KERNELS):
        storm.append(Did("tiny", at * 15 * US, at * 15 * US + 5 * US))
        pauses.append(Gap(at * 15 * US + 5 * US, at * 15 * US + 15 * US, "launch_gap/host"))
    updates = [Did("add", at * 40 * US, at * 40 * US + 20 * US, "compute/optimizer", "optimizer") for at in range(60)]
    gaps = [Gap(did.stop, did.stop + 20 * US, "launch_gap/host", "optimizer") for did in updates]
    ranks = [
        idle(*[400 * US] * 8, account="launch_gap/host", host=()),
        idle(*[400 * US] * 8, account="launch_gap/launch", host=()),
        stopped("cudaFree", "alloc"),
        stopped("cudaHostRegister", "alloc"),
        stopped("cudaDeviceSynchronize", "sync"),
        stopped("cudaMemcpy", "sync"),
        stopped("compile", "compile", steps=2, start=STEP + US),
        a_rank(storm, pauses),
        a_rank(updates, gaps),
        a_rank([Did("Memcpy HtoD (Pageable -> Device)", 0, 900 * US, "copy/h2d", bytes=10**8)]),
        a_rank([Did("nchwToNhwcKernel", 0, 900 * US, "compute/conv")]),
    ]
    for rank in ranks:
        results = findings(WHOLE, None, [rank], RULES)
        assert results
        for finding in results:
            text = f"{finding.summary} {finding.remedy.description}".lower()
            assert [word for word in foreign if word in text and "in pytorch with_stack" not in text] == []


@pytest.mark.parametrize("account", ["launch_gap/python", "launch_gap/host"])
def test_idle_time_is_python_only_in_files_with_python(tmp_path, account):
    name, category = (
        ("train.py(3): step", "python_function") if account.endswith("python") else ("step", "user_annotation")
    )
    document = trace(
        device=[("gemm", 7, 0, 100, 0), ("gemm", 7, 1_000, 1_100, 999)], host=[(name, 100, 0, 1_050, category)]
    )
    by_account = measure(read([write(tmp_path, document)])).mean.by_account()
    assert {str(key) for key in by_account if key.kind == "launch_gap"} == {account, "launch_gap/launch"}


# Idle time whose cause the file does not show


def test_one_long_stop_without_a_span_is_not_slow_python():
    (finding,) = found_by("launch_bound", idle(5_000 * US))
    assert finding.confidence < CANNOT_TELL
    assert "Move Python" not in finding.remedy.description
    (steady,) = found_by("launch_bound", idle(*[400 * US] * 8))
    assert steady.confidence > finding.confidence


def test_mostly_means_more_than_half():
    lengths = [400 * US] * 4
    rank = a_rank(
        [Did("gemm", STEP - US, STEP, "compute/matmul")],
        [
            Gap(at * 1_000 * US, at * 1_000 * US + ns, account)
            for at, (ns, account) in enumerate(
                zip([*lengths, *lengths, *lengths], ["launch_gap/python", "launch_gap/launch", "launch_gap/queue"] * 4)
            )
        ][:9],
        (TORCH,),
    )
    (finding,) = found_by("launch_bound", rank)
    assert "mostly" not in finding.summary


def test_work_that_starts_late_after_its_launch_names_no_cause():
    (finding,) = found_by("launch_bound", idle(*[400 * US] * 8, account="launch_gap/queue"))
    assert finding.confidence < CANNOT_TELL


# Syncs


def test_a_lead_of_the_host_does_not_shorten_queueing():
    host = [Span("cudaStreamSynchronize", 0, 2_000 * US, CALL, "launch_gap/sync")]
    works = [Did("gemm", 0, 1_990 * US, "compute/matmul"), Did("gemm", 3_000 * US, STEP, "compute/matmul")]
    gaps = [
        Gap(1_990 * US, 2_000 * US, "launch_gap/sync", during=0),
        Gap(2_000 * US, 3_000 * US, "launch_gap/queue", during=-1),
    ]
    assert found_by("sync_in_step", a_rank(works, gaps, host)) == []


def test_a_lead_is_used_up_once():
    """The sync took a lead of 1,900 µs; two later gaps of 1,200 µs each need 2,400 µs."""
    host = [Span("cudaStreamSynchronize", 0, 2_000 * US, CALL, "launch_gap/sync")]
    works = [Did("gemm", 0, 1_900 * US, "compute/matmul"), Did("gemm", 3_200 * US, 4_000 * US, "compute/matmul")]
    works.append(Did("gemm", 5_200 * US, STEP, "compute/matmul"))
    gaps = [
        Gap(1_900 * US, 2_000 * US, "launch_gap/sync", during=0),
        Gap(2_000 * US, 3_200 * US),
        Gap(4_000 * US, 5_200 * US),
    ]
    rank = a_rank(works, gaps, host)
    assert the_cost("sync_in_step", rank) == 1_300 * US
    assert the_cost("launch_bound", rank) == 1_200 * US


# Hardware


@pytest.mark.parametrize(
    ("device", "remedy"),
    [
        ("Tesla V100-SXM2-32GB", {"float16"}),
        ("NVIDIA A100-SXM4-80GB", {"bfloat16", "TF32"}),
        ("NVIDIA H100 80GB HBM3", {"bfloat16", "TF32"}),
    ],
)
def test_number_formats_are_advised_only_if_the_device_has_them(device, remedy):
    rank = a_rank([Did("volta_sgemm_128x64_tn", 0, 1_000 * US, "compute/matmul")], device=device)
    (finding,) = found_by("wrong_precision", rank)
    words = finding.remedy.description.replace(",", " ").replace(".", " ").split()
    assert set(words) & {"float16", "bfloat16", "TF32"} == remedy


# Kernels and copies


def test_most_of_the_time_is_said_only_above_half():
    ten = [Did(f"nchwToNhwcKernel{at}", at * 30 * US, (at + 1) * 30 * US, "compute/conv") for at in range(10)]
    (spread,) = found_by("layout_copies", a_rank(ten))
    (single,) = found_by("layout_copies", a_rank([ten[0]._replace(stop=300 * US)]))
    assert "mostly" not in spread.evidence
    assert "mostly" in single.evidence


def test_large_copies_are_not_packed():
    large = [Did("Memcpy HtoD", at * 100 * US, (at + 1) * 100 * US, "copy/h2d", bytes=10**8) for at in range(40)]
    (finding,) = found_by("host_device_thrash", a_rank(large))
    assert "Pack" not in finding.remedy.description
    (small,) = found_by("host_device_thrash", a_rank([did._replace(bytes=1024) for did in large]))
    assert "Pack" in small.remedy.description


def test_gaps_of_a_storm_in_a_partial_step_have_no_longest_run():
    """Stamps in ms: all gaps are claimed, and no run lies in a full step."""
    works = [Did("tiny", at * 15 * US, at * 15 * US + 5 * US) for at in range(MIN_STORM_KERNELS)]
    gaps = [Gap(did.stop, did.stop + 10 * US) for did in works]
    rank = a_rank(works, gaps, steps=2)
    parts = (replace(rank.parts[0], stop=US, partial=True), replace(rank.parts[1], start=US))
    assert found_by("tiny_kernels", replace(rank, parts=parts)) == []


def test_fused_is_advised_only_for_optimizers_that_have_it():
    updates = [Did("add", at * 40 * US, at * 40 * US + 20 * US, "compute/optimizer", "optimizer") for at in range(60)]
    gaps = [Gap(did.stop, did.stop + 20 * US, phase="optimizer") for did in updates]
    remedies = {
        name: found_by(
            "optimizer_not_fused", a_rank(updates, gaps, [Span(f"Optimizer.step#{name}.step", 0, STEP, NOTE)])
        )[0].remedy.description
        for name in ("AdamW", "Rprop")
    }
    assert "fused=True" in remedies["AdamW"]
    assert "fused=True" not in remedies["Rprop"]


# Communication


def reducing(size, phase="other", count=20, length=20 * US):
    """A rank that all-reduces messages of this size."""
    met = Collective(name="all_reduce", ranks=(0, 1), members=2, size=size)
    return a_rank(
        [Did("nccl", at * length, (at + 1) * length, "comm/all_reduce", phase, met=met) for at in range(count)],
        host=(TORCH,),
    )


def test_tiny_messages_are_not_compressed():
    mean = ledger(compute__matmul=9_600 * US, comm__all_reduce=400 * US)
    (tiny,) = found_by("exposed_comm", reducing(512), mean=mean)
    (large,) = found_by("exposed_comm", reducing(10**8), mean=mean)
    assert "bfloat16" not in tiny.remedy.description
    assert "bfloat16" in large.remedy.description


def test_one_rank_cannot_separate_waiting_from_moving():
    both, single = (
        found_by(
            "exposed_comm",
            reducing(10**8),
            mean=ledger(ranks=ranks, compute__matmul=9_600 * US, comm__all_reduce=400 * US),
        )[0]
        for ranks in ((0, 1), (0,))
    )
    assert single.confidence < both.confidence
    assert "included" in single.evidence
    assert "not included" in both.evidence


def test_a_single_broadcast_is_doubted_as_a_cost_of_steps():
    met = Collective(name="broadcast", ranks=(0, 1), members=2, size=10**8)
    single = a_rank([Did("nccl", 0, 900 * US, "comm/broadcast", met=met)], steps=4)
    each = a_rank(
        [Did("nccl", step * STEP, step * STEP + 900 * US, "comm/broadcast", met=met) for step in range(4)], steps=4
    )
    mean = ledger(compute__matmul=9_100 * US, comm__broadcast=900 * US)
    doubtful, certain = (found_by("exposed_comm", rank, mean=mean)[0] for rank in (single, each))
    assert doubtful.confidence < CANNOT_TELL < certain.confidence
    assert "almost all of the booked time is one" in doubtful.summary


def test_uneven_tables_of_a_recommender_are_not_experts():
    mean = ledger(late={0: 50, 1: 50}, ranks=(0, 1), compute__matmul=90, straggler__all_to_all=10)
    ranks = [
        a_rank(
            [
                Did("nccl", 0, US, "comm/all_to_all", met=Collective(name="all_to_all", size=size)),
                Did("gather", 2 * US, 3 * US, "compute/embedding"),
            ],
            number=rank,
        )
        for rank, size in ((0, 900), (1, 300))
    ]
    (finding,) = found_by("imbalance", *ranks, mean=mean)
    assert "capacity limit" not in finding.remedy.description


def test_classes_that_all_differ_alike_do_not_blame_sequences():
    """A clock that changes makes every class longer; uneven sequences, attention."""
    mean = ledger(late={0: 50, 1: 50}, ranks=(0, 1), compute__matmul=9_600 * US, straggler__all_reduce=400 * US)

    def rank(number, flash, gemm):
        works = [
            Did("flash", 0, flash * US, "compute/attention"),
            Did("gemm", flash * US, (flash + gemm) * US, "compute/matmul"),
        ]
        return a_rank(works, number=number)

    (clocks,) = found_by("imbalance", rank(0, 2_000, 1_000), rank(1, 1_000, 500), mean=mean)
    (sizes,) = found_by("imbalance", rank(0, 2_000, 500), rank(1, 1_000, 500), mean=mean)
    assert "sequences" not in clocks.remedy.description
    assert "sequences" in sizes.remedy.description
    assert clocks.confidence < sizes.confidence


def test_a_rank_that_is_only_behind_is_doubted_as_a_straggler():
    mean = ledger(
        late={1: 60}, ranks=(0, 1), compute__matmul=8_000 * US, straggler__all_reduce=1_000 * US, steps=tuple("01234")
    )
    waits = [(step * STEP + 100 * US, 2_000 * US, "all_reduce", 1) for step in range(5)]

    def rank(number, us):
        works = [
            Did("gemm", step * STEP + at * us * US, step * STEP + (at + 1) * us * US, "compute/matmul")
            for step in range(5)
            for at in range(5)
        ]
        return a_rank(works, number=number, steps=5, waits=waits if number == 0 else ())

    (behind,) = found_by("straggler", rank(0, 200), rank(1, 200), mean=mean)
    (slower,) = found_by("straggler", rank(0, 200), rank(1, 700), mean=mean)
    assert behind.confidence < CANNOT_TELL < slower.confidence


# Time without an explanation


def test_launches_are_asked_for_only_if_they_are_missing():
    unknown = ledger(compute__matmul=900, compute__other=100)
    rank = a_rank([Did("saxpy", 0, 100 * US, "compute/other", by=0)], host=[Span("cudaLaunchKernel", 0, US, CALL)])
    (finding,) = found_by("coverage", rank, mean=unknown)
    assert "saxpy" in finding.evidence
    assert "CPU activity" not in finding.remedy.description
    (missing,) = found_by(
        "coverage", a_rank([Did("gemm", 0, US, "compute/matmul")]), mean=ledger(compute__matmul=900, unexplained=100)
    )
    assert "CPU activity" in missing.remedy.description


def test_a_loader_without_workers_is_recognised():
    def remedy(loader):
        rank = a_rank(
            [Did("gemm", 900 * US, STEP, "compute/matmul")],
            [Gap(0, 900 * US, "data_wait", during=0)],
            [Span(f"enumerate(DataLoader)#{loader}.__next__", 0, 900 * US, NOTE, "data_wait")],
        )
        return found_by("data_wait", rank, mean=ledger(compute__matmul=9_100 * US, data_wait=900 * US))[
            0
        ].remedy.description

    assert "training process" in remedy("_SingleProcessDataLoaderIter")
    assert "training process" not in remedy("_MultiProcessingDataLoaderIter")


def test_explicit_collections_are_not_frozen():
    automatic, explicit = (
        found_by("gc_pauses", stopped(name, "gc", category=PYTHON))[0].remedy.description
        for name in ("Python GC", "gc.collect")
    )
    assert "freeze" in automatic
    assert "freeze" not in explicit


def test_loading_a_checkpoint_is_not_saved_in_the_background():
    (finding,) = found_by("checkpoint_stall", mean=ledger(compute__matmul=900, checkpoint__load=100))
    assert "async_save" not in finding.remedy.description
