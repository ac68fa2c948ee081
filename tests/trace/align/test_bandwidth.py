"""Bandwidths against definitions worked out by hand (nccl-tests, doc/PERFORMANCE.md), and over real ranks."""

from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.surveys import collective, made_survey
from trainyard.trace.align.bandwidth import bus_factor, measure_bandwidths
from trainyard.trace.measure import measure, read


@pytest.mark.parametrize(
    ("name", "members", "factor"),
    [
        ("all_reduce", 2, 1), ("all_reduce", 8, Fraction(7, 4)), ("all_gather", 4, Fraction(3, 4)),
        ("reduce_scatter", 4, Fraction(3, 4)), ("all_to_all", 8, Fraction(7, 8)), ("broadcast", 8, 1), ("reduce", 3, 1),
        ("send_recv", 2, 1), ("all_reduce", 0, None), ("other", 4, None), ("barrier", 4, None),
    ],
)  # fmt: skip
def test_bus_factors(name, members, factor):
    assert bus_factor(name, members) == factor


def _two(rows):
    """Ranks 0 and 1 in all-reduces: (size, start 0, start 1, end 0, end 1)."""
    met = [[], []]
    for number, (size, *times) in enumerate(rows):
        for rank in (0, 1):
            met[rank].append((collective(ranks=(0, 1), seq=number, size=size), times[rank], times[2 + rank]))
    return [made_survey(rank, own) for rank, own in enumerate(met)]


def test_aligned_collectives_are_timed_from_the_last_arrival():
    (row,) = measure_bandwidths(_two([(4000, 0, 600, 1000, 1040)]), aligned=True)
    assert (row.collective, row.members, row.size, row.count, row.time_ns, row.from_last) == (
        "all_reduce", 2, 4000, 1, 440, True,
    )  # fmt: skip
    assert row.algbw == row.busbw == 4000 * 10**9 // 440  # 2 (n - 1) / n is 1 for two


def test_unaligned_collectives_are_timed_by_the_shortest_member():
    (row,) = measure_bandwidths(_two([(4000, 0, 600, 1000, 1040)]), aligned=False)
    assert (row.time_ns, row.from_last) == (440, False)
    (row,) = measure_bandwidths(_two([(4000, 500, 600, 1000, 1700)]), aligned=False)
    assert row.time_ns == 500


def test_bandwidth_is_the_median_per_power_of_two_of_size():
    rows = [(1024, 0, 0, 100, 100), (2047, 200, 200, 300, 300), (1500, 400, 400, 550, 550), (2048, 600, 600, 700, 700)]
    small, large = measure_bandwidths(_two(rows), aligned=True)
    assert (small.count, small.size, small.time_ns) == (3, 1500, 100)
    assert small.algbw == 1024 * 10**9 // 100
    assert (small.slowest, small.fastest) == (10 * 10**9, 2047 * 10**9 // 100)
    assert (large.count, large.size) == (1, 2048)


def test_an_unmatched_collective_counts_by_its_own_duration():
    lone = made_survey(0, [(collective(ranks=(0, 1), size=100), 0, 50)], world=2)
    (row,) = measure_bandwidths([lone], aligned=False)
    assert (row.members, row.count, row.time_ns, row.from_last) == (2, 1, 50, False)
    unsaid = made_survey(0, [(collective(size=100), 0, 50)], world=2)
    (row,) = measure_bandwidths([unsaid], aligned=False)
    assert (row.members, row.busbw, row.slowest) == (0, None, None)
    assert row.algbw == 2 * 10**9


def test_a_transfer_is_timed_at_its_receiver_and_counted_once():
    send = collective("send_recv", ranks=(0, 1), size=1000, peer=1)
    receive = collective("send_recv", ranks=(0, 1), size=1000, peer=0, receives=True)
    ends = [made_survey(0, [(send, 100, 150)]), made_survey(1, [(receive, 0, 160)])]
    (row,) = measure_bandwidths(ends, aligned=True)
    assert (row.collective, row.count, row.time_ns, row.busbw) == ("send_recv", 1, 60, 1000 * 10**9 // 60)


def test_barriers_and_empty_messages_have_no_bandwidth():
    empty = collective(ranks=(0, 1), size=0)
    barrier = collective("barrier", ranks=(0, 1), size=8)
    assert measure_bandwidths([made_survey(r, [(empty, 0, 5), (barrier, 7, 9)]) for r in (0, 1)], aligned=True) == []


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 10**9)), min_size=1, max_size=20), st.booleans())
def test_each_collective_is_in_one_row_with_ordered_rates(rows, aligned):
    at, placed = 0, []
    for size, ns in rows:
        placed.append((size, at, at, at + ns, at + ns))
        at += 2 * ns
    rates = measure_bandwidths(_two(placed), aligned)
    assert sum(row.count for row in rates) == len(rows)
    for row in rates:
        assert row.slowest <= row.busbw <= row.fastest
        assert row.size.bit_length() in {size.bit_length() for size, _ in rows}


def test_bandwidth_of_eight_real_ranks(public_trace):
    """V100s over NVLink: the 1.6 MB all-reduce reaches 32 GB/s of bus bandwidth in the trace."""
    rates = measure(read([public_trace("v100_dlrm_8ranks")])).bandwidths
    largest = max((row for row in rates if row.collective == "all_reduce"), key=lambda row: row.size)
    assert (largest.size, largest.time_ns, largest.from_last) == (1_576_964, 87_000, True)
    assert largest.busbw == 1_576_964 * 7 * 10**9 // (4 * 87_000)
    assert sum(row.count for row in rates) == 8


def test_waiting_and_moving_time_decide_the_verdict():
    (row,) = measure_bandwidths(_two([(4000, 0, 600, 1000, 1040)]), aligned=True)
    assert (row.waiting_ns, row.moving_ns, row.verdict) == (600, 400 + 440, "mostly moving")
    (row,) = measure_bandwidths(_two([(4000, 0, 900, 1000, 1040)]), aligned=True)
    assert (row.waiting_ns, row.moving_ns, row.verdict) == (900, 100 + 140, "mostly waiting")
    (row,) = measure_bandwidths(_two([(4000, 0, 600, 1000, 1040)]), aligned=False)
    assert (row.waiting_ns, row.verdict) == (None, "cannot tell")


@pytest.mark.parametrize(
    ("hosts", "link", "rate"),
    [(("a", "a"), "NVLink 4", 450e9), (("a", "b"), "InfiniBand NDR", 50e9), (("a", ""), "", None)],
)
def test_the_link_is_that_between_the_members_hosts(hosts, link, rate):
    surveys = [
        survey._replace(facts=msgspec.structs.replace(survey.facts, host_name=host, device="NVIDIA H100 80GB HBM3"))
        for survey, host in zip(_two([(4000, 0, 0, 1000, 1000)]), hosts)
    ]
    (row,) = measure_bandwidths(surveys, aligned=True)
    assert (row.link, row.link_rate) == (link, rate)
    assert row.link_use == (row.busbw / rate if rate else None)
