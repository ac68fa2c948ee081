"""Prices of late ranks: those of findings, and those of the switches of the section "What if", are one and the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.whatif.test_what_if import read_all
from tests.trace_maker import trace
from trainyard.change import Change
from trainyard.diagnose.price_findings import diagnose
from trainyard.report.view.build_what_if import what_if_section
from trainyard.trace.measure import measure, measure_files, read
from trainyard.trace.whatif.replay import Replay

ALL_RANKS = "no-stragglers"


def job_rank(work_ns, rank):
    """A rank of a job on CPUs: in each step, ops of `work_ns[rank][step]` ns, then an all-reduce that ends after
    the last rank has arrived. Each step begins when the all-reduce before it has ended."""
    host, marks, begin = [], [], 0
    for step, lengths in enumerate(zip(*work_ns)):
        own = [sum(ops) + 20 for ops in lengths]
        end = begin + max(own) + 30
        at = begin + 10
        for number, length in enumerate(lengths[rank]):
            host.append((f"aten::op{number}", 100, at, at + length, "cpu_op"))
            at += length
        host.append(("c10d::allreduce_", 100, at, at + 4, "cpu_op"))
        groups = {"Process Group Ranks": str(list(range(len(work_ns))))}
        host.append(("gloo:all_reduce", 101, at + 4, end - 10, "user_annotation", groups))
        host.append(("aten::add", 100, end - 8, end - 2, "cpu_op"))
        marks.append((str(step + 1), begin, end))
        begin = end
    return trace(host=host, marks=marks, rank=rank, world=len(work_ns), host_name="one", backend="gloo")


def measure_job(folder, work_ns):
    return measure(read_all(folder, *(job_rank(work_ns, rank) for rank in range(len(work_ns)))))


OPS = st.lists(st.integers(50, 400), min_size=2, max_size=4)


@st.composite
def jobs(draw):
    """ns of each op of each step of each rank; the ops of the steps of all ranks have the same names."""
    ranks, steps, ops = draw(st.integers(2, 4)), draw(st.integers(1, 3)), draw(st.integers(2, 4))
    lengths = st.lists(st.integers(50, 400), min_size=ops, max_size=ops)
    return draw(st.lists(st.lists(lengths, min_size=steps, max_size=steps), min_size=ranks, max_size=ranks))


def assert_switches_have_the_prices(measured):
    """Each replayed price of a late rank is the recovered time of the switch with its change; that of ranks late in
    turn is the time that the switch of all ranks recovers beyond it. Returns the rules of these findings."""
    findings = diagnose(measured.mean, None, measured)
    points = {point.changes: point for point in what_if_section(measured, findings=findings).points}
    priced = [finding for finding in findings if finding.priced == "replayed"]
    checked = [finding for finding in priced if finding.rule in ("straggler", "imbalance") and finding.change]
    for finding in checked:
        point = points[(finding.change.text,)]
        if finding.beyond is None:
            assert finding.cost_ns == max(0, point.recovered_ns)
            assert finding.interval_ns == point.interval_ns
        else:
            assert finding.cost_ns == max(0, point.recovered_ns - points[(finding.beyond.text,)].recovered_ns)
    return {finding.rule for finding in checked}


@given(jobs())
def test_the_switch_of_a_late_rank_has_the_price_of_its_finding(tmp_path_factory, work_ns):
    assert_switches_have_the_prices(measure_job(tmp_path_factory.mktemp("t"), work_ns))


def test_a_planted_straggler_has_a_switch(tmp_path):
    even = [[[100, 100], [100, 100], [100, 100]]] * 3
    late = [[[100, 400], [100, 400], [100, 400]]]
    measured = measure_job(tmp_path, [*even, *late])
    assert "straggler" in assert_switches_have_the_prices(measured)
    (finding,) = [row for row in diagnose(measured.mean, None, measured) if row.rule == "straggler"]
    assert (finding.change, finding.beyond) == (Change(text="rank:3=typical"), None)
    section = what_if_section(measured, findings=[finding])
    keys = [lever.key for lever in section.levers]
    assert section.levers[keys.index(ALL_RANKS)].includes == "rank:3"
    both = {"rank:3=typical", ALL_RANKS}
    assert not [point for point in section.points if both <= set(point.changes)]
    assert "rank:3" not in [lever.key for lever in what_if_section(measured).levers]


@pytest.mark.parametrize("name", ["v100_dlrm_8ranks", "cpu_gloo_3ranks"])
def test_switches_of_public_traces_have_the_prices(public_trace, name):
    assert "straggler" in assert_switches_have_the_prices(measure(read([public_trace(name)])))


def test_switches_of_the_bundled_trace_have_the_prices(root):
    measured = measure_files([root / "src" / "trainyard" / "data" / "demo"])
    assert "straggler" in assert_switches_have_the_prices(measured)


@given(OPS, st.data(), st.integers(2, 5))
def test_if_one_rank_is_late_and_the_others_are_equal_both_changes_agree(tmp_path_factory, even, data, ranks):
    """All ranks at the speed of those in time is then the same step as the late rank at the speed of the others."""
    slower = data.draw(st.lists(st.integers(0, 300), min_size=len(even), max_size=len(even)))
    late = [length + extra for length, extra in zip(even, slower)]
    late[-1] += sum(even) + 60  # late by more than the tolerance of `no-stragglers`
    at = data.draw(st.integers(0, ranks - 1))
    work_ns = [[late if rank == at else even] for rank in range(ranks)]
    replay = Replay(measure_job(tmp_path_factory.mktemp("t"), work_ns))
    recoveries = [replay.recovery(replay.times([Change(text=text)])) for text in (f"rank:{at}=typical", ALL_RANKS)]
    assert recoveries[0] == recoveries[1]
    assert recoveries[0].ns == sum(late) - sum(even)


@settings(max_examples=20)
@given(jobs())
def test_times_recovered_one_after_the_other_add_up(tmp_path_factory, work_ns):
    replay = Replay(measure_job(tmp_path_factory.mktemp("t"), work_ns))
    late, every = (replay.times([Change(text=text)]) for text in ("rank:1=typical", ALL_RANKS))
    total = replay.recovery(every)
    assert replay.recovery(late).ns + replay.recovery(every, since=late).ns == total.ns
    assert replay.recovery(every, since=every).ns == 0
