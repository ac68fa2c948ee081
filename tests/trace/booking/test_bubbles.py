"""Pipeline bubbles: a schedule is simulated, which knows each stage's waits, and its trace is booked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.surveys import collective, made_survey
from tests.trace_maker import MAIN, trace, write
from trainyard.trace.align.matching import transfers
from trainyard.trace.measure import measure, read

LAUNCHED = 5
BEFORE = 100  # by then all is launched, so that only waits are left


class Stage:
    """One stage: when it is free, its kernels, and its waits (begin, end) before each transfer."""

    def __init__(self, number, stages, micro):
        self.number, self.free = number, BEFORE
        self.kernels, self.waits, self.moving, self.computes = [], [], [], {}
        ahead = min(micro, stages - 1 - number)
        turns = [("F", i) for i in range(ahead)]
        for i in range(micro - ahead):
            turns += [("F", ahead + i), ("B", i)]
        self.turns = turns + [("B", i) for i in range(micro - ahead, micro)]


def one_forward_one_backward(stages, micro, forward, backward, transfer, steps):
    """Kernels and waits of each stage. A send starts when its compute ends, a receive when its stage is free; both
    end `transfer` after the later of the two."""
    schedule = [Stage(number, stages, micro) for number in range(stages)]
    for step in range(steps):
        left = {stage.number: list(stage.turns) for stage in schedule}
        ready = {}
        while any(left.values()):
            for stage in schedule:
                while left[stage.number]:
                    direction, micro_batch = left[stage.number][0]
                    source = stage.number + (-1 if direction == "F" else 1)
                    if 0 <= source < stages:
                        sent = ready.get((direction, micro_batch, source))
                        if sent is None:
                            break
                        end = max(sent, stage.free) + transfer
                        stage.kernels.append(_move(step, "recv", source, stages, stage.free, end))
                        schedule[source].moving.append((max(sent, stage.free), end))
                        schedule[source].kernels.append(_move(step, "send", stage.number, stages, sent, end))
                        stage.waits.append((stage.free, max(sent, stage.free)))
                        stage.free = end
                    left[stage.number].pop(0)
                    start, stage.free = stage.free, stage.free + (forward if direction == "F" else backward)
                    stage.kernels.append((step, "gemm", 7, start, stage.free, {}))
                    stage.computes.setdefault(step, []).append((start, stage.free))
                    ready[direction, micro_batch, stage.number] = stage.free
    return schedule


def _move(step, name, peer, stages, start, stop):
    key = "Dst Rank" if name == "send" else "Src Rank"
    args = {
        "Collective name": name, key: peer, "Process Group Name": "0", "Process Group Description": "mesh_pp",
        "Process Group Ranks": list(range(stages)), "Group size": stages,
    }  # fmt: skip
    return (step, "ncclDevKernel_SendRecv", 20 + 2 * peer + (name == "send"), start, stop, args)


def documents(schedule, steps):
    marks = [(str(step), LAUNCHED * step, LAUNCHED * step + LAUNCHED) for step in range(steps)]
    for stage in schedule:
        kernels = sorted(stage.kernels, key=lambda kernel: kernel[3])
        rows = [(name, stream, start, stop, LAUNCHED * step, args) for step, name, stream, start, stop, args in kernels]
        yield trace(device=rows, marks=marks, rank=stage.number, world=len(schedule), host_name="one")


def booked(folder, schedule, steps):
    files = [write(folder, document, f"{i}.json") for i, document in enumerate(documents(schedule, steps))]
    return measure(read(files), "steps" if steps > 1 else "all")


def bubbles(ledgers):
    totals = {}
    for ledger in ledgers:
        for entry in ledger.entries:
            if entry.account.kind == "bubble":
                assert entry.account.group == "pp"
                totals[entry.account.what] = totals.get(entry.account.what, 0) + entry.ns
    return totals


def expected(stage, schedule, steps):
    """The bubbles by a walk over every instant in which the stage waited and neither computed nor sent."""
    ends = [max(stop for other in schedule for _, stop in other.computes[step]) for step in range(steps)]
    moving = {t for begin, end in stage.moving for t in range(begin, end)}
    totals = {}
    for begin, end in stage.waits:
        for t in range(begin, end):
            step = next(number for number, stop in enumerate(ends) if t < stop)
            first, last = stage.computes[step][0][0], stage.computes[step][-1][1]
            kind = "warmup" if t < first else "drain" if t >= last else "steady"
            # A step's computes may reach over the bound into the one before: then that one's last is later.
            totals[kind] = totals.get(kind, 0) + (t not in moving)
    return {kind: ns for kind, ns in totals.items() if ns}


@settings(max_examples=25)
@given(st.integers(2, 4), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(1, 5))
def test_bubbles_of_any_schedule_match_a_simulation(tmp_path_factory, stages, micro, forward, backward, transfer):
    schedule = one_forward_one_backward(stages, micro, forward, backward, transfer, 1)
    measured = booked(tmp_path_factory.mktemp("t"), schedule, 1)
    for stage, rank in zip(schedule, measured.ranks):
        assert bubbles(rank.ledgers) == expected(stage, schedule, 1)
        assert rank.ledgers[0].by_kind()["compute"] == micro * (forward + backward)


@pytest.mark.parametrize(("stages", "micro"), [(2, 2), (4, 4), (4, 8)])
def test_a_plain_schedule_has_the_textbook_bubble(tmp_path, stages, micro):
    """(p - 1) slots of forward and backward less its own, for the first stage; transfers take almost no time."""
    forward, backward = 10_000, 20_000
    schedule = one_forward_one_backward(stages, micro, forward, backward, 1, 1)
    measured = booked(tmp_path, schedule, 1)
    idle = sum(bubbles(measured.ranks[0].ledgers).values())
    assert abs(idle - (stages - 1) * (forward + backward)) <= 4 * stages * micro
    last = bubbles(measured.ranks[-1].ledgers)
    assert last.keys() <= {"warmup", "steady"}
    assert last.get("steady", 0) <= 4 * stages * micro
    assert abs(last["warmup"] - (stages - 1) * forward) <= stages


def test_a_stage_drains_until_the_step_ends(tmp_path):
    """The next step's first receive waits from the last compute on: drain up to the end of the step, then warm-up."""
    schedule = one_forward_one_backward(4, 4, 10, 20, 1, 2)
    measured = booked(tmp_path, schedule, 2)
    for stage, rank in zip(schedule, measured.ranks):
        assert bubbles(rank.ledgers) == expected(stage, schedule, 2)
    assert bubbles(measured.ranks[-1].ledgers)["drain"] > 0
    assert "drain" not in bubbles(measured.ranks[0].ledgers)


def test_unaligned_ranks_have_no_bubbles(tmp_path):
    schedule = one_forward_one_backward(2, 3, 10, 20, 1, 1)
    files = []
    for number, document in enumerate(documents(schedule, 1)):
        files.append(write(tmp_path, document | {"host_name": f"node{number}"}, f"{number}.json"))
    measured = measure(read(files), "all")
    assert measured.alignment.aligned == "no"
    assert not any(bubbles(rank.ledgers) for rank in measured.ranks)


def _moves(rank, rows):
    met = [(collective("send_recv", ranks=(0, 1), size=z, peer=1 - rank, receives=r), t, t + 5) for r, z, t in rows]
    return made_survey(rank, met)


def test_transfers_match_only_if_both_ends_have_equal_sizes():
    sends = [(False, 8, 0), (False, 16, 10)]
    both = transfers([_moves(0, sends), _moves(1, [(True, 8, 1), (True, 16, 12)])])
    assert list(zip(both.send.tolist(), both.receive.tolist())) == [(0, 0), (1, 1)]
    assert (both.sender.tolist(), both.receiver.tolist()) == ([0, 0], [1, 1])
    assert not len(transfers([_moves(0, sends), _moves(1, [(True, 16, 1), (True, 8, 12)])]).send)
    assert not len(transfers([_moves(0, sends), _moves(1, [(True, 8, 1)])]).send)


def test_a_receive_that_ends_before_its_send_is_not_matched():
    late = transfers([_moves(0, [(False, 8, 100)]), _moves(1, [(True, 8, 0)])])
    assert len(late.send) == 1
    assert not len(late.possible().send)


def test_gloo_transfers_of_two_ranks_are_matched_without_peer(tmp_path):
    """A sending call has sent when it returns and its span opens; the span lasts until the rank waits for it, here
    during a receive that waits for the other stage to compute."""

    def moved(name, at, returns, until):
        call = (f"c10d::{name}", MAIN, at, returns, "cpu_op")
        return [call, (f"gloo:{name.strip('_')}", MAIN, returns, until, "user_annotation")]

    first = [
        ("aten::mm", MAIN, 0, 100, "cpu_op"), *moved("send", 100, 105, 110), ("aten::mm", MAIN, 110, 200, "cpu_op"),
        *moved("send", 200, 203, 295), *moved("recv_", 203, 205, 295), ("aten::mm", MAIN, 295, 320, "cpu_op"),
    ]  # fmt: skip
    second = [
        *moved("recv_", 0, 5, 112), ("aten::mm", MAIN, 112, 290, "cpu_op"), *moved("send", 290, 292, 300),
        *moved("recv_", 300, 302, 306), ("aten::mm", MAIN, 306, 320, "cpu_op"),
    ]  # fmt: skip
    group = {"pg_name": "1", "pg_desc": "mesh_pp", "pg_size": 2, "ranks": [0, 1]}
    files = []
    for rank, host in enumerate((first, second)):
        document = trace(host=host, rank=rank, world=2, host_name="one", backend="gloo", marks=[("1", 0, 320)])
        document["distributedInfo"]["pg_config"] = [group]
        files.append(write(tmp_path, document, f"{rank}.json"))
    waits = [
        {str(account): ns for account, ns in rank.ledgers[0].by_account().items() if account.kind in ("comm", "bubble")}
        for rank in measure(read(files), "all", axis="pp").ranks
    ]
    assert waits == [
        {"comm/send_recv@pp": 10 + 5, "bubble/steady@pp": 90},
        {"comm/send_recv@pp": 12 + 10 + 6, "bubble/warmup@pp": 100},
    ]
