"""One screen: findings that would save nothing are folded, and the suggested command names the user's own files."""

import shlex
from io import StringIO

import pytest
from rich.console import Console

from trainyard.change import Change
from trainyard.finding import Finding
from trainyard.ledger import Account, Entry, Ledger, Scope
from trainyard.report.render.summary import print_analysis, what_if_step
from trainyard.report.view.analysis import Analysis

WALL = 1_000_000


def finding(rule, cost_ns, priced="replayed", change=True):
    return Finding(
        rule=rule, severity="low", account=Account("launch_gap", "python"), cost_ns=cost_ns, priced=priced,
        summary=f"cause {rule} end", change=Change(text=f"without:{rule}") if change else None,
    )  # fmt: skip


def analysis(*findings):
    entries = (Entry(account=Account("compute", "matmul"), phase="forward", ns=WALL),)
    mean = Ledger(wall_ns=WALL, entries=entries, scope=Scope(reduce="mean"))
    return Analysis(headline="Compute-bound", subject="CPU", source="x", ledgers=(mean,), findings=findings, figures=())


def printed(content, full=False):
    out = StringIO()
    print_analysis(content, Console(width=80, color_system=None, file=out), full)
    return out.getvalue()


def test_findings_that_save_nothing_are_folded():
    text = printed(analysis(finding("a", 0), finding("b", 50_000), finding("c", 999), finding("d", 1000)))
    assert [rule for rule in "abcd" if f"cause {rule} end" in text] == ["b", "d"]
    assert "2 more findings" in text
    assert text.split("of the step: ")[1].startswith("a, c\n")


def test_findings_without_a_replay_are_not_folded():
    text = printed(analysis(finding("a", 0, "none"), finding("b", 10, "bound")))
    assert [rule for rule in "ab" if f"cause {rule} end" in text] == ["a", "b"]


def test_full_output_has_all_findings():
    text = printed(analysis(*(finding(rule, 0) for rule in "abcde")), full=True)
    assert all(f"cause {rule} end" in text for rule in "abcde")


@pytest.mark.parametrize(
    ("findings", "change"),
    [
        ([], None),
        ([finding("a", 0)], None),
        ([finding("a", 5000, change=False)], None),
        ([finding("a", 0), finding("b", 5000)], "without:b"),
        ([finding(rule, 5000, change=rule == "d") for rule in "abcd"], None),
    ],
)
def test_change_of_a_printed_finding_is_suggested(findings, change):
    steps = what_if_step(analysis(*findings), ["my traces/rank0.json", "b"])
    assert len(steps) == (change is not None)
    if change:
        assert shlex.split(steps[0].command)[3:] == ["my traces/rank0.json", "b", "--change", change]
