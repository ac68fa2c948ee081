"""Clock alignment from the common ends of collectives, and matching of collectives across ranks."""

from itertools import combinations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refused import missing_values
from tests.surveys import collective, made_survey
from trainyard.stats.medians import lower_median, medians
from trainyard.trace.align.alignment import align_clocks
from trainyard.trace.align.clocks import ClockCorrection
from trainyard.trace.align.matching import SYMMETRIC, meetings
from trainyard.trace.measure import measure, read
from trainyard.trace.measured_trace import Lateness

SECOND = 10**9


@st.composite
def worlds(draw):
    """Ranks that meet in groups along a chain, so that all are connected; every meeting ends at one true instant."""
    count = draw(st.integers(2, 6))
    groups = [(rank, rank + 1) for rank in range(count - 1)] + [tuple(range(count))] * draw(st.integers(0, 1))
    met = {rank: [] for rank in range(count)}
    for number, ranks in enumerate(groups):
        for seq in range(draw(st.integers(3, 6))):
            end = draw(st.integers(10_000, 20_000))
            for rank in ranks:
                start = end - draw(st.integers(100, 900))
                met[rank].append((collective(group=str(number), ranks=ranks, seq=seq), start, end))
    offsets = [0, *(draw(st.integers(-(10**15), 10**15)) for _ in range(count - 1))]
    return met, offsets


@given(worlds())
def test_clock_offsets_are_recovered_exactly_from_common_ends(world):
    met, offsets = world
    shifted = [
        made_survey(rank, [(kind, start - by, stop - by) for kind, start, stop in met[rank]])
        for rank, by in enumerate(offsets)
    ]
    agreed = align_clocks(shifted)
    windows = [(min(start for _, start, _ in rows), max(stop for _, _, stop in rows)) for rows in met.values()]
    if max(start for start, _ in windows) > min(stop for _, stop in windows):
        assert agreed.aligned == "no"
        return
    assert agreed.aligned == "collectives"
    assert [clock.offset for clock in agreed.clocks] == offsets
    assert agreed.residual[:2] == (0, 0)


@given(st.integers(-100_000, 100_000), st.integers(-SECOND, SECOND), st.integers(0, 2**31))
def test_clock_drift_is_recovered_within_the_noise(drift, offset, seed):
    random = np.random.default_rng(seed)
    ends = np.sort(random.integers(0, 5 * SECOND, 60))
    noise = random.integers(-1000, 1000, (2, 60))
    stamps = [ends + noise[0], ends + offset + ends * drift // SECOND + noise[1]]
    surveys = [
        made_survey(rank, [(collective(ranks=(0, 1), seq=n), end - 20_000, end) for n, end in enumerate(own.tolist())])
        for rank, own in enumerate(stamps)
    ]
    agreed = align_clocks(surveys)
    if abs(drift) < 1000:  # 5 µs over the span: hardly more than the noise, which a drift may or may not explain
        return
    assert agreed.aligned == "collectives"
    assert np.abs(agreed.clocks[1].at(stamps[1]) - stamps[0]).max() < 4_000
    assert "drifts" in agreed.why


@given(st.integers(0, 2**31))
def test_noise_is_not_mistaken_for_drift(seed):
    random = np.random.default_rng(seed)
    ends = np.sort(random.integers(0, 5 * SECOND, 100)) + random.integers(-1000, 1000, (3, 100))
    surveys = [
        made_survey(rank, [(collective(ranks=(0, 1, 2), seq=n), e - 20_000, e) for n, e in enumerate(own.tolist())])
        for rank, own in enumerate(ends)
    ]
    assert all(clock.drift == 0 for clock in align_clocks(surveys).clocks)


def test_a_few_outlying_ends_do_not_change_the_clocks():
    ends = [[1000 * n for n in range(1, 22)], [1000 * n + 77 for n in range(1, 22)]]
    for n in (3, 8, 15):
        ends[1][n] += 300
    agreed = align_clocks(
        [
            made_survey(rank, [(collective(ranks=(0, 1), seq=n), end - 500, end) for n, end in enumerate(own)])
            for rank, own in enumerate(ends)
        ]
    )
    assert agreed.clocks[1].offset == -77
    assert agreed.residual == (0, 150, 21)


def _pair(ends, **more):
    return [
        made_survey(rank, [(collective(ranks=(0, 1), seq=n), end - 100, end) for n, end in enumerate(own)], **more)
        for rank, own in enumerate(ends)
    ]


def test_unreliable_clock_solutions_are_rejected():
    fine = [[1000 * n for n in range(1, 10)], [1000 * n + 7 for n in range(1, 10)]]
    assert align_clocks(_pair(fine)).aligned == "collectives"
    on_cpu = align_clocks(_pair(fine, on_device=False))
    assert on_cpu.aligned == "no"
    assert "CPU" in on_cpu.why
    few = align_clocks(_pair([own[:2] for own in fine]))
    assert few.aligned == "no"
    assert missing_values(few.why, 3) == []
    wild = align_clocks(_pair([fine[0], [1000 * n + (n % 3) * 400 for n in range(1, 10)]]))
    assert wild.aligned == "no"
    assert "after alignment the ends" in wild.why
    strangers = [*_pair(fine), made_survey(2, []), made_survey(3, [])]
    assert align_clocks(strangers).aligned == "no"


def test_unconnected_groups_of_ranks_are_not_aligned():
    surveys = [
        made_survey(
            rank, [(collective(group=str(rank // 2), ranks=pair, seq=n), 100 * n, 100 * n + 50) for n in range(5)]
        )
        for rank, pair in enumerate([(0, 1), (0, 1), (2, 3), (2, 3)])
    ]
    agreed = align_clocks(surveys)
    assert agreed.aligned == "no"
    assert missing_values(agreed.why, "rank 2", "rank 0") == []


def test_ranks_of_one_host_share_a_clock():
    def met(by, jitter):
        return [(collective(ranks=range(4), seq=n), 1000 * n - 600 + by, 1000 * n + by + jitter) for n in range(1, 9)]

    agreed = align_clocks([made_survey(r, met(5000 * (r // 2), r), host=f"node{r // 2}") for r in range(4)])
    assert agreed.clocks[0] == agreed.clocks[1] == ClockCorrection()
    assert agreed.clocks[2] == agreed.clocks[3]
    assert agreed.clocks[2].offset in range(-5004, -4999)
    assert "2 clocks" in agreed.why


@given(st.lists(st.lists(st.integers(-(2**61), 2**61 - 10), min_size=12, max_size=12), min_size=2, max_size=4))
def test_extreme_timestamps_do_not_overflow(ends):
    members = tuple(range(len(ends)))
    met = [[(collective(ranks=members, seq=n), end, end + 9) for n, end in enumerate(own)] for own in ends]
    surveys = [made_survey(rank, own) for rank, own in enumerate(met)]
    agreed = align_clocks(surveys)
    for survey, clock in zip(surveys, agreed.clocks):
        assert clock.at(np.array(survey.window)).tolist() == [clock.when(stamp) for stamp in survey.window]


def test_an_unnamed_group_is_the_world_only_if_all_ranks_are_given():
    met = [(collective(), 0, 10)]
    assert meetings([made_survey(rank, met, world=2) for rank in (0, 1)]).size == 1
    assert meetings([made_survey(rank, met, world=8) for rank in (0, 1)]).size == 0


@st.composite
def survey_lists(draw):
    """Surveys whose collectives may or may not match."""
    count = draw(st.integers(1, 4))
    surveys = []
    for rank in range(count):
        rows = draw(
            st.lists(
                st.tuples(
                    st.sampled_from(["all_reduce", "all_to_all", "broadcast"]),
                    st.sampled_from([(), (0, 1), (1, 2), (0, 1, 2), (0, 9)]),
                    st.integers(-1, 2),
                    st.sampled_from([8, 16]),
                    st.integers(0, 30),
                ),
                max_size=8,
            )
        )
        met = [
            (collective(n, ranks=r, seq=s, size=z), 10 * at + i, 10 * at + i + 5)
            for i, (n, r, s, z, at) in enumerate(rows)
        ]
        surveys.append(made_survey(rank, met))
    return surveys


@given(survey_lists())
def test_meetings_match_a_plain_search(surveys):
    met = meetings(surveys)
    members = list(zip(met.rank_index.tolist(), met.entry.tolist()))
    got = {tuple(members[a:b]) for a, b in zip(met.first[:-1], met.first[1:])}
    assert got == _by_search(surveys)
    assert met.size == len(got)


def _by_search(surveys):
    """For each identity on any rank: the members' rows of it in order, if all have equally many."""
    everyone = set(range(len(surveys)))
    idents = set()
    for survey in surveys:
        for number, seq in zip(survey.kind.tolist(), survey.seq.tolist()):
            kind = survey.kinds[number]
            size = kind.size if seq < 0 and kind.name != "all_to_all" else None
            idents.add((kind.name, kind.ranks, kind.members, seq, size))
    matches = set()
    for name, ranks, members, seq, size in idents:
        wanted = set(ranks) or everyone
        if name not in SYMMETRIC or len(wanted) < 2 or not wanted <= everyone or (not ranks and members):
            continue
        rows = [
            [
                (rank_index, entry)
                for entry in range(len(surveys[rank_index].row))
                for kind in [surveys[rank_index].kinds[surveys[rank_index].kind[entry]]]
                if (kind.name, kind.ranks, int(surveys[rank_index].seq[entry])) == (name, ranks, seq)
                and size in (None, kind.size)
            ]
            for rank_index in sorted(wanted)
        ]
        if all(len(own) == len(rows[0]) > 0 for own in rows):
            matches |= set(zip(*rows))
    return matches


def test_the_lower_median_is_one_of_the_values():
    assert [lower_median(range(count)) for count in (1, 2, 3, 4)] == [0, 0, 1, 1]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**60), 2**60)), min_size=1))
def test_group_medians_are_integers_between_the_middle_values(rows):
    group, values = np.array(rows, np.int64).T
    middles, some = medians(values, group, 6)
    for number in range(6):
        own = sorted(value for index, value in rows if index == number)
        assert some[number] == bool(own)
        if own:
            low, high = own[(len(own) - 1) // 2], own[len(own) // 2]
            assert middles[number] == low + (high - low) // 2


@given(st.integers(-500_000, 500_000), st.lists(st.integers(0, 10**12), min_size=2))
def test_clock_correction_preserves_the_order(drift, stamps):
    on = ClockCorrection(offset=-5, drift=drift, origin=10**11).at(np.sort(np.array(stamps, np.int64)))
    assert (np.diff(on) >= 0).all()


@pytest.fixture(scope="module")
def dlrm(public_trace):
    return read([public_trace("v100_dlrm_8ranks")])


def test_the_straggler_of_eight_ranks_is_identified(dlrm):
    """Rank 7 is the last to arrive at 5 of 8 collectives, has the shortest window, and costs the others most."""
    measured = measure(dlrm)
    assert measured.lateness[0] == Lateness(rank=7, last=5, met=8, exposed_ns=9_946_000, waited_ns=10_130_000)
    assert sum(row.last for row in measured.lateness) == 8
    lengths = {events.rank: events.window[1] - events.window[0] for events in dlrm}
    assert min(lengths, key=lengths.__getitem__) == 7
    assert max(measured.mean.late, key=measured.mean.late.__getitem__) == 7


@pytest.mark.parametrize("drift", [0, 40_000])
def test_shifted_clocks_of_eight_real_ranks_are_recovered(dlrm, drift):
    """Each rank's clock is shifted by up to 1000 s; the trace lasts 20 ms, so that a drift is part of the offset."""
    true = measure(dlrm)
    by = [0, *np.random.default_rng(7).integers(-(10**12), 10**12, 7).tolist()]
    origin = dlrm[0].span[0]
    moved = [
        msgspec.structs.replace(
            ClockCorrection(shift, drift * rank_index, origin).corrected(events), host_name=f"node{rank_index}"
        )
        for rank_index, (events, shift) in enumerate(zip(dlrm, by))
    ]
    measured = measure(moved)
    assert measured.alignment.aligned == "collectives"
    residual = measured.alignment.residual
    assert residual.collectives == 8
    assert residual.p95 <= 4_000
    bend = abs(drift) * 7 * 20_000_000 // SECOND
    for clock, shift in zip(measured.alignment.clocks, by):
        assert abs(clock.offset + shift) <= residual.p95 + bend
    slack = 8 * (residual.p95 + bend)
    for kind, ns in true.mean.by_kind().items():
        assert abs(measured.mean.by_kind()[kind] - ns) <= slack
    assert [row[:3] for row in measured.lateness[:3]] == [row[:3] for row in true.lateness[:3]]


def test_drift_of_eight_real_ranks_is_recovered_over_seconds(dlrm):
    """The same collectives again each 200 ms for 4 s, so that each clock's drift shows."""

    def repeated(survey_of):
        return [
            (kind, start + 200_000_000 * n, stop + 200_000_000 * n)
            for n in range(20)
            for kind, start, stop in survey_of
        ]

    measured = measure(dlrm, "all")
    origin = dlrm[0].span[0]
    surveys = []
    for rank_index, rank in enumerate(measured.ranks):
        shift = ClockCorrection(10**9 * rank_index, 3_000 * rank_index - 9_000 if rank_index else 0, origin)
        rows = [
            (msgspec.structs.replace(kind, seq=number), int(rank.classified.start[row]), int(rank.classified.stop[row]))
            for number, (row, kind) in enumerate(sorted(rank.classified.collectives.items()))
        ]
        met = [
            (msgspec.structs.replace(kind, seq=number), shift.when(start), shift.when(stop))
            for number, (kind, start, stop) in enumerate(repeated(rows))
        ]
        surveys.append(made_survey(rank_index, met))
    agreed = align_clocks(surveys)
    assert agreed.aligned == "collectives"
    for rank_index, clock in enumerate(agreed.clocks):
        assert abs(clock.drift + (3_000 * rank_index - 9_000 if rank_index else 0)) <= 600
    assert agreed.residual.p95 <= 4_000


def test_pairs_of_ranks_agree_with_the_solution_of_all_eight(dlrm):
    """Any two ranks alone give the same difference of clocks as all eight, within the residual."""
    moved = [msgspec.structs.replace(events, host_name=f"node{events.rank}", world=0) for events in dlrm]
    agreed = measure(moved).alignment
    for first, second in list(combinations(range(8), 2))[::5]:
        pair = measure([moved[first], moved[second]]).alignment
        between = agreed.clocks[second].offset - agreed.clocks[first].offset
        assert abs(pair.clocks[1].offset - between) <= agreed.residual.p95
