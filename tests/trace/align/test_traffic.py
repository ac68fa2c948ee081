"""Traffic between pairs of ranks: totals against sums over the calls, for equal and unequal shares."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.surveys import collective, made_survey
from tests.trace_maker import trace, write
from trainyard.trace.align.traffic import measure_traffic
from trainyard.trace.measure import measure, read
from trainyard.trace.readers.collectives import collective_from_args

shares = st.lists(st.integers(0, 1000), min_size=3, max_size=3).map(tuple)


@given(st.lists(st.lists(shares, min_size=3, max_size=3), min_size=1, max_size=4), st.booleans())
def test_bytes_of_pairs_are_sums_over_calls(calls, aligned):
    # calls[i][sender]: bytes to each rank in call i.
    def row(number, sender):
        sent = calls[number][sender]
        return collective("all_to_all", ranks=(0, 1, 2), seq=number, sent=sent), 100 * number, 100 * number + 50

    surveys = [made_survey(rank, [row(number, rank) for number in range(len(calls))]) for rank in range(3)]
    measured = {(pair.sender, pair.receiver): (pair.bytes, pair.calls) for pair in measure_traffic(surveys, aligned)}
    for sender in range(3):
        for receiver in range(3):
            sizes = [sent[sender][receiver] for sent in calls if sent[sender][receiver] and sender != receiver]
            assert measured.get((sender, receiver), (0, 0)) == (sum(sizes), len(sizes))


def test_an_all_to_all_with_unknown_shares_has_no_matrix():
    surveys = [made_survey(rank, [(collective("all_to_all", ranks=(0, 1), size=400), 0, 10)]) for rank in (0, 1)]
    assert measure_traffic(surveys, aligned=False) == []


def test_times_start_at_the_last_arrival():
    row = collective("all_to_all", ranks=(0, 1), size=200, sent=(100, 100))
    surveys = [made_survey(0, [(row, 0, 100)]), made_survey(1, [(row, 60, 110)])]
    assert [(pair.sender, pair.ns) for pair in measure_traffic(surveys, aligned=True)] == [(0, 40), (1, 50)]
    assert [(pair.sender, pair.ns) for pair in measure_traffic(surveys, aligned=False)] == [(0, 50), (1, 50)]


def test_a_transfer_counts_once_and_from_either_end():
    send = collective("send_recv", ranks=(0, 1), size=1000, peer=1)
    receive = collective("send_recv", ranks=(0, 1), size=1000, peer=0, receives=True)
    both = [made_survey(0, [(send, 100, 150)]), made_survey(1, [(receive, 0, 160)])]
    assert [tuple(pair) for pair in measure_traffic(both, aligned=True)] == [("send_recv", 0, 1, 1000, 1, 60)]
    assert [tuple(pair) for pair in measure_traffic(both[1:], aligned=False)] == [("send_recv", 0, 1, 1000, 1, 160)]


def test_other_collectives_have_no_matrix():
    assert measure_traffic([made_survey(0, [(collective(ranks=(0, 1)), 0, 10)])], aligned=False) == []


def all_to_all_args(elements, split, members):
    """The args of a kernel as torch records them."""
    return {
        "Collective name": "all_to_allv",
        "dtype": "Float",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "In split size": split,
        "Process Group Ranks": str(list(range(members))),
        "Process Group Name": "0",
        "Group size": members,
    }


@given(st.lists(st.integers(0, 100), min_size=2, max_size=5))
def test_shares_of_torch_are_bytes_of_the_input(split):
    args = all_to_all_args(3 * sum(split), str(split), len(split))
    assert collective_from_args("nccl:all_to_all", args, {}).sent == tuple(12 * share for share in split)


def test_an_empty_list_of_shares_means_equal_shares():
    assert collective_from_args("nccl:all_to_all", all_to_all_args(8, "[]", 4), {}).sent == (8, 8, 8, 8)


def test_shortened_shares_are_not_used():
    assert collective_from_args("nccl:all_to_all", all_to_all_args(8, "[1, 2, ...]", 3), {}).sent == ()


@pytest.mark.parametrize(("dtype", "element_bytes"), [("Float8_e4m3fn", 1), ("Float8_e5m2", 1), ("ComplexFloat", 8)])
def test_shares_of_less_common_dtypes(dtype, element_bytes):
    args = {**all_to_all_args(4, "[1, 3]", 2), "dtype": dtype}
    assert collective_from_args("nccl:all_to_all", args, {}).sent == (element_bytes, 3 * element_bytes)


@pytest.mark.parametrize(
    "change", [{"dtype": "Float3"}, {"dtype": None}, {"In msg nelems": "4"}, {"In msg nelems": -1}]
)
def test_an_unknown_size_gives_no_shares(change):
    args = {**all_to_all_args(4, "[1, 3]", 2), **change}
    assert collective_from_args("nccl:all_to_all", args, {}).sent == ()


def test_a_missing_number_of_elements_gives_no_shares():
    args = all_to_all_args(4, "[1, 3]", 2)
    del args["In msg nelems"]
    assert collective_from_args("nccl:all_to_all", args, {}).sent == ()


def test_a_rank_without_elements_sends_zero_bytes():
    assert collective_from_args("nccl:all_to_all", all_to_all_args(0, "[0, 0]", 2), {}).sent == (0, 0)


def test_a_trace_has_the_matrix_of_its_all_to_alls(tmp_path):
    def rank(number, split):
        args = all_to_all_args(sum(split), str(split), 2)
        kernel = ("ncclDevKernel_SendRecv", 7, 10, 70, 5, args)
        return trace(device=[kernel], rank=number, world=2, host_name="one")

    paths = [write(tmp_path, rank(number, split), f"{number}.json") for number, split in enumerate([[1, 3], [5, 2]])]
    measured = measure(read(paths), "all")
    assert [(pair.sender, pair.receiver, pair.bytes) for pair in measured.traffic] == [(0, 1, 12), (1, 0, 20)]
