"""Each rule fires on its case, is silent on a clean step, and names what the design asks."""

import pytest

from trainyard.detect.rules import findings
from trainyard.ledger import Account, Entry, Ledger, Scope


def ledger(aligned="host", late=None, **accounts):
    entries = tuple(Entry(account=Account.parse(text.replace("__", "/")), ns=ns) for text, ns in accounts.items())
    return Ledger(
        wall_ns=sum(accounts.values()), entries=entries, scope=Scope(aligned=aligned, reduce="mean"), late=late or {}
    )


def test_a_clean_step_finds_nothing():
    assert findings(ledger(compute__matmul=990_000, comm__all_reduce=10_000)) == []


@pytest.mark.parametrize(
    ("rule", "accounts", "cost", "says"),
    [
        (
            "exposed_comm",
            {"compute__matmul": 700, "comm__all_reduce": 200, "comm__all_gather": 100},
            300,
            "most of it all-reduce",
        ),
        (
            "launch_bound",
            {"compute__matmul": 700, "launch_gap__sync": 200, "launch_gap__python": 100},
            300,
            "Launch gaps, most of them host sync",
        ),
        ("data_wait", {"compute__matmul": 900, "data_wait": 100}, 100, "Waiting for data"),
        ("coverage", {"compute__matmul": 900, "compute__other": 60, "unexplained": 40}, 100, "No rule claims"),
        ("straggler", {"compute__matmul": 900, "straggler__all_reduce": 100}, 100, "in turn"),
    ],
)
def test_a_rule_fires_with_its_price(rule, accounts, cost, says):
    (finding,) = findings(ledger(**accounts))
    assert (finding.rule, finding.cost_ns) == (rule, cost)
    assert says in finding.says
    assert finding.remedy is not None


def test_one_late_rank_is_named_and_several_are_not():
    (one,) = findings(ledger(late={3: 80, 1: 20}, compute__matmul=900, straggler__all_reduce=100))
    assert one.says.startswith("Rank 3 comes late")
    (many,) = findings(ledger(late={3: 40, 1: 35, 0: 25}, compute__matmul=900, straggler__all_reduce=100))
    assert many.says.startswith("Ranks arrive late in turn")


def test_unaligned_communication_is_judged_with_less_certainty():
    (sure,) = findings(ledger(compute__matmul=700, comm__all_reduce=300))
    (unsure,) = findings(ledger(aligned="no", compute__matmul=700, comm__all_reduce=300))
    assert unsure.sure < sure.sure
    assert "waiting for late ranks is in it" in unsure.evidence


def test_the_dearest_comes_first():
    found = findings(ledger(compute__matmul=500, data_wait=100, comm__all_reduce=400))
    assert [finding.rule for finding in found] == ["exposed_comm", "data_wait"]
