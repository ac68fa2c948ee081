"""Prices of findings: each is what a prediction without its cause recovers, the same number in every output."""

import msgspec
import pytest

from tests.refused import refused
from trainyard.change import Change
from trainyard.detect.finding_text import describe_cost
from trainyard.detect.run_rules import findings
from trainyard.diagnose.predict_changes import predict_changes
from trainyard.diagnose.price_findings import MAX_REPLAYED, diagnose, price_findings
from trainyard.errors import BadInput
from trainyard.finding import severity
from trainyard.ledger import Account, Entry, Ledger
from trainyard.report.render.markdown import text
from trainyard.report.view.build_analysis import analyse_measured
from trainyard.report.view.build_view import view_of
from trainyard.trace.measure import measure, measure_files, read
from trainyard.trace.rank_results import all_booked

SHARED = [
    "a100_ddp_resnet.json.gz",
    "diff_test.json.gz",
    "h100_qwen_0.5b.json.gz",
    "mi300_resnet_ac.json.gz",
    "resnet50_loader0.json.gz",
    "v100_dlrm_8ranks",
    "cpu_gloo_3ranks",
]


@pytest.fixture(scope="module")
def demo(root):
    return measure_files([root / "src" / "trainyard" / "data" / "demo"])


def assert_prices_are_predictions(measured):
    """Each replayed price is the time that `what-if` with its change recovers, less that with the change which another
    finding prices; returns the number of them."""
    replayed = [finding for finding in diagnose(measured.mean, None, measured) if finding.priced == "replayed"]
    for finding in replayed:
        prediction = predict_changes(measured, [finding.change.text])
        assert measured.mean.wall_ns - prediction.mean.wall_ns == prediction.recovery.ns
        if finding.beyond is None:
            assert finding.cost_ns == max(0, prediction.recovery.ns)
            assert finding.interval_ns == prediction.recovery.interval_ns
        else:
            without = predict_changes(measured, [finding.beyond.text]).recovery.ns
            assert finding.cost_ns == max(0, prediction.recovery.ns - without)
        assert finding.severity == severity(finding.cost_ns, measured.mean.wall_ns)
        if finding.cost_ns:
            assert describe_cost(finding.cost_ns, measured.mean) in finding.summary
    return len(replayed)


def test_demo_prices_equal_what_if(demo):
    assert assert_prices_are_predictions(demo) == MAX_REPLAYED


@pytest.mark.parametrize("name", SHARED)
def test_prices_of_public_traces_equal_what_if(public_trace, name):
    assert assert_prices_are_predictions(measure(read([public_trace(name)])))


def test_the_headline_is_the_heaviest_finding_in_every_output(demo):
    analysis = analyse_measured(demo)
    weights = [finding.weight for finding in analysis.findings]
    assert weights == sorted(weights, reverse=True)
    first = analysis.findings[0]
    assert analysis.headline == first.summary
    document = msgspec.json.decode(msgspec.json.encode(analysis, enc_hook=str))
    assert document["findings"][0]["cost_ns"] == first.cost_ns
    assert document["findings"][0]["change"] == {"text": first.change.text}
    view = view_of(analysis)
    assert view.findings[0] == first
    assert view.title == first.summary
    assert describe_cost(first.cost_ns, demo.mean).split(" of ")[0] in text(view)


def test_a_limited_number_is_replayed_and_the_rest_are_bounds(demo):
    unpriced = findings(demo.mean, None, all_booked(demo))
    priced = price_findings(unpriced, demo, max_replayed=1)
    heaviest = max(unpriced, key=lambda finding: finding.weight)
    assert [finding.rule for finding in priced if finding.priced == "replayed"] == [heaviest.rule]
    bounds = {finding.rule: finding for finding in unpriced}
    for finding in priced:
        assert finding.booked_ns == bounds[finding.rule].cost_ns
        if finding.priced == "bound":
            assert finding.cost_ns == finding.booked_ns
            assert f"up to {describe_cost(finding.cost_ns, demo.mean)}" in finding.summary


def test_without_traces_prices_are_bounds():
    entries = (
        Entry(account=Account("compute", "matmul"), ns=700),
        Entry(account=Account("data_wait"), ns=200),
        Entry(account=Account("unexplained"), ns=100),
    )
    results = diagnose(Ledger(wall_ns=1000, entries=entries))
    assert [(finding.rule, finding.priced) for finding in results] == [("data_wait", "bound"), ("coverage", "none")]
    assert results[0].change == Change(text="data_wait=0")


def test_results_hold_no_rows(demo):
    for finding in diagnose(demo.mean, None, demo):
        assert finding.change is None or type(finding.change) is Change


def test_a_rule_without_a_finding_is_refused(demo):
    with refused(BadInput, "without:gc_pauses", "launch_bound"):
        predict_changes(demo, ["without:gc_pauses"])
