"""The independent checks of findings: true claims agree, and false ones do not."""

import json

import pytest

from validation.unseen import claims, raw

STEPS = 4


@pytest.fixture
def ranks(tmp_path):
    """Two ranks, four steps of 100 ms: rank 0 waits for 70 ms in a collective, at which rank 1 arrives late."""
    for rank, arrival_ms in ((0, 10), (1, 80)):
        events = []
        for step in range(STEPS):
            at = 100 * step
            spans = [(f"ProfilerStep#{step}", 0, 100), ("aten::mm", 1, 9), ("gloo:all_reduce", arrival_ms, 90)]
            spans += [("Optimizer.step#SGD.step", 91, 99), ("aten::add_", 92, 95)]
            spans += [(f"<built-in method tolist of Tensor object at 0x7f{step}>", 96, 97)]
            for name, start, stop in spans:
                times = {"ts": 1e3 * (at + start), "dur": 1e3 * (stop - start)}
                category = "user_annotation" if name.startswith("Prof") else "cpu_op"
                events.append({"ph": "X", "name": name, "cat": category, "tid": name[:4] == "gloo", **times})
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    return [raw.load(tmp_path / f"rank{rank}.json") for rank in (0, 1)]


def answers(ranks, rule, cost_ms, summary, evidence=""):
    finding = {"rule": rule, "cost_ns": int(cost_ms * 1e6), "summary": summary, "evidence": evidence}
    return {check.claim: check.agrees for check in claims.check_finding(finding, ranks)}


def late(ranks, rank, times, cost_ms=70.0):
    summary = f"Rank {rank} arrives last at {times} of 4 collectives, which costs {cost_ms} ms of each 100.0 ms step"
    return answers(ranks, "straggler", cost_ms, f"{summary} ({cost_ms:.0f} %)")


def test_late_rank_count_and_cost_must_agree(ranks):
    assert set(late(ranks, 1, 4).values()) == {True}
    assert late(ranks, 0, 4)["Rank 0 arrives last at 4 of 4 collectives"] is False
    assert late(ranks, 1, 3)["Rank 1 arrives last at 3 of 4 collectives"] is False
    assert late(ranks, 1, 4, 75.0)["costs 75.00 ms"] is False


def test_cost_of_an_optimizer_is_bounded_by_its_gaps(ranks):
    summary = (
        "An unfused optimizer of 1 kernels per step leaves the device idle, which costs 5.0 ms of each 100.0 ms step"
    )
    assert set(answers(ranks, "optimizer_not_fused", 5, f"{summary} (5 %)").values()) == {True}
    assert answers(ranks, "optimizer_not_fused", 6, summary)["costs 6.00 ms"] is False
    assert answers(ranks, "optimizer_not_fused", 5, summary.replace("of 1 ", "of 9 "))["9 kernels"] is False


def test_a_named_interval_must_last_as_long(ranks):
    evidence = "largest: aten::mm {} ms, Python 50.0 ms"
    assert answers(ranks, "unknown", 1, "", evidence.format("8.0")) == {"aten::mm lasts 8.0 ms": True}
    assert answers(ranks, "unknown", 1, "", evidence.format("9.0")) == {"aten::mm lasts 9.0 ms": False}
    name = "<built-in method tolist of Tensor object>"
    assert answers(ranks, "unknown", 1, "", f"largest: {name} 2.0 ms") == {f"{name} lasts 2.0 ms": False}


def test_steps_and_step_time_are_counted(ranks):
    analysis = {"steps": {"steps": 4, "left_out": []}, "figures": [{"label": "step time", "value": "100.0"}]}
    assert [check.agrees for check in claims.check_steps(analysis, ranks)] == [True, True]
    analysis = {"steps": {"steps": 5, "left_out": []}, "figures": [{"label": "step time", "value": "90.0"}]}
    assert [check.agrees for check in claims.check_steps(analysis, ranks)] == [False, False]
